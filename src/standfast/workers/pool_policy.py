"""What a pool should do next, decided from facts alone."""

from dataclasses import dataclass

from standfast.workers.config import MB, PoolConfig


@dataclass(frozen=True)
class IdleSession:
    """A session in stock."""

    id: str
    is_alive: bool = True
    age: float = 0.0
    idle_for: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class PoolStatus:
    """The pool at one moment. ``blocked`` is the time until the breaker lets another start through."""

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
    """Hand this session to the caller who has waited longest."""

    id: str


@dataclass(frozen=True)
class RetireSession:
    """Take this session out of stock and end it."""

    id: str
    reason: str


@dataclass(frozen=True)
class StartSessions:
    """Start so many sessions."""

    count: int


PoolAction = AssignSession | RetireSession | StartSessions


def plan_actions(config: PoolConfig, status: PoolStatus) -> tuple[PoolAction, ...]:
    """Everything to do now.

    Promises: never more than ``max_sessions``; nobody waits while a living session is idle; the oldest
    stock is given first; no start while the breaker is open; a draining pool only retires.
    """
    if status.is_draining:
        return tuple(RetireSession(session.id, "draining") for session in status.idle)
    retired = {action.id: action for action in _find_unfit(config, status)}
    stock = [session for session in status.idle if session.id not in retired]
    given = [AssignSession(session.id) for session in stock[: status.waiting]]
    rest = stock[len(given) :]
    for action in (*_find_surplus(config, rest), *_find_over_budget(config, status, rest)):
        retired.setdefault(action.id, action)
    left = [session for session in rest if session.id not in retired]
    started = _count_starts(config, status, waiting=status.waiting - len(given), idle=len(left), assigned=len(given))
    return (*retired.values(), *given, *((StartSessions(started),) if started else ()))


def _find_unfit(config: PoolConfig, status: PoolStatus) -> list[RetireSession]:
    found = []
    for session in status.idle:
        if not session.is_alive:
            found.append(RetireSession(session.id, "dead"))
        elif config.max_lifetime is not None and session.age > config.max_lifetime:
            found.append(RetireSession(session.id, "lifetime"))
    return found


def _find_surplus(config: PoolConfig, idle: list[IdleSession]) -> list[RetireSession]:
    """Idle for too long, beyond what is kept warm in any case: retiring those would only bring new ones."""
    if config.idle_timeout is None:
        return []
    late = [session for session in idle if session.idle_for > config.idle_timeout]
    return [RetireSession(session.id, "idle") for session in late[: max(0, len(idle) - config.min_idle)]]


def _find_over_budget(config: PoolConfig, status: PoolStatus, idle: list[IdleSession]) -> list[RetireSession]:
    if config.memory_budget_mb is None:
        return []
    excess = status.leased_memory + sum(s.memory for s in idle) - config.memory_budget_mb * MB
    found = []
    for session in sorted(idle, key=lambda s: -s.memory):
        if excess <= 0:
            break
        found.append(RetireSession(session.id, "memory"))
        excess -= session.memory
    return found


def _count_starts(config: PoolConfig, status: PoolStatus, *, waiting: int, idle: int, assigned: int) -> int:
    if status.retry_after > 0:
        return 0
    busy = status.leased + assigned + status.starting + idle
    wanted = waiting + config.min_idle - idle - status.starting
    if config.memory_budget_mb is not None and status.leased_memory >= config.memory_budget_mb * MB:
        wanted = waiting - status.starting
    return max(0, min(wanted, config.max_sessions - busy))


@dataclass(frozen=True)
class CircuitBreaker:
    """Counts start failures in a row and says how long to wait before the next attempt."""

    failures: int = 0
    retry_at: float = 0.0
    last_error: str = ""

    def record_failure(self, config: PoolConfig, now: float, error: str) -> "CircuitBreaker":
        failures = self.failures + 1
        over = failures - config.breaker_threshold
        pause = min(config.breaker_backoff * 2 ** min(max(0, over), 30), config.breaker_backoff_limit)
        return CircuitBreaker(failures, now + pause if over >= 0 else 0.0, error)

    def record_success(self) -> "CircuitBreaker":
        return CircuitBreaker()

    def get_retry_delay(self, now: float) -> float:
        """Seconds until a start is allowed again."""
        return max(0.0, self.retry_at - now)
