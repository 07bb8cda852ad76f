"""Several calls at the same time, none of which can take the results of another with it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class NotStarted(Exception):
    """The work was not begun, because other work had failed or everything was cancelled before its turn came."""


async def run_all(
    work: Sequence[Callable[[], Awaitable[T]]], *, limit: int | None = None
) -> tuple[list[T | BaseException], asyncio.CancelledError | None]:
    """What each piece of work came to, in order: its result or its error; at most ``limit`` at a time.

    After an error nothing more is begun, but what is under way may end. When the caller is cancelled, so is all that
    is under way; what had ended by then is kept, and the cancellation is returned for the caller to raise later.
    """
    if len(work) == 1:
        try:
            return [await work[0]()], None
        except asyncio.CancelledError as cancelled:
            return [cancelled], cancelled
        except Exception as error:  # noqa: BLE001 - it is given back
            return [error], None
    turns = asyncio.Semaphore(limit or len(work))
    stopped = False

    async def one(begin: Callable[[], Awaitable[T]]) -> T:
        nonlocal stopped
        async with turns:
            if stopped:
                raise NotStarted
            try:
                return await begin()
            except BaseException:
                stopped = True
                raise

    tasks = [asyncio.ensure_future(one(begin)) for begin in work]
    told = await _wait_all(tasks)
    results: list[T | BaseException] = [_get_result(task) for task in tasks]
    return results, told


async def _wait_all(tasks: Sequence["asyncio.Task[T]"]) -> asyncio.CancelledError | None:
    cancelled = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as told:
            cancelled = cancelled or told
            for task in tasks:
                task.cancel()
    return cancelled


def _get_result(task: "asyncio.Task[T]") -> T | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error
