"""A worker session: one persistent Python, from start to termination.

Every method may be called from any task at any time. What cannot be done any more raises ``Closed`` or
``WorkerDied`` at once; nothing waits for a worker that is gone.
"""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import Self, cast

from standfast.base.errors import Closed
from standfast.workers._host.connection import WorkerConnection, WorkerEndpoints
from standfast.workers._host.executions import ExecutionMixin
from standfast.workers._host.launcher import WorkerResources, start_worker
from standfast.workers._host.router import MessageRouter
from standfast.workers.errors import Cause, ExecutionTimeout, StartFailed, WorkerDied, WorkerRequestFailed
from standfast.workers.files import copy_work_directory
from standfast.workers.looking import InspectionMixin
from standfast.workers.returning import SnapshotMixin
from standfast.workers.state import SessionState, WorkerSessionEvent
from standfast.workers.wire import messages as m

_KILL_TIMEOUT = 5.0


class WorkerSession(ExecutionMixin, InspectionMixin, SnapshotMixin):
    """``async with WorkerSession(config) as session: result = await session.run("6 * 7")``"""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    async def start(self) -> None:
        """Start the worker and run the warm-up code. Returns when the session is ready, or raises."""
        async with self._lifecycle_lock:
            await self._start_locked()

    async def _start_locked(self) -> None:
        if self.state is not SessionState.CREATING:
            raise Closed(f"a session that is {self.state.value} cannot be started")
        self._fire(WorkerSessionEvent.STARTED)
        try:
            async with asyncio.timeout(self.config.ready_timeout):
                self._launch_task = asyncio.create_task(self._launch(), name="worker-birth")
                await self._launch_task
            await self._warm_up()
        except BaseException as problem:
            self._fire(WorkerSessionEvent.START_FAILED)
            await self._tear_down(Cause("start", "the start failed"))
            if self._close_task is not None and not isinstance(problem, Exception) and not _is_cancelling():
                raise Closed("the session was stopped while it started") from None
            if isinstance(problem, TimeoutError) and not isinstance(problem, ExecutionTimeout):
                raise StartFailed(f"not ready within {self.config.ready_timeout} s") from problem
            if isinstance(problem, WorkerDied):
                raise StartFailed(f"{problem}{self._describe_last_error()}") from problem
            raise
        if not self._machine.allows(WorkerSessionEvent.BECAME_READY) or self._close_task is not None:
            await self._tear_down(Cause("shutdown", "stopped while starting"))
            raise Closed("the session was stopped while it started")
        self._fire(WorkerSessionEvent.BECAME_READY)
        if self._router is not None and self._router.execution is not None:
            # Somebody was quick, and waited only for the warm-up.
            self._fire(WorkerSessionEvent.EXECUTION_STARTED)
        self._schedule_heartbeat()

    async def _launch(self) -> None:
        talk, greeted = self._create_router()
        self._resources, talk.connection = await start_worker(self.config, self.session_id, talk)
        await greeted
        self._record_metadata(self._resources)
        carried, self._previous_directory = self._previous_directory, None
        if carried is not None and self._resources.process_group.directory_fd is not None:
            self.metadata["left_behind"] = await copy_work_directory(
                carried, self._resources.process_group.directory_fd
            )

    def _create_router(self) -> tuple[MessageRouter, "asyncio.Future[None]"]:
        """A new conversation, and the moment at which the worker has said that it is ready."""
        self._exit_cause = None
        self._ready = asyncio.get_running_loop().create_future()
        self._router = MessageRouter(
            self.config,
            interceptors=self.interceptors,
            on_session_message=self._on_session_message,
            on_worker_exit=self._on_worker_exit,
        )
        return self._router, self._ready

    def _describe_last_error(self) -> str:
        """What the worker said about its death, if it could."""
        said = self._router.general_queue.pop_oldest(m.ErrorMessage) if self._router is not None else None
        return f": {cast(m.ErrorMessage, said).exception_message}" if said is not None else ""

    def _record_metadata(self, resources: WorkerResources) -> None:
        self.metadata |= {
            "mode": "spawn" if resources.fallback_reason else self.config.mode,
            "sandbox": resources.sandbox.level,
            "sandbox_notes": (
                *resources.server_info.notes,
                *resources.process_group.cgroups.notes,
                *self.metadata.pop("notes", ()),
            ),
            "start_notes": (resources.fallback_reason,) if resources.fallback_reason else (),
            "preloaded": dict(resources.server_info.preloaded),
            "preload_failed": dict(resources.server_info.failed),
        }

    async def _warm_up(self) -> None:
        if self.config.warmup_code is None:
            return
        result = await self.run(self.config.warmup_code)
        if result.error is not None:
            raise StartFailed(f"the warm-up code failed: {result.error.traceback or result.error}")

    async def shutdown(self, reason: str = "") -> None:
        """Stop in good order, within bounds: questions closed, running code interrupted, then a goodbye."""
        if self.state is SessionState.TERMINATED:
            return
        if self._close_task is None:
            self._fire(WorkerSessionEvent.SHUTDOWN_REQUESTED)
            self._close_task = asyncio.create_task(self._shutdown_gracefully(reason), name="worker-shutdown")
        await asyncio.shield(self._close_task)

    async def _shutdown_gracefully(self, reason: str) -> None:
        talk = self._router
        if talk is not None and talk.connection is not None and talk.cause is None:
            with contextlib.suppress(TimeoutError, WorkerDied):
                async with asyncio.timeout(self.config.shutdown_timeout):
                    if self._close_input_requests(talk) and talk.execution is not None:
                        # Code that was only waiting for an answer may end by itself.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self.config.grace):
                                await talk.execution.wait_until_ended()
                    if talk.execution is not None:
                        self._increment_metric("cancel_event_triggers")
                        await self._stop_execution(talk, talk.execution, self.config.grace)
                    talk.connection.send(m.ShutdownMessage(reason=reason))
                    await asyncio.shield(talk.connection.exit_future)
        await self._close()

    async def terminate(self) -> None:
        """Kill the worker, now. Returns when it is gone and everything of it is released."""
        if self.state is SessionState.TERMINATED:
            return
        if self._router is not None and self._router.connection is not None:
            self._router.connection.kill(Cause("shutdown", "the session was terminated"))
        if self._close_task is None:
            self._fire(WorkerSessionEvent.SHUTDOWN_REQUESTED)
            self._close_task = asyncio.create_task(self._close(), name="worker-terminate")
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        if self._launch_task is not None:
            self._launch_task.cancel()
        await self._tear_down(Cause("shutdown", "the session was closed"))
        # A start that was under way cleans up after itself.
        async with self._lifecycle_lock:
            self._fire(WorkerSessionEvent.CLOSED)

    async def restart(self) -> None:
        """A new worker with an empty namespace; the session and its files stay. Not after termination.

        Files that could not be kept are named in ``info.metadata["left_behind"]``.
        """
        async with self._lifecycle_lock:
            self._fire(WorkerSessionEvent.RESTARTED)
            async with AsyncExitStack() as until_started:
                if self._resources is not None:
                    self._previous_directory = await until_started.enter_async_context(self._resources.hold_directory())
                await self._tear_down(Cause("shutdown", "the session was restarted"))
                await self._start_locked()

    @property
    def is_alive(self) -> bool:
        """Whether code could be run now or after what runs now."""
        usable = self.state in (SessionState.READY, SessionState.BUSY, SessionState.IDLE)
        return usable and self._router is not None and self._router.cause is None

    async def _tear_down(self, reason: Cause) -> None:
        for timer in (self._heartbeat_timer, self._memory_timer):
            if timer is not None:
                timer.cancel()
        self._memory_timer = None
        talk, home, self._resources = self._router, self._resources, None
        if talk is not None and talk.connection is not None:
            talk.connection.kill(reason)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_KILL_TIMEOUT):
                        await asyncio.shield(talk.connection.exit_future)
            finally:
                # Also when nobody waits for it any more.
                if talk.cause is None:
                    talk.on_exit(reason)
                if home is not None:
                    await home.release(talk.connection)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mark_idle(self) -> None:
        """Mark a ready session as idle: a pool keeps it in stock."""
        if self.state in (SessionState.READY, SessionState.IDLE):
            self._fire(WorkerSessionEvent.BECAME_IDLE)

    async def fork(self) -> "WorkerSession":
        """A second session with a copy of everything in this one; both share sandbox and directory.

        What a copy does not have, threads for one, is named in its ``info.metadata["hazards"]``.
        """
        home, talk = self._resources, self._require_router()
        if home is None:
            raise Closed("the session's worker is gone")
        twin, endpoints, token = type(self)(self.config), WorkerEndpoints(), m.new_id()
        conversation, greeted = twin._create_router()
        conversation.connection = WorkerConnection(
            home.process_group, token, endpoints, conversation, limit=self.config.frame_limit
        )
        twin._resources = home.acquire()
        twin._fire(WorkerSessionEvent.STARTED)
        try:
            message = m.SnapshotMessage(action="fork", point=token)
            reply = cast(
                m.SnapshotMessage, await self._request_when_idle(message, fds=endpoints.remote_fds, router=talk)
            )
            async with asyncio.timeout(self.config.ready_timeout):
                await greeted
            twin.metadata |= {**self.metadata, "hazards": reply.hazards}
            twin._fire(WorkerSessionEvent.BECAME_READY)
        except BaseException as problem:
            if isinstance(problem, WorkerRequestFailed):
                conversation.connection.mark_never_started()
            await twin.terminate()
            raise
        finally:
            endpoints.close_remote()
        twin._schedule_heartbeat()
        return twin

    # -- what the worker says about itself

    def _on_session_message(self, message: m.Message) -> None:
        if isinstance(message, m.HeartbeatMessage):
            self._last_heartbeat = message
        greeted = self._ready
        if greeted is None or greeted.done():
            # User code can say hello as well; what was negotiated stands.
            return
        if isinstance(message, m.HelloMessage):
            self.metadata |= {
                "protocol": message.versions[0] if message.versions else None,
                "features": message.features,
                "python": message.settings.get("python"),
                "notes": tuple(message.settings.get("notes", ())),
            }
        elif isinstance(message, m.ReadyMessage):
            greeted.set_result(None)

    def _on_worker_exit(self, cause: Cause) -> None:
        self._exit_cause = cause
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(WorkerDied(cause))
            self._ready.exception()
        if self.state not in (SessionState.CREATING, SessionState.TERMINATED):
            self._fire(WorkerSessionEvent.WORKER_EXITED)

    def _schedule_heartbeat(self) -> None:
        interval = self.config.heartbeat_interval
        if interval is None:
            return
        if self._router is not None and self._router.cause is None and self._router.connection is not None:
            loop = asyncio.get_running_loop()
            self._heartbeat_timer = loop.call_later(interval, self._request_heartbeat)

    def _request_heartbeat(self) -> None:
        talk = self._router
        if talk is not None and talk.connection is not None and talk.cause is None:
            talk.connection.send(m.HeartbeatMessage())
            if talk.execution is not None:
                talk.connection.wake()
            self._schedule_memory_check()
            self._schedule_heartbeat()


def _is_cancelling() -> bool:
    """Whether somebody wants the task that runs this to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
