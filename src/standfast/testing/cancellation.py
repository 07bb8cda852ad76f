"""Cancel a piece of work wherever it can be cancelled."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class CancelMoment(Enum):
    """When a cancellation strikes at an await."""

    SUSPENDING = "as it begins to wait"
    # The race that loses items and locks: what it waits for has come, but it has not run yet.
    WAKING = "as it is about to wake"


async def cancel_at_every_await(
    scenario: Callable[[], Coroutine[Any, Any, object]], *, check: Callable[[], object] = lambda: None
) -> int:
    """Run the scenario again and again, cancelling its task at the first await, then the second, and so on.

    Each run must end cancelled, with no task left over, the cancellation neither swallowed nor counted
    away, and ``check`` must find nothing wrong after it. Gives the number of awaits, so that a test can
    assert that it tested something.
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
    struck: list[int] = []
    before = asyncio.all_tasks()
    task = asyncio.create_task(_run_and_cancel(scenario(), at, moment, struck), name=f"await {at} {moment.value}")
    await asyncio.wait({task})
    where = f"cancelled at await {at} {moment.value}"
    if struck:
        assert task.cancelled(), f"{where}, it ended with {task}"
        assert task.cancelling() == 1, f"{where}, {task.cancelling()} requests were outstanding at the end"
    else:
        task.result()
    left = asyncio.all_tasks() - before
    assert not left, f"{where}, it left {left}"
    try:
        check()
    except AssertionError as error:
        error.add_note(where if struck else "not cancelled at all")
        raise
    return bool(struck)


async def _run_and_cancel(work: Coroutine[Any, Any, T], at: int, moment: CancelMoment, cancelled_at: list[int]) -> T:
    return await _drive_and_cancel(work, at, moment, cancelled_at)


@types.coroutine
def _drive_and_cancel(
    work: Coroutine[Any, Any, T], at: int, moment: CancelMoment, cancelled_at: list[int]
) -> Generator[Any, Any, T]:
    task = asyncio.current_task()
    assert task is not None
    step: Callable[[], Any] = partial(work.send, None)
    seen = 0
    while True:
        try:
            waiting = step()
        except StopIteration as stop:
            result: T = stop.value
            return result
        seen += 1
        if seen == at:
            cancelled_at.append(at)
            if waiting is None or moment is CancelMoment.SUSPENDING:
                task.cancel()
            else:
                # Added before the task's own callback, and therefore called before it.
                waiting.add_done_callback(lambda _: task.cancel())
        try:
            step = partial(work.send, (yield waiting))
        except BaseException as error:  # noqa: BLE001 - it is thrown on
            step = partial(work.throw, error)
