"""Kill a process at a chosen commit of its store, for tests of recovery."""

import os
import signal
from typing import Any

from standfast.store.backend import Backend
from standfast.store.operations import Op, OpResult, RenewLease


class CrashingBackend:
    """A backend whose process is killed (SIGKILL) around its n-th commit.

    ``point`` is ``before:n`` or ``after:n``, counted from 1; with an empty string the process is not killed. Renewals
    of leases depend on the clock and are not counted. Open a runtime on ``Store(CrashingBackend(backend, point))`` in
    its own process. ``commit_count`` is the number of commits so far.
    """

    def __init__(self, backend: Backend, point: str = "") -> None:
        self.backend = backend
        self.indexes_words = backend.indexes_words
        when, _, number = point.partition(":")
        if point and (when not in ("before", "after") or not number.isdigit()):
            raise ValueError(f"point must be 'before:n' or 'after:n', not {point!r}")
        self.crash_timing, self.crash_commit = when, int(number or 0)
        self.commit_count = 0

    async def commit(self, *ops: Op) -> list[OpResult]:
        if all(isinstance(op, RenewLease) for op in ops):
            return await self.backend.commit(*ops)
        self.commit_count += 1
        due = self.commit_count == self.crash_commit
        if due and self.crash_timing == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        outcomes = await self.backend.commit(*ops)
        if due and self.crash_timing == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)
