"""A worker session: one persistent, sandboxed Python process, from start to termination.

Every method may be called from any task at any time. A method that the session can no longer serve raises ``Closed`` or
``WorkerDied`` at once; no call waits for a worker that has ended.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from standfast.base.errors import Closed
from standfast.lifecycle.scope import is_cancelling
from standfast.workers._host.captures import DEFAULT_WORKSPACE_BYTES, Captures
from standfast.workers._host.executor import UNSET, Executor
from standfast.workers._host.sandbox_levels import list_candidate_levels
from standfast.workers._host.variables import Inspector, Snapshots
from standfast.workers._host.worker import Worker
from standfast.workers.captures import Capture
from standfast.workers.config import SandboxPolicy, SessionConfig
from standfast.workers.errors import Cause, ExecutionTimeout, SandboxUnavailable, StartFailed, WorkerDied
from standfast.workers.files import Files
from standfast.workers.interceptors import Interceptor, Interceptors
from standfast.workers.results import (
    Checkpoint,
    ExecutionResult,
    InterruptResult,
    RestoreResult,
    SessionInfo,
    SnapshotPoint,
    WorkerUsage,
    WorkspaceReport,
)
from standfast.workers.state import SessionState, WorkerSessionEvent
from standfast.workers.wire import messages as m
from standfast.workers.wire.control import SANDBOX_LEVELS, SandboxLevel
from standfast.workers.wire.manifests import WorkspaceManifest


class WorkerSession:
    """``async with WorkerSession(config) as session: result = await session.run("6 * 7")``"""

    def __init__(self, config: SessionConfig | None = None, *, session_id: str | None = None) -> None:
        self.config = config or SessionConfig()
        self.session_id = session_id or m.new_id()
        self.interceptors = Interceptors(budget=self.config.interceptor_budget, strikes=self.config.interceptor_strikes)
        self.files = Files(self._get_directory)
        self._worker = Worker(self.config, self.session_id, interceptors=self.interceptors)
        self._executor = Executor(self.config, self._worker)
        self._inspector = Inspector(self.config, self._worker, self._executor, self.interceptors)
        self._snapshots = Snapshots(self.config, self._worker, self._executor)
        self._captures = Captures(self._worker, self._executor, self.files)
        self._lifecycle_lock = asyncio.Lock()
        self._launch_task: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[None] | None = None

    # -- life cycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    @property
    def state(self) -> SessionState:
        """The state of the worker."""
        return self._worker.state

    @property
    def is_alive(self) -> bool:
        """Whether the session can run code, now or after the executions that are queued."""
        return self._worker.is_alive

    @property
    def info(self) -> SessionInfo:
        """A copy of the session's state, counters and metadata as they are now."""
        return self._inspector.info()

    async def start(self) -> None:
        """Start the worker and run the warm-up code. Returns when the session is ready, or raises."""
        async with self._lifecycle_lock:
            await self._start()

    async def _start(self, previous_directory: int | None = None) -> None:
        worker = self._worker
        if worker.state is not SessionState.CREATING:
            raise Closed(f"a session in state {worker.state.value!r} cannot be started")
        worker.fire(WorkerSessionEvent.STARTED)
        try:
            async with asyncio.timeout(self.config.ready_timeout):
                self._launch_task = asyncio.create_task(worker.launch(previous_directory), name="worker-launch")
                await self._launch_task
            await self._warm_up()
        except BaseException as problem:
            worker.fire(WorkerSessionEvent.START_FAILED)
            await worker.tear_down(Cause("start", "the start failed"))
            if self._close_task is not None and not isinstance(problem, Exception) and not is_cancelling():
                raise Closed("the session was stopped while it was starting") from None
            if isinstance(problem, TimeoutError) and not isinstance(problem, ExecutionTimeout):
                raise StartFailed(f"the worker was not ready within {self.config.ready_timeout} s") from problem
            if isinstance(problem, WorkerDied):
                raise StartFailed(f"{problem}{worker.describe_last_error()}") from problem
            raise
        if not worker.allows(WorkerSessionEvent.BECAME_READY) or self._close_task is not None:
            await worker.tear_down(Cause("shutdown", "the session was stopped while it was starting"))
            raise Closed("the session was stopped while it was starting")
        worker.fire(WorkerSessionEvent.BECAME_READY)
        if worker.router is not None and worker.router.execution is not None:
            # Another task has queued code behind the warm-up, and it runs already.
            worker.fire(WorkerSessionEvent.EXECUTION_STARTED)
        worker.schedule_heartbeat()

    async def _warm_up(self) -> None:
        if self.config.warmup_code is None:
            return
        result = await self.run(self.config.warmup_code)
        if result.error is not None:
            raise StartFailed(f"the warm-up code failed: {result.error.traceback or result.error}")

    async def shutdown(self, reason: str = "") -> None:
        """Stop the session in an orderly way, within ``shutdown_timeout``.

        Open input requests get EOFError, running code is interrupted, then the worker is asked to exit. A worker
        that does not exit in time is killed.
        """
        if self.state is SessionState.TERMINATED:
            return
        if self._close_task is None:
            self._worker.fire(WorkerSessionEvent.SHUTDOWN_REQUESTED)
            self._close_task = asyncio.create_task(self._shut_down(reason), name="worker-shutdown")
        await asyncio.shield(self._close_task)

    async def _shut_down(self, reason: str) -> None:
        router = self._worker.router
        if router is not None and router.connection is not None and router.cause is None:
            with contextlib.suppress(TimeoutError, WorkerDied):
                async with asyncio.timeout(self.config.shutdown_timeout):
                    await self._executor.stop_for_shutdown(router)
                    router.connection.send(m.ShutdownMessage(reason=reason))
                    await asyncio.shield(router.connection.exit_future)
        await self._close()

    async def terminate(self) -> None:
        """Kill the worker immediately. Returns when the process is gone and its resources are released."""
        if self.state is SessionState.TERMINATED:
            return
        router = self._worker.router
        if router is not None and router.connection is not None:
            router.connection.kill(Cause("shutdown", "the session was terminated"))
        if self._close_task is None:
            self._worker.fire(WorkerSessionEvent.SHUTDOWN_REQUESTED)
            self._close_task = asyncio.create_task(self._close(), name="worker-terminate")
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        if self._launch_task is not None:
            self._launch_task.cancel()
        await self._worker.tear_down(Cause("shutdown", "the session was closed"))
        # A start that is under way holds the lock until it has cleaned up.
        async with self._lifecycle_lock:
            self._worker.fire(WorkerSessionEvent.CLOSED)

    async def restart(self) -> None:
        """Replace the worker by a new one with an empty namespace; the session and its files stay.

        Files that could not be copied are listed in ``info.metadata["left_behind"]``. A terminated session cannot
        be restarted.
        """
        async with self._lifecycle_lock:
            self._worker.fire(WorkerSessionEvent.RESTARTED)
            async with AsyncExitStack() as until_started:
                directory = None
                if self._worker.resources is not None:
                    directory = await until_started.enter_async_context(self._worker.resources.hold_directory())
                await self._worker.tear_down(Cause("shutdown", "the session was restarted"))
                await self._start(directory)

    def mark_idle(self) -> None:
        """Record that a ready session waits in a pool."""
        if self.state in (SessionState.READY, SessionState.IDLE):
            self._worker.fire(WorkerSessionEvent.BECAME_IDLE)

    def _get_directory(self) -> tuple[int, str | None]:
        resources = self._worker.resources
        if resources is None or resources.process_group.directory_fd is None:
            raise Closed("the session has no directory: its worker is gone")
        return resources.process_group.directory_fd, self.config.workdir

    # -- running code

    def execute(self, message: m.ExecuteMessage, timeout: float | None = UNSET) -> AsyncIterator[m.Message]:
        """Run code and stream its messages: Ack, then output, displays and input requests, then Result or Error.

        Concurrent calls are queued in order. The timeout covers waiting and running; when it expires, the code is
        stopped and ExecutionTimeout is raised. Leaving the iteration early stops the code as well. When the worker
        dies, the stream ends with an ErrorMessage whose ``state`` is ``lost``.
        """
        return self._executor.execute(message, timeout)

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = UNSET,
        transaction: m.TransactionPolicy = "commit_always",
        allow_input: bool | None = None,
        on_message: Callable[[m.Message], None] | None = None,
        seed: int | None = None,
    ) -> ExecutionResult:
        """Run code to its end and return everything it produced. Errors of the code are in the result, not raised.

        ``allow_input`` overrides the session's setting; without it, ``input()`` raises at once. ``on_message`` is
        called with every message of the execution as it arrives. ``seed`` seeds the generators of ``random`` and
        ``numpy.random`` before; each worker begins with others.
        """
        message = m.ExecuteMessage(code=code, transaction_policy=transaction, allow_input=allow_input, seed=seed)
        return await self._executor.collect(message, timeout, on_message)

    async def input_response(self, input_id: str, data: str = "", *, eof: bool = False) -> bool:
        """Answer an InputMessage, or end the input with ``eof``. Returns False when the request is no longer open."""
        return self._executor.respond_to_input(m.InputResponseMessage(input_id=input_id, data=data, eof=eof))

    async def interrupt(self, *, force_restart: bool = False) -> InterruptResult:
        """Stop the running code now, keeping the worker and its variables if possible.

        Returns once the execution has ended; the result says whether the variables survived. If the code does not
        stop within the grace period, the worker is killed, and with ``force_restart`` a new one is started.
        """
        result = await self._executor.interrupt()
        if result.state == "lost" and force_restart:
            await self.restart()
        return result

    async def cancel(self, execution_id: str, grace: float = 0.5) -> InterruptResult:
        """Stop this execution, as ``interrupt`` does. An execution that is still queued never runs.

        The caller of the execution receives an ErrorMessage with ``interrupted`` set.
        """
        return await self._executor.cancel(execution_id, grace)

    # -- inspection

    async def namespace(self) -> tuple[m.NamespaceEntry, ...]:
        """The user's variables: names, types and sizes, never values. Answered also while code runs."""
        return await self._inspector.namespace()

    async def complete(self, code: str) -> tuple[str, ...]:
        """Names that could complete the end of ``code``. Answered also while code runs."""
        return await self._inspector.complete(code)

    async def heartbeat(self) -> m.HeartbeatMessage:
        """Ask the worker for a heartbeat. Answered also while code runs."""
        return await self._inspector.heartbeat()

    def usage(self) -> WorkerUsage:
        """Memory and processor time of the worker and its processes, as measured by the kernel."""
        return self._inspector.usage()

    # -- snapshots

    async def snapshot(self) -> SnapshotPoint:
        """Save the worker's exact state; ``rollback`` returns to it, any number of times."""
        return await self._snapshots.take()

    async def rollback(self, point: SnapshotPoint) -> None:
        """Restore every variable, and the state of ``random``, exactly as it was at ``point``.

        Every snapshot stays valid until it is dropped, also those taken after ``point``.
        """
        await self._snapshots.rollback(point)

    async def drop(self, point: SnapshotPoint) -> None:
        """Delete a snapshot and free its memory."""
        await self._snapshots.drop(point)

    async def fork(self) -> "WorkerSession":
        """Return a second session with a copy of every variable. Both share the sandbox and the directory.

        What the copy lacks, for example threads, is listed in its ``info.metadata["hazards"]``.
        """
        twin = type(self)(self.config)
        try:
            await self._snapshots.fork(twin._worker)
        except BaseException:
            await twin.terminate()
            raise
        return twin

    async def checkpoint(self, name: str = "") -> Checkpoint:
        """Return the namespace as bytes that another worker can restore, and what could not be saved."""
        return await self._snapshots.checkpoint(name)

    async def restore(self, checkpoint: Checkpoint | bytes, *, clear_existing: bool = True) -> RestoreResult:
        """Load a checkpoint inside the worker. An invalid one raises WorkerRequestFailed and changes nothing."""
        data = checkpoint if isinstance(checkpoint, bytes) else checkpoint.data
        return await self._snapshots.restore(data, clear_existing=clear_existing)

    async def capture(
        self,
        known: WorkspaceManifest | Collection[bytes] = (),
        *,
        max_bytes: int = DEFAULT_WORKSPACE_BYTES,
        timeout: float = 60.0,
    ) -> Capture:
        """Capture variables, files and the state of random generators as chunks and a manifest, to be stored.

        The worker is forked, and its copy pickles and sends while the worker continues. Returns as soon as code may run
        again: after the fork, and after the files that have changed were read. What the capture holds is what was there
        at that moment. ``known`` is the manifest of the previous capture, or the digests that are stored already: only
        what is new is sent. With a manifest, files that have not changed are not even read. Threads and processes that
        user code has left running may still change a file that is being read.

        Raises CaptureFailed, here or in the iteration: if all content together has more than ``max_bytes``, or takes
        longer than ``timeout`` seconds, or if the copy fails or is killed. The session continues.
        """
        return await self._captures.start(known, max_bytes=max_bytes, timeout=timeout)

    async def restore_workspace(
        self,
        manifest: WorkspaceManifest | bytes,
        fetch: Callable[[bytes], Awaitable[bytes]],
        *,
        max_bytes: int = DEFAULT_WORKSPACE_BYTES,
        timeout: float | None = None,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> WorkspaceReport:
        """Restore a captured workspace in this session, which should be new. ``fetch`` gets a chunk by its digest.

        All chunks are fetched and verified first. Raises WorkspaceRefused, with nothing loaded, when one is missing or
        wrong, or when the manifest is damaged, foreign, too new, unsafe or from another version of Python. Variables
        that share objects are restored together or not at all; the report says which are there, and why others are
        not. Other variables and files stay. After a TimeoutError the worker may still be loading: terminate it.

        ``prepare`` is called when everything is verified, to run code that prepares the worker. Of the variables and
        files that are there afterwards, those stay that the capture could not keep; it replaces all others.
        """
        return await self._captures.restore(manifest, fetch, max_bytes=max_bytes, timeout=timeout, prepare=prepare)

    # -- messages

    def add_message_interceptor(self, interceptor: Interceptor) -> None:
        """Call ``interceptor`` with every incoming message before it is routed. It must not block."""
        self.interceptors.add(interceptor)

    def remove_message_interceptor(self, interceptor: Interceptor) -> None:
        """Stop calling an interceptor."""
        self.interceptors.remove(interceptor)

    async def send_message(self, message: m.Message) -> None:
        """Send any message unchanged. Replies that no call waits for are returned by ``receive_message``."""
        self._worker.require_router().send(message)

    async def receive_message(
        self, message_type: type[m.Message] | None = None, timeout: float | None = None
    ) -> m.Message:
        """Return the oldest message, of this type if given, that belongs to no call.

        Those are background output and late or unexpected messages. Raises TimeoutError after ``timeout`` seconds.
        """
        router = self._worker.require_router()
        async with asyncio.timeout(timeout):
            return await router.receive_general(message_type)


@dataclass(frozen=True)
class SandboxReport:
    """The strongest level that works here, what it does not enforce, and why stronger levels failed."""

    level: SandboxLevel | None
    notes: tuple[str, ...] = ()
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)


async def probe_sandbox(config: SessionConfig | None = None) -> SandboxReport:
    """Start a worker at each level, from the strongest to the weakest, until one runs code."""
    config = config or SessionConfig()
    reasons: dict[str, str] = {}
    for level in list_candidate_levels(dataclasses.replace(config, sandbox=SandboxPolicy(require="plain"))):
        policy = dataclasses.replace(config.sandbox, level=level, require=level)
        try:
            async with WorkerSession(dataclasses.replace(config, sandbox=policy)) as session:
                notes = session.info.metadata["sandbox_notes"]
                result = await session.run("40 + 2")
        except (SandboxUnavailable, StartFailed) as problem:
            reasons[level] = str(problem)
            continue
        if result.value == 42:
            return SandboxReport(level, notes, reasons)
        reasons[level] = f"the worker could not run code: {result.error}"
    return SandboxReport(None, (), reasons or dict.fromkeys(SANDBOX_LEVELS, "not tried"))
