"""A pool of warm worker sessions.

``pool_policy`` decides what to do from the status of the pool; this module does it.
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from standfast.base.errors import Closed
from standfast.base.log import get_logger
from standfast.workers._host.forkserver import ForkServer, fork_server
from standfast.workers.config import PoolConfig
from standfast.workers.errors import PoolBroken, PoolExhausted, StartFailed, WorkerError
from standfast.workers.pool_policy import (
    AssignSession,
    CircuitBreaker,
    IdleSession,
    PoolStatus,
    RetireSession,
    plan_actions,
)
from standfast.workers.results import SessionInfo
from standfast.workers.session import WorkerSession

_HEALTH_TIMEOUT = 2.0

_log = get_logger("standfast.workers")


@dataclass
class _IdleEntry:
    session: WorkerSession
    started_at: float
    idle_since: float
    memory: int = 0


class SessionPool:
    """``async with SessionPool(config) as pool: async with pool.acquire() as session: ...``

    A leased session belongs to one caller and is terminated on release, so no caller finds the state of another.
    """

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        self.metrics: collections.Counter[str] = collections.Counter()
        self._idle: dict[str, _IdleEntry] = {}
        self._leased: dict[str, WorkerSession] = {}
        self._leased_memory = 0
        self._starting = 0
        self._waiters: collections.deque[asyncio.Future[WorkerSession]] = collections.deque()
        self._breaker = CircuitBreaker()
        self._draining = False
        self._started = False
        self._lease_released = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._work: set[asyncio.Task[Any]] = set()
        self._server: ForkServer | None = None
        self._server_stack = AsyncExitStack()
        self._server_lock = asyncio.Lock()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._close_callbacks: list[Callable[[], None]] = []

    # -- life cycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the fork server and the first workers. Returns when ``min_idle`` of them are ready or have failed."""
        if self._draining or self._started:
            raise Closed("a pool can be started only once; create another one")
        self._started = True
        self._reconcile()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._create_task(self._run_health_checks())

    async def close(self) -> None:
        """Close the pool: waiting callers get Closed, leases get ``drain_timeout`` seconds, then all workers end.

        So does the work of :meth:`start_work`, which is cancelled then.
        """
        self._draining = True
        for callback in self._close_callbacks:
            callback()
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
                while self._work:
                    await asyncio.wait(self._work)
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
        """Call ``callback`` when the pool starts to close; it should release the sessions that it keeps."""
        self._close_callbacks.append(callback)

    def start_work(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        """Run ``work`` for a leased session, such as saving its variables. It ends before the pool is closed."""
        task: asyncio.Task[None] = self._create_task(work, name=name)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    # -- leasing

    @property
    def is_full(self) -> bool:
        """Whether the next lease has to wait for a release."""
        status = self._get_status()
        free = len(status.idle) + status.starting - status.waiting
        return free <= 0 and status.total >= self.config.max_sessions

    @asynccontextmanager
    async def acquire(self, timeout: float | None = None) -> AsyncIterator[WorkerSession]:
        """Lease a session until the block ends. Callers are served in order.

        Raises PoolExhausted when no session is free in time or too many callers wait, and PoolBroken while workers
        do not start.
        """
        session = await self.lease(timeout)
        try:
            yield session
        finally:
            self.release(session)

    def _check_open(self) -> None:
        if self._draining or not self._started:
            forgotten = "the pool was not started: use it in `async with pool:`, or await pool.start() first"
            raise Closed("the pool is closed" if self._draining else forgotten)

    async def lease(self, timeout: float | None = None) -> WorkerSession:
        """Lease a session as ``acquire`` does, until it is given to ``release``."""
        started = time.monotonic()
        self.metrics["acquisition_attempts"] += 1
        self._check_open()
        self._check_capacity()
        waiter: asyncio.Future[WorkerSession] = asyncio.get_running_loop().create_future()
        self.metrics["pool_hits" if self._idle else "pool_misses"] += 1
        self._waiters.append(waiter)
        self._reconcile()
        try:
            if not waiter.done():
                async with asyncio.timeout(timeout):
                    await waiter
        except TimeoutError as problem:
            if waiter.cancelled() or not waiter.done():
                self.metrics["acquisition_timeouts"] += 1
                raise PoolExhausted(f"no session became free within {timeout} s") from problem
        except asyncio.CancelledError:
            # A session may have been assigned in the moment of the cancellation; it must not be lost.
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
        delay = self._breaker.get_retry_delay(time.monotonic())
        if delay and not self._idle:
            raise PoolBroken(delay, self._breaker.last_error)
        waiting = sum(not waiter.done() for waiter in self._waiters)
        if waiting >= self.config.max_waiting and len(self._idle) <= waiting:
            self.metrics["acquisition_refused"] += 1
            raise PoolExhausted(f"{waiting} callers are already waiting; the limit is {self.config.max_waiting}")

    def release(self, session: WorkerSession) -> None:
        """Give a leased session back, which terminates it. Raises WorkerError when it is not leased from this pool."""
        if self._leased.pop(session.session_id, None) is None:
            raise WorkerError(f"session {session.session_id} is not leased from this pool")
        self.metrics["sessions_released"] += 1
        self._retire(session)
        self._lease_released.set()
        self._reconcile()

    def info(self) -> dict[str, Any]:
        """Return the number of sessions in each state, the circuit breaker and the metrics."""
        status = self._get_status()
        return {
            "idle": len(status.idle),
            "starting": status.starting,
            "leased": status.leased,
            "waiting": status.waiting,
            "breaker": {"failures": self._breaker.failures, "blocked_for": status.retry_after},
            "metrics": dict(self.metrics),
        }

    def list_sessions(self) -> list[tuple[str, SessionInfo]]:
        """Return the sessions of the pool, each as ``"idle"`` or ``"leased"`` with its state and counters."""
        idle = [("idle", entry.session.info) for entry in self._idle.values()]
        return [*idle, *(("leased", session.info) for session in self._leased.values())]

    # -- assigning, starting and retiring

    def _get_status(self) -> PoolStatus:
        now = time.monotonic()
        idle = tuple(
            IdleSession(key, entry.session.is_alive, now - entry.started_at, now - entry.idle_since, entry.memory)
            for key, entry in self._idle.items()
        )
        waiting = sum(not waiter.done() for waiter in self._waiters)
        return PoolStatus(
            idle,
            self._starting,
            len(self._leased),
            waiting,
            self._leased_memory,
            self._breaker.get_retry_delay(now),
            self._draining,
        )

    def _reconcile(self) -> None:
        for action in plan_actions(self.config, self._get_status()):
            match action:
                case AssignSession(id=key):
                    self._assign(self._idle.pop(key).session)
                case RetireSession(id=key, reason=reason):
                    self.metrics[f"retired_{reason}"] += 1
                    self._retire(self._idle.pop(key).session)
                case _:
                    self._starting += action.count
                    for _ in range(action.count):
                        self._create_task(self._start_session())

    def _assign(self, session: WorkerSession) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._leased[session.session_id] = session
                waiter.set_result(session)
                return
        self._add_idle(session)

    def _add_idle(self, session: WorkerSession) -> None:
        session.mark_idle()
        now = time.monotonic()
        self._idle[session.session_id] = _IdleEntry(session, now, now)

    async def _start_session(self) -> None:
        session = WorkerSession(self.config.session)
        try:
            await self._ensure_fork_server()
            await session.start()
        except Exception as problem:  # noqa: BLE001 - counted; the breaker reports it to waiting callers
            self._starting -= 1
            self.metrics["start_failures"] += 1
            self._breaker = self._breaker.record_failure(self.config, time.monotonic(), str(problem))
            await session.terminate()
            self._handle_start_failure()
        except BaseException:
            self._starting -= 1
            await session.terminate()
            raise
        else:
            self._starting -= 1
            self.metrics["sessions_created"] += 1
            self._breaker = self._breaker.record_success()
            if self._draining:
                await session.terminate()
            else:
                self._add_idle(session)
                self._reconcile()

    def _handle_start_failure(self) -> None:
        delay = self._breaker.get_retry_delay(time.monotonic())
        if delay:
            _log.warning("workers fail to start: %s", self._breaker.last_error)
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(PoolBroken(delay, self._breaker.last_error))
        if not self._draining:
            loop = asyncio.get_running_loop()
            if self._retry_timer is not None:
                self._retry_timer.cancel()
            self._retry_timer = loop.call_later(delay, self._reconcile)

    async def _ensure_fork_server(self) -> None:
        """Keep the fork server running between sessions, and replace one that is dead or whose workers fail to start.

        Without a fork server, a session starts its own process.
        """
        if self.config.session.mode == "spawn":
            return
        async with self._server_lock:
            if self._server is None or not self._server.accepts_sessions:
                await self._server_stack.aclose()
                self._server = None
                self._server_stack = AsyncExitStack()
                with contextlib.suppress(StartFailed):
                    self._server = await self._server_stack.enter_async_context(fork_server(self.config.session))

    def _retire(self, session: WorkerSession) -> None:
        self.metrics["sessions_removed"] += 1
        self._create_task(session.terminate(), name="retire")

    # -- health

    async def _run_health_checks(self) -> None:
        while True:
            await asyncio.sleep(self.config.health_check_interval)
            await self.check_health()

    async def check_health(self) -> None:
        """Check that every idle session answers, measure memory, and retire and start sessions accordingly."""
        self.metrics["health_check_runs"] += 1
        entries = list(self._idle.values())
        await asyncio.gather(*(self._check_session(entry) for entry in entries))
        self._leased_memory = sum(session.usage().memory for session in self._leased.values())
        self._reconcile()

    async def _check_session(self, entry: _IdleEntry) -> None:
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT):
                await entry.session.heartbeat()
            entry.memory = entry.session.usage().memory
        except (TimeoutError, WorkerError, Closed):
            self.metrics["health_check_failures"] += 1
            if self._idle.pop(entry.session.session_id, None) is not None:
                self._retire(entry.session)

    def _create_task(self, coroutine: Any, *, name: str | None = None) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
