"""Test cancellation at every await of a coroutine."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from functools import partial
from typing import Any, TypeVar

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
