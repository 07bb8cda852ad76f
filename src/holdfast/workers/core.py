"""What every part of a session stands on: its state, its worker, and whether that can be used."""

import asyncio
import time
from typing import Any

from holdfast.base.errors import Closed
from holdfast.lifecycle.machine import IllegalTransition, Machine
from holdfast.workers.birth import Home
from holdfast.workers.config import SessionConfig
from holdfast.workers.errors import Cause, WorkerDied
from holdfast.workers.files import Files
from holdfast.workers.interceptors import Interceptors
from holdfast.workers.states import TABLE, Event, SessionState
from holdfast.workers.talking import Conversation
from holdfast.workers.wire import messages as m

UNSET: Any = object()
_USABLE = (SessionState.READY, SessionState.BUSY, SessionState.IDLE)


class Queued:
    """Code whose turn has not come."""

    withdrawn = False

    def __init__(self, patience: asyncio.Timeout) -> None:
        self.patience = patience

    def withdraw(self) -> None:
        self.withdrawn = True
        if not self.patience.expired():
            self.patience.reschedule(0.0)


class SessionCore:
    def __init__(self, config: SessionConfig | None = None, *, session_id: str | None = None) -> None:
        self.config = config or SessionConfig()
        self.session_id = session_id or m.new_id()
        self._machine = Machine(TABLE)
        self.metadata: dict[str, Any] = {}
        self.metrics = {"cancel_event_triggers": 0, "executions_cancelled": 0}
        self.interceptors = Interceptors(budget=self.config.interceptor_budget, strikes=self.config.interceptor_strikes)
        self.files = Files(self._directory)
        self._created_at = self._last_used_at = time.time()
        self._executions = self._errors = 0
        self._heartbeat: m.HeartbeatMessage | None = None
        self._turn = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._birth: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._greeted: asyncio.Future[None] | None = None
        self._home: Home | None = None
        self._carried: int | None = None
        self._talk: Conversation | None = None
        self._cause: Cause | None = None
        self._waiting = 0
        self._queued: dict[str, Queued] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None

    @property
    def state(self) -> SessionState:
        return self._machine.state

    def _apply(self, event: Event) -> None:
        try:
            self._machine.fire(event)
        except IllegalTransition as problem:
            raise Closed(f"a session that is {self.state.value} cannot have {event.value}") from problem

    def _usable(self) -> Conversation:
        state = self._machine.state
        usable = state in _USABLE
        if not usable and state is SessionState.WARMING and self._changing.locked():
            usable = self._greeted is not None and self._greeted.done()
        if usable and self._talk is not None:
            return self._talk
        if state is SessionState.ERROR and self._cause is not None:
            raise WorkerDied(self._cause)
        raise Closed(f"a session that is {state.value} runs no code")

    async def restart(self) -> None:
        """A new worker for the same session."""
        raise NotImplementedError

    def _count(self, name: str) -> None:
        if self.config.enable_metrics:
            self.metrics[name] += 1

    async def _between(
        self, message: m.Message, *, fds: tuple[int, ...] = (), talk: Conversation | None = None
    ) -> m.Message:
        """A request that must not meet running code: it queues with the executions."""
        self._usable()
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            return await (talk or self._usable()).request(message, fds=fds)
        finally:
            self._turn.release()

    def _directory(self) -> tuple[int, str | None]:
        if self._home is None or self._home.family.directory is None:
            raise Closed("the session has no directory: its worker is gone")
        return self._home.family.directory, self.config.workdir

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
