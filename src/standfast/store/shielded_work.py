"""Writes that continue when their callers are cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

ABANDONED_COMMIT_TIMEOUT = 10.0
"""Seconds that a commit waits at most for earlier ones whose callers were cancelled."""


class ShieldedWork:
    """The tasks of a store. One whose caller was cancelled is abandoned: it continues, and later commits wait."""

    def __init__(self) -> None:
        self.pending_tasks: set[asyncio.Task[Any]] = set()
        self.abandoned_tasks: set[asyncio.Task[Any]] = set()

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in a task of its own.

        If the caller is cancelled, the work continues in the background; see :meth:`wait_for_abandoned`.
        """
        task = asyncio.get_running_loop().create_task(work)
        self.track(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self.abandoned_tasks.add(task)
            raise

    async def run_detached(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in a task of its own, which is cancelled with its caller, but only once.

        A program that cancels its tasks at every await, as web frameworks do, thus does not disturb how the work
        releases what it holds.
        """
        task = asyncio.get_running_loop().create_task(work)
        self.track(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def wait_for_abandoned(self) -> None:
        """Wait for work of cancelled callers, so that a later commit does not overtake it."""
        if self.abandoned_tasks:
            await asyncio.wait(self.abandoned_tasks, timeout=ABANDONED_COMMIT_TIMEOUT)

    async def finish(self, *, timeout: float) -> None:
        """Wait for all tasks; cancel them after ``timeout`` seconds."""
        if self.pending_tasks:
            _, late = await asyncio.wait(self.pending_tasks, timeout=timeout)
            for task in late:
                task.cancel()

    def track(self, task: asyncio.Task[Any]) -> None:
        self.pending_tasks.add(task)
        task.add_done_callback(self.untrack)

    def untrack(self, task: asyncio.Task[Any]) -> None:
        self.pending_tasks.discard(task)
        self.abandoned_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: the caller may have been cancelled
