"""A process that dies at a chosen commit of its store, for tests of what happens afterwards."""

import os
import signal
from typing import Any

from holdfast.store.contract import Backend, Op, Outcome, RenewLease


class CrashingBackend:
    """A backend whose process is killed (SIGKILL) around its n-th commit.

    ``point`` is ``before:n`` or ``after:n``, counted from 1; an empty one never comes. Renewals of leases come with
    the clock and are not counted. Open a runtime on ``Store(CrashingBackend(backend, point))`` in a process of its
    own; ``written`` is how many there were.
    """

    def __init__(self, backend: Backend, point: str = "") -> None:
        self.backend = backend
        self.indexes_words = backend.indexes_words
        when, _, number = point.partition(":")
        if point and (when not in ("before", "after") or not number.isdigit()):
            raise ValueError(f"a point is 'before:n' or 'after:n', not {point!r}")
        self.when, self.number = when, int(number or 0)
        self.written = 0

    async def commit(self, *ops: Op) -> list[Outcome]:
        if all(isinstance(op, RenewLease) for op in ops):
            return await self.backend.commit(*ops)
        self.written += 1
        due = self.written == self.number
        if due and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        outcomes = await self.backend.commit(*ops)
        if due and self.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)
