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
from holdfast.workers.plan import Breaker, Give, Idle, Retire, View, decide
from holdfast.workers.servers import fork_server
from holdfast.workers.session import WorkerSession

_HEALTH_TIMEOUT = 2.0

_log = logging.getLogger("holdfast.workers")


@dataclass
class _Stocked:
    session: WorkerSession
    started: float
    rested: float
    memory: int = 0


class Stocking:
    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        self.metrics: collections.Counter[str] = collections.Counter()
        self._stock: dict[str, _Stocked] = {}
        self._leased: dict[str, WorkerSession] = {}
        self._leased_memory = 0
        self._starting = 0
        self._waiters: collections.deque[asyncio.Future[WorkerSession]] = collections.deque()
        self._breaker = Breaker()
        self._draining = False
        self._opened = False
        self._returned = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: ForkServer | None = None
        self._server_stack = AsyncExitStack()
        self._server_lock = asyncio.Lock()
        self._retry: asyncio.TimerHandle | None = None
        self._holders: list[Callable[[], None]] = []

    def _view(self) -> View:
        now = time.monotonic()
        idle = tuple(
            Idle(key, item.session.is_alive, now - item.started, now - item.rested, item.memory)
            for key, item in self._stock.items()
        )
        waiting = sum(not waiter.done() for waiter in self._waiters)
        return View(
            idle,
            self._starting,
            len(self._leased),
            waiting,
            self._leased_memory,
            self._breaker.blocked(now),
            self._draining,
        )

    def _adjust(self) -> None:
        for action in decide(self.config, self._view()):
            match action:
                case Give(id=key):
                    self._give(self._stock.pop(key).session)
                case Retire(id=key, reason=reason):
                    self.metrics[f"retired_{reason}"] += 1
                    self._retire(self._stock.pop(key).session)
                case _:
                    self._starting += action.count
                    for _ in range(action.count):
                        self._spawn(self._start_one())

    def _give(self, session: WorkerSession) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._leased[session.session_id] = session
                waiter.set_result(session)
                return
        self._shelve(session)

    def _shelve(self, session: WorkerSession) -> None:
        session.rest()
        now = time.monotonic()
        self._stock[session.session_id] = _Stocked(session, now, now)

    async def _start_one(self) -> None:
        session = WorkerSession(self.config.session)
        try:
            await self._hold_server()
            await session.start()
        except Exception as problem:  # noqa: BLE001 - counted; waiting callers are told by the breaker
            self._starting -= 1
            self.metrics["start_failures"] += 1
            self._breaker = self._breaker.failed(self.config, time.monotonic(), str(problem))
            await session.terminate()
            self._broke()
        except BaseException:
            self._starting -= 1
            await session.terminate()
            raise
        else:
            self._starting -= 1
            self.metrics["sessions_created"] += 1
            self._breaker = self._breaker.succeeded()
            if self._draining:
                await session.terminate()
            else:
                self._shelve(session)
                self._adjust()

    def _broke(self) -> None:
        blocked = self._breaker.blocked(time.monotonic())
        if blocked:
            _log.warning("workers do not start: %s", self._breaker.last)
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(PoolBroken(blocked, self._breaker.last))
        if not self._draining:
            loop = asyncio.get_running_loop()
            if self._retry is not None:
                self._retry.cancel()
            self._retry = loop.call_later(blocked, self._adjust)

    async def _hold_server(self) -> None:
        """Keep the fork-server up between sessions; a dead one is replaced. Sessions know what to do without one."""
        if self.config.session.mode == "spawn":
            return
        async with self._server_lock:
            if self._server is None or not self._server.alive:
                await self._server_stack.aclose()
                self._server = None
                self._server_stack = AsyncExitStack()
                with contextlib.suppress(StartFailed):
                    self._server = await self._server_stack.enter_async_context(fork_server(self.config.session))

    def _retire(self, session: WorkerSession) -> None:
        self.metrics["sessions_removed"] += 1
        self._spawn(session.terminate(), name="retire")

    # -- health

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.config.health_check_interval)
            await self.check_health()

    async def check_health(self) -> None:
        """Look at every idle session, measure memory, and act on it."""
        self.metrics["health_check_runs"] += 1
        items = list(self._stock.values())
        await asyncio.gather(*(self._examine(item) for item in items))
        self._leased_memory = sum(session.usage().pss for session in self._leased.values())
        self._adjust()

    async def _examine(self, item: _Stocked) -> None:
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT):
                await item.session.heartbeat()
            item.memory = item.session.usage().pss
        except (TimeoutError, WorkerError, Closed):
            self.metrics["health_check_failures"] += 1
            if self._stock.pop(item.session.session_id, None) is not None:
                self._retire(item.session)

    def _spawn(self, work: Any, *, name: str | None = None) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
