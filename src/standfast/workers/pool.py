"""A pool's stock of warm workers: how it is kept as the plan says, whatever happens to them."""

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import Closed
from holdfast.workers.config import PoolConfig
from holdfast.workers.errors import PoolBroken, StartFailed, WorkerError
from holdfast.workers.forkserver import ForkServer
from holdfast.workers.plan import AssignSession, CircuitBreaker, IdleSession, PoolStatus, RetireSession, plan_actions
from holdfast.workers.servers import fork_server
from holdfast.workers.session import WorkerSession

_HEALTH_TIMEOUT = 2.0

_log = logging.getLogger("holdfast.workers")


@dataclass
class _IdleEntry:
    session: WorkerSession
    started_at: float
    idle_since: float
    memory: int = 0


class PoolBase:
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
        self._server: ForkServer | None = None
        self._server_stack = AsyncExitStack()
        self._server_lock = asyncio.Lock()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._close_callbacks: list[Callable[[], None]] = []

    def _get_status(self) -> PoolStatus:
        now = time.monotonic()
        idle = tuple(
            IdleSession(key, item.session.is_alive, now - item.started_at, now - item.idle_since, item.memory)
            for key, item in self._idle.items()
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
        except Exception as problem:  # noqa: BLE001 - counted; waiting callers are told by the breaker
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
        blocked = self._breaker.get_retry_delay(time.monotonic())
        if blocked:
            _log.warning("workers do not start: %s", self._breaker.last_error)
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(PoolBroken(blocked, self._breaker.last_error))
        if not self._draining:
            loop = asyncio.get_running_loop()
            if self._retry_timer is not None:
                self._retry_timer.cancel()
            self._retry_timer = loop.call_later(blocked, self._reconcile)

    async def _ensure_fork_server(self) -> None:
        """Keep the fork-server up between sessions; a dead one is replaced. Sessions know what to do without one."""
        if self.config.session.mode == "spawn":
            return
        async with self._server_lock:
            if self._server is None or not self._server.is_alive:
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
        """Look at every idle session, measure memory, and act on it."""
        self.metrics["health_check_runs"] += 1
        items = list(self._idle.values())
        await asyncio.gather(*(self._check_session(item) for item in items))
        self._leased_memory = sum(session.usage().pss for session in self._leased.values())
        self._reconcile()

    async def _check_session(self, entry: _IdleEntry) -> None:
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT):
                await entry.session.heartbeat()
            entry.memory = entry.session.usage().pss
        except (TimeoutError, WorkerError, Closed):
            self.metrics["health_check_failures"] += 1
            if self._idle.pop(entry.session.session_id, None) is not None:
                self._retire(entry.session)

    def _create_task(self, coroutine: Any, *, name: str | None = None) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
