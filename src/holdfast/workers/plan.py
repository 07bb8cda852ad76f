"""What a pool should do next, decided from facts alone."""

from dataclasses import dataclass

from holdfast.workers.config import MB, PoolConfig


@dataclass(frozen=True)
class Idle:
    """A session in stock."""

    id: str
    alive: bool = True
    age: float = 0.0
    rested: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class View:
    """The pool at one moment. ``blocked`` is the time until the breaker lets another start through."""

    idle: tuple[Idle, ...] = ()
    starting: int = 0
    leased: int = 0
    waiting: int = 0
    leased_memory: int = 0
    blocked: float = 0.0
    draining: bool = False

    @property
    def total(self) -> int:
        return len(self.idle) + self.starting + self.leased


@dataclass(frozen=True)
class Give:
    """Hand this session to the caller who has waited longest."""

    id: str


@dataclass(frozen=True)
class Retire:
    """Take this session out of stock and end it."""

    id: str
    reason: str


@dataclass(frozen=True)
class Start:
    """Start so many sessions."""

    count: int


Action = Give | Retire | Start


def decide(config: PoolConfig, view: View) -> tuple[Action, ...]:
    """Everything to do now.

    Promises: never more than ``max_sessions``; nobody waits while a living session is idle; the oldest
    stock is given first; no start while the breaker is open; a draining pool only retires.
    """
    if view.draining:
        return tuple(Retire(session.id, "draining") for session in view.idle)
    retired = {action.id: action for action in _unfit(config, view)}
    stock = [session for session in view.idle if session.id not in retired]
    given = [Give(session.id) for session in stock[: view.waiting]]
    rest = stock[len(given) :]
    for action in (*_surplus(config, rest), *_over_budget(config, view, rest)):
        retired.setdefault(action.id, action)
    left = [session for session in rest if session.id not in retired]
    started = _starts(config, view, waiting=view.waiting - len(given), idle=len(left), given=len(given))
    return (*retired.values(), *given, *((Start(started),) if started else ()))


def _unfit(config: PoolConfig, view: View) -> list[Retire]:
    found = []
    for session in view.idle:
        if not session.alive:
            found.append(Retire(session.id, "dead"))
        elif config.max_lifetime is not None and session.age > config.max_lifetime:
            found.append(Retire(session.id, "lifetime"))
    return found


def _surplus(config: PoolConfig, stock: list[Idle]) -> list[Retire]:
    """Idle for too long, beyond what is kept warm in any case: retiring those would only bring new ones."""
    if config.idle_timeout is None:
        return []
    late = [session for session in stock if session.rested > config.idle_timeout]
    return [Retire(session.id, "idle") for session in late[: max(0, len(stock) - config.min_idle)]]


def _over_budget(config: PoolConfig, view: View, stock: list[Idle]) -> list[Retire]:
    if config.memory_budget_mb is None:
        return []
    excess = view.leased_memory + sum(s.memory for s in stock) - config.memory_budget_mb * MB
    found = []
    for session in sorted(stock, key=lambda s: -s.memory):
        if excess <= 0:
            break
        found.append(Retire(session.id, "memory"))
        excess -= session.memory
    return found


def _starts(config: PoolConfig, view: View, *, waiting: int, idle: int, given: int) -> int:
    if view.blocked > 0:
        return 0
    busy = view.leased + given + view.starting + idle
    wanted = waiting + config.min_idle - idle - view.starting
    if config.memory_budget_mb is not None and view.leased_memory >= config.memory_budget_mb * MB:
        wanted = waiting - view.starting
    return max(0, min(wanted, config.max_sessions - busy))


@dataclass(frozen=True)
class Breaker:
    """Counts start failures in a row and says how long to wait before the next attempt."""

    failures: int = 0
    until: float = 0.0
    last: str = ""

    def failed(self, config: PoolConfig, now: float, why: str) -> "Breaker":
        failures = self.failures + 1
        over = failures - config.breaker_threshold
        pause = min(config.breaker_backoff * 2 ** min(max(0, over), 30), config.breaker_backoff_limit)
        return Breaker(failures, now + pause if over >= 0 else 0.0, why)

    def succeeded(self) -> "Breaker":
        return Breaker()

    def blocked(self, now: float) -> float:
        """Seconds until a start is allowed again."""
        return max(0.0, self.until - now)
