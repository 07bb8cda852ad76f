"""A pool of warm workers. A session has one owner in its life: after its lease it is ended, never reused."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from holdfast.base.errors import Closed
from holdfast.workers.errors import PoolBroken, PoolExhausted, WorkerError
from holdfast.workers.session import WorkerSession
from holdfast.workers.stocking import PoolBase


class SessionPool(PoolBase):
    """``async with SessionPool(config) as pool: async with pool.acquire() as session: ...``"""

    # -- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the fork-server and the first workers; returns when ``min_idle`` are ready or failing."""
        if self._draining or self._started:
            raise Closed("a pool is started once")
        self._started = True
        self._reconcile()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._create_task(self._run_health_checks())

    async def close(self) -> None:
        """Drain: nobody waits any longer, leases get ``drain_timeout`` to come back, then everything ends."""
        self._draining = True
        for tell in self._close_callbacks:
            tell()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(Closed("the pool is closed"))
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._reconcile()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_timeout):
                while self._leased:
                    self._lease_released.clear()
                    await self._lease_released.wait()
        await asyncio.gather(*(session.terminate() for session in list(self._leased.values())))
        self._leased.clear()
        for task in list(self._tasks):
            if task.get_name() != "retire":
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reconcile()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server_stack.aclose()

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Whoever keeps leases between uses is told when the pool begins to stop, and gives them back."""
        self._close_callbacks.append(callback)

    # -- leasing

    @property
    def is_full(self) -> bool:
        """Whether a lease would have to wait until another one ends."""
        view = self._get_status()
        free = len(view.idle) + view.starting - view.waiting
        return free <= 0 and view.total >= self.config.max_sessions

    @asynccontextmanager
    async def acquire(self, timeout: float | None = None) -> AsyncIterator[WorkerSession]:
        """A session of one's own until the block ends. Callers are served in order.

        PoolExhausted when none was free in time or too many wait, PoolBroken while workers will not start.
        """
        session = await self.lease(timeout)
        try:
            yield session
        finally:
            self.release(session)

    async def lease(self, timeout: float | None = None) -> WorkerSession:
        """As ``acquire``, for callers who keep the session beyond a block; give it back with ``release``."""
        started = time.monotonic()
        self.metrics["acquisition_attempts"] += 1
        if self._draining or not self._started:
            raise Closed("the pool is closed" if self._draining else "the pool was not started")
        self._check_capacity()
        waiter: asyncio.Future[WorkerSession] = asyncio.get_running_loop().create_future()
        self.metrics["pool_hits" if self._idle else "pool_misses"] += 1
        self._waiters.append(waiter)
        self._reconcile()
        try:
            if not waiter.done():
                async with asyncio.timeout(timeout):
                    await waiter
        except TimeoutError as late:
            if waiter.cancelled() or not waiter.done():
                self.metrics["acquisition_timeouts"] += 1
                raise PoolExhausted(f"no session was free within {timeout} s") from late
        except asyncio.CancelledError:
            # A session given at that very moment is not lost.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
        self.metrics["acquisition_success"] += 1
        self.metrics["acquisition_microseconds"] += int((time.monotonic() - started) * 1e6)
        return waiter.result()

    def _check_capacity(self) -> None:
        blocked = self._breaker.get_retry_delay(time.monotonic())
        if blocked and not self._idle:
            raise PoolBroken(blocked, self._breaker.last_error)
        waiting = sum(not waiter.done() for waiter in self._waiters)
        if waiting >= self.config.max_waiting and len(self._idle) <= waiting:
            self.metrics["acquisition_refused"] += 1
            raise PoolExhausted(f"{waiting} callers wait already")

    def release(self, session: WorkerSession) -> None:
        """Give a session back; it ends. A foreign or a second release is an error."""
        if self._leased.pop(session.session_id, None) is None:
            raise WorkerError("this session is not leased from this pool")
        self.metrics["sessions_released"] += 1
        self._retire(session)
        self._lease_released.set()
        self._reconcile()

    def info(self) -> dict[str, Any]:
        """Counts and counters, for people and exporters."""
        view = self._get_status()
        return {
            "idle": len(view.idle),
            "starting": view.starting,
            "leased": view.leased,
            "waiting": view.waiting,
            "breaker": {"failures": self._breaker.failures, "blocked_for": view.retry_after},
            "metrics": dict(self.metrics),
        }
