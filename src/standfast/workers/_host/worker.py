"""The worker behind a session: its process, its connection and the state of the session.

A session has one ``Worker`` object. A restart replaces the process, the router and the resources inside
it. The executor, the inspector and the snapshots reach the process through ``require_router``.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, cast

from standfast.base.errors import Closed
from standfast.lifecycle.scope import run_to_end
from standfast.lifecycle.state_machine import IllegalTransition, StateMachine
from standfast.workers._host.connection import WorkerConnection
from standfast.workers._host.launcher import WorkerResources, start_worker
from standfast.workers._host.resource_watch import ResourceWatch
from standfast.workers._host.router import MessageRouter
from standfast.workers.captures import Capture
from standfast.workers.config import SessionConfig
from standfast.workers.errors import Cause, WorkerDied
from standfast.workers.files import copy_work_directory
from standfast.workers.interceptors import Interceptors
from standfast.workers.state import TABLE, SessionState, WorkerSessionEvent
from standfast.workers.wire import messages as m

_KILL_TIMEOUT = 5.0
_USABLE_STATES = (SessionState.READY, SessionState.BUSY, SessionState.IDLE)


class Worker:
    """The current worker process of a session, its connection, and the state of the session."""

    def __init__(self, config: SessionConfig, session_id: str, *, interceptors: Interceptors) -> None:
        self.config, self.session_id = config, session_id
        self.created_at = time.time()
        self.metadata: dict[str, Any] = {}
        self.router: MessageRouter | None = None
        self.resources: WorkerResources | None = None
        self.resource_watch: ResourceWatch | None = None
        self.snapshot_points: list[str] = []
        self.captures: dict[str, Capture] = {}
        self.shared_files: set[tuple[int, int]] = set()
        """The memory files of the host that the process has mapped: they are not its own memory."""
        self.exit_cause: Cause | None = None
        self.last_heartbeat: m.HeartbeatMessage | None = None
        self._interceptors = interceptors
        self._machine = StateMachine(TABLE)
        self._ready: asyncio.Future[None] | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- state

    @property
    def state(self) -> SessionState:
        return self._machine.state

    def allows(self, event: WorkerSessionEvent) -> bool:
        return self._machine.allows(event)

    def fire(self, event: WorkerSessionEvent) -> None:
        """Record an event of the life cycle. Raises Closed when the current state does not allow it."""
        try:
            self._machine.fire(event)
        except IllegalTransition as problem:
            raise Closed(f"a session in state {self.state.value!r} does not allow: {event.value}") from problem

    @property
    def is_alive(self) -> bool:
        return self.state in _USABLE_STATES and self.router is not None and self.router.cause is None

    def require_router(self) -> MessageRouter:
        """Return the router of a worker that can be used. Raises Closed or WorkerDied otherwise."""
        state = self._machine.state
        usable = state in _USABLE_STATES
        if not usable and state is SessionState.WARMING:
            # The warm-up code runs now, and further callers may queue behind it.
            usable = self._ready is not None and self._ready.done()
        if usable and self.router is not None:
            return self.router
        if state is SessionState.ERROR and self.exit_cause is not None:
            raise WorkerDied(self.exit_cause)
        if state is SessionState.CREATING:
            raise Closed("the session was not started: use it in `async with session:`, or await session.start() first")
        raise Closed(f"a session in state {state.value!r} cannot run code")

    def create_task(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in a task that ends with this worker at the latest."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- process

    async def launch(self, previous_directory: int | None = None) -> None:
        """Start a process and wait until it is ready.

        ``previous_directory`` is the open session directory of the process before it, whose files are copied.
        """
        router, ready = self.open_router()
        resources, connection = await start_worker(self.config, self.session_id, router)
        self.attach(resources, connection)
        try:
            await ready
        except WorkerDied:
            resources.server.retire()
            raise
        self._record_start(resources)
        directory = resources.process_group.directory_fd
        if previous_directory is not None and directory is not None:
            self.metadata["left_behind"] = await copy_work_directory(previous_directory, directory)

    def open_router(self) -> tuple[MessageRouter, "asyncio.Future[None]"]:
        """Make the router for a new process, and the future that is resolved when the process is ready."""
        self.exit_cause = None
        self._ready = asyncio.get_running_loop().create_future()
        self.router = MessageRouter(
            self.config,
            interceptors=self._interceptors,
            on_session_message=self._on_session_message,
            on_worker_exit=self._on_worker_exit,
        )
        return self.router, self._ready

    def attach(self, resources: WorkerResources, connection: WorkerConnection) -> None:
        """Connect the router from ``open_router`` to its process. ``tear_down`` releases the resources."""
        router = cast(MessageRouter, self.router)
        router.connection, self.resources = connection, resources
        self.snapshot_points.clear()
        self.shared_files.clear()
        self.resource_watch = ResourceWatch(
            self.config.sandbox,
            resources.process_group,
            router,
            create_task=self.create_task,
            captures=self.captures,
            shared_files=self.shared_files,
        )

    async def tear_down(self, reason: Cause) -> None:
        """Kill the process and release everything it used, also when the caller is cancelled meanwhile."""
        await run_to_end(self._tear_down(reason), grace=None)

    async def _tear_down(self, reason: Cause) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        if self.resource_watch is not None:
            self.resource_watch.stop()
        router, resources, self.resources = self.router, self.resources, None
        if router is not None and router.connection is not None:
            router.connection.kill(reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_TIMEOUT):
                    await asyncio.shield(router.connection.exit_future)
            if router.cause is None:
                router.on_exit(reason)
            if resources is not None:
                await resources.release(router.connection)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def describe_last_error(self) -> str:
        """Return the last error that the process reported, as the end of a sentence, or an empty string."""
        last = self.router.general_queue.pop_oldest(m.ErrorMessage) if self.router is not None else None
        return f": {cast(m.ErrorMessage, last).exception_message}" if last is not None else ""

    def _record_start(self, resources: WorkerResources) -> None:
        self.metadata |= {
            "mode": "spawn" if resources.fallback_reason else self.config.mode,
            "sandbox": resources.sandbox.level,
            "sandbox_notes": (
                *resources.server_info.notes,
                *resources.process_group.cgroups.notes,
                *self._describe_uncounted_memory(resources),
                *self.metadata.pop("notes", ()),
            ),
            "start_notes": (resources.fallback_reason,) if resources.fallback_reason else (),
            "preloaded": dict(resources.server_info.preloaded),
            "preload_failed": dict(resources.server_info.failed),
        }

    def _describe_uncounted_memory(self, resources: WorkerResources) -> tuple[str, ...]:
        if self.config.sandbox.memory_mb is None or resources.process_group.cgroups.limits_memory:
            return ()
        return (
            "the memory that the kernel holds for sockets, pipes, locks and mappings, and shared memory that is only "
            "partly mapped, is not limited: that needs a control group",
        )

    # -- messages about the process

    def _on_session_message(self, message: m.Message) -> None:
        if isinstance(message, m.HeartbeatMessage):
            self.last_heartbeat = message
        ready = self._ready
        if ready is None or ready.done():
            # User code can send a hello too; it must not change what was negotiated.
            return
        if isinstance(message, m.HelloMessage):
            self.metadata |= {
                "protocol": message.versions[0] if message.versions else None,
                "features": message.features,
                "python": message.settings.get("python"),
                "notes": tuple(message.settings.get("notes", ())),
            }
        elif isinstance(message, m.ReadyMessage):
            ready.set_result(None)

    def _on_worker_exit(self, cause: Cause) -> None:
        self.exit_cause = cause
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(WorkerDied(cause))
            self._ready.exception()
        if self.state not in (SessionState.CREATING, SessionState.TERMINATED):
            self.fire(WorkerSessionEvent.WORKER_EXITED)

    def schedule_heartbeat(self) -> None:
        """Ask the worker for a heartbeat after the configured interval, and again after each one."""
        interval = self.config.heartbeat_interval
        if interval is None:
            return
        if self.router is not None and self.router.cause is None and self.router.connection is not None:
            self._heartbeat_timer = self.router.loop.call_later(interval, self._request_heartbeat)

    def _request_heartbeat(self) -> None:
        router = self.router
        if router is not None and router.connection is not None and router.cause is None:
            router.send(m.HeartbeatMessage())
            self.schedule_heartbeat()
