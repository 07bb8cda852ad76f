"""The decisions of a pool as pure functions: which sessions to assign, retire and start."""

from dataclasses import dataclass

from standfast.workers.config import MB, PoolConfig


@dataclass(frozen=True)
class IdleSession:
    """A session that waits in the pool."""

    id: str
    is_alive: bool = True
    age: float = 0.0
    idle_for: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class PoolStatus:
    """The state of a pool. ``retry_after`` is the time until the circuit breaker allows the next start."""

    idle: tuple[IdleSession, ...] = ()
    starting: int = 0
    leased: int = 0
    waiting: int = 0
    leased_memory: int = 0
    retry_after: float = 0.0
    is_draining: bool = False

    @property
    def total(self) -> int:
        return len(self.idle) + self.starting + self.leased


@dataclass(frozen=True)
class AssignSession:
    """Give this session to the caller that has waited longest."""

    id: str


@dataclass(frozen=True)
class RetireSession:
    """Remove this session from the pool and terminate it."""

    id: str
    reason: str


@dataclass(frozen=True)
class StartSessions:
    """Start ``count`` sessions."""

    count: int


PoolAction = AssignSession | RetireSession | StartSessions


def plan_actions(config: PoolConfig, status: PoolStatus) -> tuple[PoolAction, ...]:
    """Return everything that the pool should do now.

    There are never more than ``max_sessions``; no caller waits while a usable session is idle; the session that
    was started first is assigned first; nothing is started while the breaker is open; a draining pool only retires.
    """
    if status.is_draining:
        return tuple(RetireSession(session.id, "draining") for session in status.idle)
    retired = {action.id: action for action in _find_unfit(config, status)}
    usable = [session for session in status.idle if session.id not in retired]
    assigned = [AssignSession(session.id) for session in usable[: status.waiting]]
    unassigned = usable[len(assigned) :]
    for action in (*_find_surplus(config, unassigned), *_find_over_budget(config, status, unassigned)):
        retired.setdefault(action.id, action)
    idle = sum(session.id not in retired for session in unassigned)
    starts = _count_starts(config, status, waiting=status.waiting - len(assigned), idle=idle, assigned=len(assigned))
    return (*retired.values(), *assigned, *((StartSessions(starts),) if starts else ()))


def _find_unfit(config: PoolConfig, status: PoolStatus) -> list[RetireSession]:
    unfit = []
    for session in status.idle:
        if not session.is_alive:
            unfit.append(RetireSession(session.id, "dead"))
        elif config.max_lifetime is not None and session.age > config.max_lifetime:
            unfit.append(RetireSession(session.id, "lifetime"))
    return unfit


def _find_surplus(config: PoolConfig, idle: list[IdleSession]) -> list[RetireSession]:
    """Return sessions that are idle for too long. ``min_idle`` of them stay: they would be replaced at once."""
    if config.idle_timeout is None:
        return []
    expired = [session for session in idle if session.idle_for > config.idle_timeout]
    return [RetireSession(session.id, "idle") for session in expired[: max(0, len(idle) - config.min_idle)]]


def _find_over_budget(config: PoolConfig, status: PoolStatus, idle: list[IdleSession]) -> list[RetireSession]:
    if config.memory_budget_mb is None:
        return []
    excess = status.leased_memory + sum(s.memory for s in idle) - config.memory_budget_mb * MB
    retired = []
    for session in sorted(idle, key=lambda s: -s.memory):
        if excess <= 0:
            break
        retired.append(RetireSession(session.id, "memory"))
        excess -= session.memory
    return retired


def _count_starts(config: PoolConfig, status: PoolStatus, *, waiting: int, idle: int, assigned: int) -> int:
    if status.retry_after > 0:
        return 0
    total = status.leased + assigned + status.starting + idle
    needed = waiting + config.min_idle - idle - status.starting
    if config.memory_budget_mb is not None and status.leased_memory >= config.memory_budget_mb * MB:
        needed = waiting - status.starting
    return max(0, min(needed, config.max_sessions - total))


@dataclass(frozen=True)
class CircuitBreaker:
    """Counts consecutive start failures and tells how long to wait before the next attempt."""

    failures: int = 0
    retry_at: float = 0.0
    last_error: str = ""

    def record_failure(self, config: PoolConfig, now: float, error: str) -> "CircuitBreaker":
        failures = self.failures + 1
        excess = failures - config.breaker_threshold
        delay = min(config.breaker_backoff * 2 ** min(max(0, excess), 30), config.breaker_backoff_limit)
        return CircuitBreaker(failures, now + delay if excess >= 0 else 0.0, error)

    def record_success(self) -> "CircuitBreaker":
        return CircuitBreaker()

    def get_retry_delay(self, now: float) -> float:
        """Return the seconds until the next start is allowed; 0 when it is allowed now."""
        return max(0.0, self.retry_at - now)
