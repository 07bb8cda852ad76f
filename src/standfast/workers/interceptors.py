"""Callbacks that see every message before it is routed. A slow or failing one is disabled."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from standfast.base.log import get_logger
from standfast.workers.wire.messages import Message

Interceptor = Callable[[Message], object]
_log = get_logger("standfast.workers")


@dataclass
class InterceptorStats:
    """Calls, errors and running time of one interceptor."""

    calls: int = 0
    errors: int = 0
    strikes: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    quarantined: bool = False


class Interceptors:
    """The interceptors of a session, called in the order of their registration.

    An interceptor that fails or takes longer than ``budget`` seconds gets a strike; after ``strikes`` of them it is
    quarantined, which means that it is no longer called.
    """

    def __init__(self, *, budget: float, strikes: int) -> None:
        self.budget, self.strikes = budget, strikes
        self.stats: dict[Interceptor, InterceptorStats] = {}

    def add(self, interceptor: Interceptor) -> None:
        self.stats.setdefault(interceptor, InterceptorStats())

    def remove(self, interceptor: Interceptor) -> None:
        self.stats.pop(interceptor, None)

    def notify(self, message: Message) -> None:
        if not self.stats:
            return
        for interceptor, stats in list(self.stats.items()):
            # An interceptor may have removed one of those behind it.
            if not stats.quarantined and interceptor in self.stats:
                self._notify_one(interceptor, stats, message)

    def _notify_one(self, interceptor: Interceptor, stats: InterceptorStats, message: Message) -> None:
        started = time.perf_counter()
        failed = False
        try:
            interceptor(message)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - code of the user must not stop the routing
            failed = True
            stats.errors += 1
            _log.exception("an interceptor failed; the message is routed anyway")
        took = time.perf_counter() - started
        stats.calls += 1
        stats.seconds += took
        stats.slowest = max(stats.slowest, took)
        if failed or took > self.budget:
            stats.strikes += 1
            stats.quarantined = stats.strikes >= self.strikes
            if stats.quarantined:
                _log.warning("interceptor %r is quarantined after %d strikes", interceptor, stats.strikes)
