"""What every part of a session stands on: its state, its worker, and whether that can be used."""

import asyncio
import time
from typing import Any

from standfast.base.errors import Closed
from standfast.lifecycle.state_machine import IllegalTransition, StateMachine
from standfast.workers._host.launcher import WorkerResources
from standfast.workers._host.router import MessageRouter
from standfast.workers.config import SessionConfig
from standfast.workers.errors import Cause, WorkerDied
from standfast.workers.files import Files
from standfast.workers.interceptors import Interceptors
from standfast.workers.state import TABLE, SessionState, WorkerSessionEvent
from standfast.workers.wire import messages as m

UNSET: Any = object()
_USABLE_STATES = (SessionState.READY, SessionState.BUSY, SessionState.IDLE)


class QueuedExecution:
    """Code whose turn has not come."""

    is_cancelled = False

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout

    def cancel(self) -> None:
        self.is_cancelled = True
        if not self.timeout.expired():
            self.timeout.reschedule(0.0)


class WorkerSessionBase:
    def __init__(self, config: SessionConfig | None = None, *, session_id: str | None = None) -> None:
        self.config = config or SessionConfig()
        self.session_id = session_id or m.new_id()
        self._machine = StateMachine(TABLE)
        self.metadata: dict[str, Any] = {}
        self.metrics = {"cancel_event_triggers": 0, "executions_cancelled": 0}
        self.interceptors = Interceptors(budget=self.config.interceptor_budget, strikes=self.config.interceptor_strikes)
        self.files = Files(self._get_directory)
        self._created_at = self._last_used_at = time.time()
        self._executions = self._errors = 0
        self._last_heartbeat: m.HeartbeatMessage | None = None
        self._execution_lock = asyncio.Lock()
        self._lifecycle_lock = asyncio.Lock()
        self._close_task: asyncio.Task[None] | None = None
        self._launch_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready: asyncio.Future[None] | None = None
        self._resources: WorkerResources | None = None
        self._previous_directory: int | None = None
        self._router: MessageRouter | None = None
        self._exit_cause: Cause | None = None
        self._waiting = 0
        self._queued_executions: dict[str, QueuedExecution] = {}
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._memory_timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> SessionState:
        return self._machine.state

    def _fire(self, event: WorkerSessionEvent) -> None:
        try:
            self._machine.fire(event)
        except IllegalTransition as problem:
            raise Closed(f"a session that is {self.state.value} cannot have {event.value}") from problem

    def _require_router(self) -> MessageRouter:
        state = self._machine.state
        usable = state in _USABLE_STATES
        if not usable and state is SessionState.WARMING and self._lifecycle_lock.locked():
            usable = self._ready is not None and self._ready.done()
        if usable and self._router is not None:
            return self._router
        if state is SessionState.ERROR and self._exit_cause is not None:
            raise WorkerDied(self._exit_cause)
        raise Closed(f"a session that is {state.value} runs no code")

    async def restart(self) -> None:
        """A new worker for the same session."""
        raise NotImplementedError

    def _increment_metric(self, name: str) -> None:
        if self.config.enable_metrics:
            self.metrics[name] += 1

    async def _request_when_idle(
        self, message: m.Message, *, fds: tuple[int, ...] = (), router: MessageRouter | None = None
    ) -> m.Message:
        """A request that must not meet running code: it queues with the executions."""
        self._require_router()
        self._waiting += 1
        try:
            await self._execution_lock.acquire()
        finally:
            self._waiting -= 1
        try:
            return await (router or self._require_router()).request(message, fds=fds)
        finally:
            self._execution_lock.release()

    def _get_directory(self) -> tuple[int, str | None]:
        if self._resources is None or self._resources.process_group.directory_fd is None:
            raise Closed("the session has no directory: its worker is gone")
        return self._resources.process_group.directory_fd, self.config.workdir

    def _create_task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
