"""Interceptors see every message before it is routed; a bad one is silenced, never allowed to hurt."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.workers.wire.messages import Message

Interceptor = Callable[[Message], object]
_log = logging.getLogger("holdfast.workers")


@dataclass
class Record:
    """What an interceptor cost so far."""

    calls: int = 0
    errors: int = 0
    strikes: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    quarantined: bool = False


class Interceptors:
    """Called in order of registration, on the reader. Over budget or failing too often means quarantine."""

    def __init__(self, *, budget: float, strikes: int) -> None:
        self.budget, self.strikes = budget, strikes
        self.records: dict[Interceptor, Record] = {}

    def add(self, interceptor: Interceptor) -> None:
        self.records.setdefault(interceptor, Record())

    def remove(self, interceptor: Interceptor) -> None:
        self.records.pop(interceptor, None)

    def show(self, message: Message) -> None:
        if not self.records:
            return
        for interceptor, record in list(self.records.items()):
            if not record.quarantined and interceptor in self.records:
                self._show(interceptor, record, message)

    def _show(self, interceptor: Interceptor, record: Record, message: Message) -> None:
        started = time.perf_counter()
        failed = False
        try:
            interceptor(message)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - somebody else's code; logged and contained
            failed = True
            record.errors += 1
            _log.exception("an interceptor failed; the message is routed all the same")
        took = time.perf_counter() - started
        record.calls += 1
        record.seconds += took
        record.slowest = max(record.slowest, took)
        if failed or took > self.budget:
            record.strikes += 1
            record.quarantined = record.strikes >= self.strikes
            if record.quarantined:
                _log.warning("interceptor %r is quarantined after %d strikes", interceptor, record.strikes)
