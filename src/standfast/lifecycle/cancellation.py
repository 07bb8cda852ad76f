"""Cancellation: work that must finish although its caller is cancelled, and whether the current task is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(
    work: Coroutine[Any, Any, T], *, grace: float | None, on_cancel: Callable[[], object] | None = None
) -> T:
    """Run ``work`` in its own task, and return or raise only after it has ended.

    When the caller is cancelled, ``on_cancel`` is called, and the work is cancelled once after ``grace`` seconds, or
    never if ``grace`` is ``None``. Its clean-up is not interrupted by further cancellations, so the work must bound
    that itself. The caller's cancellation is raised when the work has ended, with the work's error as its cause.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError as cancelled:
        if on_cancel is not None:
            on_cancel()
        await _wait_until_done(task, timeout=grace)
        task.cancel()
        await _wait_until_done(task)
        raise cancelled from _get_exception(task)
    return task.result()


def is_cancelling() -> bool:
    """Return True if the current task was cancelled.

    If it was not, a ``CancelledError`` comes from work inside the task that was cancelled on its own.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _wait_until_done(task: "asyncio.Task[Any]", *, timeout: float | None = None) -> None:
    """Wait for the task to end, or for the timeout. Further cancellations are ignored: the first is raised later."""
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    while not task.done() and (until is None or loop.time() < until):
        try:
            await asyncio.wait({task}, timeout=None if until is None else max(until - loop.time(), 0))
        except asyncio.CancelledError:
            continue


def _get_exception(task: "asyncio.Task[Any]") -> BaseException | None:
    return None if task.cancelled() else task.exception()
