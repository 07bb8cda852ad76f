"""Interrupt code: cancel a coroutine at each of its awaits, or kill a process at a commit of its store."""

import asyncio
import os
import signal
import types
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from standfast.runtime.types import NOTICE_KIND
from standfast.store.backend import Backend
from standfast.store.operations import DeleteDocument, Op, OpResult, PutDocument, RenewLease

T = TypeVar("T")


class CancelMoment(Enum):
    """The moment of a cancellation at an await."""

    SUSPENDING = "as it begins to wait"
    # The race that loses items and locks: the awaited future is done, but the task has not resumed yet.
    WAKING = "as it is about to wake"


async def cancel_at_every_await(
    scenario: Callable[[], Coroutine[Any, Any, object]], *, check: Callable[[], object] = lambda: None
) -> int:
    """Run the scenario repeatedly, cancelling its task at the first await, then at the second, and so on.

    Each run must end cancelled, without remaining tasks; the cancellation must be neither swallowed nor uncancelled,
    and ``check`` must not raise AssertionError after it. Returns the number of awaits, so that a test can assert that
    there were any.
    """
    awaits = 0
    for moment in CancelMoment:
        at = 1
        while await _cancel_at(at, moment, scenario, check):
            awaits, at = max(awaits, at), at + 1
    return awaits


async def _cancel_at(
    at: int,
    moment: CancelMoment,
    scenario: Callable[[], Coroutine[Any, Any, object]],
    check: Callable[[], object],
) -> bool:
    cancelled_at: list[int] = []
    before = asyncio.all_tasks()
    task = asyncio.create_task(_run_and_cancel(scenario(), at, moment, cancelled_at), name=f"await {at} {moment.value}")
    await asyncio.wait({task})
    description = f"cancelled at await {at} {moment.value}"
    if cancelled_at:
        assert task.cancelled(), f"{description}, it ended with {task}"
        assert task.cancelling() == 1, f"{description}, {task.cancelling()} requests were outstanding at the end"
    else:
        task.result()
    remaining = asyncio.all_tasks() - before
    assert not remaining, f"{description}, it left {remaining}"
    try:
        check()
    except AssertionError as error:
        error.add_note(description if cancelled_at else "without a cancellation")
        raise
    return bool(cancelled_at)


async def _run_and_cancel(work: Coroutine[Any, Any, T], at: int, moment: CancelMoment, cancelled_at: list[int]) -> T:
    return await _drive_and_cancel(work, at, moment, cancelled_at)


@types.coroutine
def _drive_and_cancel(
    work: Coroutine[Any, Any, T], at: int, moment: CancelMoment, cancelled_at: list[int]
) -> Generator[Any, Any, T]:
    task = asyncio.current_task()
    assert task is not None
    step: Callable[[], Any] = partial(work.send, None)
    awaits = 0
    while True:
        try:
            awaited = step()
        except StopIteration as stop:
            result: T = stop.value
            return result
        awaits += 1
        if awaits == at:
            cancelled_at.append(at)
            if awaited is None or moment is CancelMoment.SUSPENDING:
                task.cancel()
            else:
                # Added before the callback of the task, and therefore called before it.
                awaited.add_done_callback(lambda _: task.cancel())
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
            step = partial(work.throw, error)


class CrashingBackend:
    """A backend whose process is killed (SIGKILL) around its n-th commit.

    ``point`` is ``before:n`` or ``after:n``, counted from 1; with an empty string the process is not killed. Renewals
    of leases and the notices of runtimes depend on the clock and are not counted. Open a runtime on
    ``Store(CrashingBackend(backend, point))`` in its own process. ``commit_count`` is the number of commits so far.
    """

    def __init__(self, backend: Backend, point: str = "") -> None:
        self.backend = backend
        self.indexes_words, self.location = backend.indexes_words, backend.location
        when, _, number = point.partition(":")
        if point and (when not in ("before", "after") or not number.isdigit()):
            raise ValueError(f"point must be 'before:n' or 'after:n', not {point!r}")
        self.crash_timing, self.crash_commit = when, int(number or 0)
        self.commit_count = 0

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Commit, or crash if this is the commit to crash at."""
        if all(depends_on_clock(op) for op in ops):
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


def depends_on_clock(op: Op) -> bool:
    is_notice = isinstance(op, PutDocument | DeleteDocument) and op.kind == NOTICE_KIND
    return is_notice or isinstance(op, RenewLease)
