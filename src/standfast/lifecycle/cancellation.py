"""Who was cancelled, and work that must come to a proper end although its caller was."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(
    work: Coroutine[Any, Any, T], *, grace: float | None, on_cancel: Callable[[], object] | None = None
) -> T:
    """Run ``work`` in a task of its own and see it end before anything leaves this call.

    When the caller is cancelled, ``on_cancel`` is told, the work may go on for ``grace`` seconds, and then it is
    cancelled, once: what it does in answer to that (taking back, restoring) it can do in peace, so it has to bound
    that itself. With a ``grace`` of ``None`` it is not cancelled at all. The caller's cancellation is raised when
    the work has ended, with the work's error as its cause.
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
    """Whether somebody cancelled this task. Otherwise a cancellation is what became of some work inside of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _wait_until_done(task: "asyncio.Task[Any]", *, timeout: float | None = None) -> None:
    """Wait for the end, or for the time to be up. Further cancellations are heard already: the first is on its way."""
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    while not task.done() and (until is None or loop.time() < until):
        try:
            await asyncio.wait({task}, timeout=None if until is None else max(until - loop.time(), 0))
        except asyncio.CancelledError:
            continue


def _get_exception(task: "asyncio.Task[Any]") -> BaseException | None:
    return None if task.cancelled() else task.exception()
