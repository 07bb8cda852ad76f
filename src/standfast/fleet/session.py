"""A worker session on another machine, with the methods of a local one."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import Any, Self, TypeVar, cast

import msgspec

from standfast.base.errors import Closed
from standfast.base.time import Backoff
from standfast.fleet._node import wire
from standfast.fleet._node.link import NodeLink
from standfast.fleet._node.wire import SessionBrief
from standfast.fleet.files import RemoteCapture, RemoteFiles
from standfast.workers.captures import Capture
from standfast.workers.chunks import decode_chunk
from standfast.workers.config import SessionConfig
from standfast.workers.errors import Cause, ExecutionTimeout, WorkerDied, WorkspaceRefused
from standfast.workers.interceptors import Interceptor, Interceptors
from standfast.workers.results import (
    Checkpoint,
    ExecutionResult,
    InterruptResult,
    RestoreResult,
    ResultCollector,
    SessionInfo,
    SnapshotPoint,
    WorkerUsage,
    WorkspaceReport,
)
from standfast.workers.session import WorkerSession
from standfast.workers.state import SessionState
from standfast.workers.wire import messages as m
from standfast.workers.wire.manifests import InvalidManifest, WorkspaceManifest

T = TypeVar("T")
UNSET: Any = object()
DEFAULT_WORKSPACE_BYTES = 256 << 20
_PARALLEL_FETCHES = 8
_FINAL = (m.ResultMessage, m.ErrorMessage)


class RemoteWorkerSession(WorkerSession):
    """A session that a :class:`RayPool` has leased on some node.

    It has the methods of :class:`WorkerSession`. ``info``, ``state`` and ``usage()`` are those of the last report of
    the node: one comes with every call, and one each second. The worker of a node that is lost has ended, with the
    cause ``node-lost``.
    """

    def __init__(self, config: SessionConfig, link: NodeLink, leased: wire.Leased) -> None:
        self.config, self._link = config, link
        self.session_id = leased.session_id
        self.interceptors = Interceptors(budget=config.interceptor_budget, strikes=config.interceptor_strikes)
        self.files = RemoteFiles(self)
        self._info = msgspec.convert(leased.info, SessionInfo)
        self._usage = WorkerUsage()
        self._calls = 0
        """Calls and executions that have not ended."""
        self._loss: Cause | None = None
        self._is_released = False
        self._moving = asyncio.Lock()

    # -- the call

    async def call(self, method: str, request: Any, kind: type[T]) -> T:
        """Call a method of the session on its node."""
        self._check_lease()
        async with self._pin():
            with self._note_loss():
                value, brief = await self._link.call(self.session_id, method, request, kind)
        self._note(brief)
        return value

    async def _control(self, method: str, request: Any, kind: type[T]) -> T:
        self._check_lease()
        with self._note_loss():
            value, brief = await self._link.control(self.session_id, method, request, kind)
        self._note(brief)
        return value

    def _check_lease(self) -> None:
        if self._is_released:
            raise Closed("the session was released")

    @contextlib.asynccontextmanager
    async def _pin(self) -> AsyncIterator[None]:
        """Keep the session on its node until the block ends."""
        if not self._calls:  # what begins while another is under way does not wait: that may wait for it
            async with self._moving:
                pass
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @contextlib.contextmanager
    def _note_loss(self) -> Iterator[None]:
        """Note that the session is gone although its node is there: this pool had not called it for a time."""
        try:
            yield
        except WorkerDied as problem:
            if problem.cause.kind == "node-lost":
                self._loss = problem.cause
            raise

    def _note(self, brief: SessionBrief | None) -> None:
        if brief is not None:
            self._info = dataclasses.replace(
                self._info,
                state=brief.state,
                execution_count=brief.execution_count,
                error_count=brief.error_count,
                last_used_at=brief.last_used_at,
            )

    # -- life cycle

    async def __aenter__(self) -> Self:
        return self

    @property
    def state(self) -> SessionState:
        """The state of the worker as it was last reported."""
        if self._is_released:
            return SessionState.TERMINATED
        return SessionState.ERROR if self.loss is not None else self._info.state

    @property
    def loss(self) -> Cause | None:
        """Why the session was lost with its node, if it was."""
        return self._link.loss or self._loss

    @property
    def is_alive(self) -> bool:
        usable = (SessionState.READY, SessionState.BUSY, SessionState.IDLE, SessionState.WARMING)
        return self.state in usable

    @property
    def info(self) -> SessionInfo:
        cause = self.loss or self._info.cause
        metadata = {**self._info.metadata, "node": self._link.node.node_id}
        return dataclasses.replace(
            self._info, session_id=self.session_id, state=self.state, cause=cause, metadata=metadata
        )

    @property
    def node_id(self) -> str:
        """The node on which the worker is."""
        return self._link.node.node_id

    @property
    def link(self) -> NodeLink:
        """The connection to the node of the worker."""
        return self._link

    async def start(self) -> None:
        raise Closed("a session of a pool has been started by its node")

    async def restart(self) -> None:
        try:
            info = await self.call("restart", wire.Named(), dict[str, Any])
        except WorkerDied as problem:
            raise Closed(f"the session cannot be restarted: {problem}") from None
        self._info = msgspec.convert(info, SessionInfo)

    async def shutdown(self, reason: str = "") -> None:
        with contextlib.suppress(WorkerDied, Closed):
            await self.call("shutdown", wire.Named(reason), type(None))
        self._is_released = True

    async def terminate(self) -> None:
        with contextlib.suppress(WorkerDied, Closed):
            await self._control("terminate", wire.Named(), type(None))
        self._is_released = True

    def mark_released(self) -> None:
        """Note that the session was given back to its pool."""
        self._is_released = True

    def mark_idle(self) -> None:
        """Do nothing: the node knows which of its sessions wait."""

    # -- running code

    async def execute(self, message: m.ExecuteMessage, timeout: float | None = UNSET) -> AsyncIterator[m.Message]:
        async with self._pin():
            stream = self._execute(message, timeout)
            try:
                async for one in stream:
                    yield one
            finally:
                await stream.aclose()

    async def _execute(self, message: m.ExecuteMessage, timeout: float | None) -> AsyncGenerator[m.Message]:
        request = wire.Execute(message, timeout is not UNSET, None if timeout is UNSET else timeout)
        last: m.Message | None = None
        pending: asyncio.Task[wire.Messages] | None = None
        try:
            batch = await self.call("start_execution", request, wire.Messages)
            while True:
                if not batch.is_last:  # the next batch is under way while this one is used
                    pending = asyncio.ensure_future(self.call("next_messages", wire.Named(message.id), wire.Messages))
                for last in batch.messages:
                    self.interceptors.notify(last)
                    yield last
                if pending is None:
                    return
                work, pending = pending, None
                batch = await work
        except WorkerDied as problem:
            if last is None or not isinstance(last, _FINAL):
                yield _make_loss_message(message.id, problem)
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait([pending])
            if not isinstance(last, _FINAL) and self.loss is None:
                with contextlib.suppress(WorkerDied, Closed):
                    await self._control("stop_execution", wire.Named(message.id), type(None))

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
        limit = None if timeout is UNSET else timeout
        if on_message is None and not self.interceptors.stats:
            request = wire.Run(code, timeout is not UNSET, limit, transaction, allow_input, seed)
            try:
                return await self.call("run", request, ExecutionResult)
            except WorkerDied as problem:
                if problem.cause.kind != "node-lost":
                    raise
                return _make_loss_result(m.new_id(), problem)
        message = m.ExecuteMessage(code=code, transaction_policy=transaction, allow_input=allow_input, seed=seed)
        return await self._collect(message, timeout, on_message)

    async def input_response(self, input_id: str, data: str = "", *, eof: bool = False) -> bool:
        message = m.InputResponseMessage(input_id=input_id, data=data, eof=eof)
        return await self._control("respond", wire.Send(message), bool)

    async def interrupt(self, *, force_restart: bool = False) -> InterruptResult:
        result = await self._control("interrupt", wire.Named(), InterruptResult)
        if result.state == "lost" and force_restart:
            await self.restart()
        return result

    async def cancel(self, execution_id: str, grace: float = 0.5) -> InterruptResult:
        return await self._control("cancel", wire.Cancel(execution_id, grace), InterruptResult)

    # -- inspection

    async def namespace(self) -> tuple[m.NamespaceEntry, ...]:
        return await self._control("namespace", wire.Named(), tuple[m.NamespaceEntry, ...])

    async def complete(self, code: str) -> tuple[str, ...]:
        return await self._control("complete", wire.Named(code), tuple[str, ...])

    async def heartbeat(self) -> m.HeartbeatMessage:
        return await self._control("heartbeat", wire.Named(), m.HeartbeatMessage)

    def usage(self) -> WorkerUsage:
        return self._usage

    async def measure(self) -> WorkerUsage:
        """Ask the node for the resources of the worker now; :meth:`usage` returns them from then on."""
        self._usage = await self._control("measure", wire.Named(), WorkerUsage)
        return self._usage

    async def refresh(self) -> None:
        """Ask the node for the state of the session; :attr:`info` is that state from then on."""
        self._info = msgspec.convert(await self._control("describe", wire.Named(), dict[str, Any]), SessionInfo)

    # -- snapshots

    async def snapshot(self) -> SnapshotPoint:
        return await self.call("snapshot", wire.Named(), SnapshotPoint)

    async def rollback(self, point: SnapshotPoint) -> None:
        await self.call("use_point", wire.Point("rollback", point.id, point.hazards), type(None))

    async def drop(self, point: SnapshotPoint) -> None:
        await self.call("use_point", wire.Point("drop", point.id, point.hazards), type(None))

    async def fork(self) -> "RemoteWorkerSession":
        return type(self)(self.config, self._link, await self.call("fork", wire.Named(), wire.Leased))

    async def checkpoint(self, name: str = "") -> Checkpoint:
        return await self.call("checkpoint", wire.Named(name), Checkpoint)

    async def restore(self, checkpoint: Checkpoint | bytes, *, clear_existing: bool = True) -> RestoreResult:
        data = checkpoint if isinstance(checkpoint, bytes) else checkpoint.data
        return await self.call("restore", wire.Restore(data, clear_existing), RestoreResult)

    async def capture(
        self,
        known: WorkspaceManifest | Collection[bytes] = (),
        *,
        max_bytes: int = DEFAULT_WORKSPACE_BYTES,
        timeout: float = 60.0,
    ) -> Capture:
        if isinstance(known, WorkspaceManifest):
            digests, request = known.digests, wire.StartCapture(known.encode(), (), max_bytes, timeout)
        else:
            digests, request = frozenset(known), wire.StartCapture(None, tuple(known), max_bytes, timeout)
        name = await self.call("start_capture", request, str)
        return RemoteCapture(self, name, known=digests, max_bytes=max_bytes)

    async def restore_workspace(
        self,
        manifest: WorkspaceManifest | bytes,
        fetch: Callable[[bytes], Awaitable[bytes]],
        *,
        max_bytes: int = DEFAULT_WORKSPACE_BYTES,
        timeout: float | None = None,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> WorkspaceReport:
        try:
            decoded = manifest if isinstance(manifest, WorkspaceManifest) else WorkspaceManifest.decode(manifest)
            decoded.check()
        except InvalidManifest as problem:
            raise WorkspaceRefused(problem.kind, str(problem)) from problem
        if decoded.size > max_bytes:
            raise WorkspaceRefused("too-large", f"it has {decoded.size} bytes; the limit is {max_bytes}")
        await self._send_chunks(sorted(decoded.digests), fetch)
        if prepare is not None:
            await prepare()
        request = wire.RestoreWorkspace(decoded.encode(), max_bytes, timeout, prepare is not None)
        return await self.call("restore_workspace", request, WorkspaceReport)

    async def _send_chunks(self, digests: list[bytes], fetch: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Read the chunks, verify each, and send them. The node learns of the workspace only what it is to restore."""
        places = asyncio.Semaphore(_PARALLEL_FETCHES)

        async def get(digest: bytes) -> tuple[bytes, bytes]:
            async with places:
                stored = await fetch(digest)
                if not isinstance(stored, bytes | bytearray | memoryview):
                    raise WorkspaceRefused("missing", f"the chunk {digest.hex()[:16]} is not stored")
                await asyncio.to_thread(decode_chunk, digest, bytes(stored))
                return digest, bytes(stored)

        for start in range(0, len(digests), _PARALLEL_FETCHES):
            some = await asyncio.gather(*map(get, digests[start : start + _PARALLEL_FETCHES]))
            await self.call("put_chunks", wire.PutChunks(some), type(None))

    # -- messages

    def add_message_interceptor(self, interceptor: Interceptor) -> None:
        """Call ``interceptor`` with the messages of executions, when they arrive here."""
        self.interceptors.add(interceptor)

    async def send_message(self, message: m.Message) -> None:
        await self._control("send", wire.Send(cast(m.AnyMessage, message)), type(None))

    async def receive_message(
        self, message_type: type[m.Message] | None = None, timeout: float | None = None
    ) -> m.Message:
        tag = None if message_type is None else message_type.__struct_config__.tag
        return await self.call("receive", wire.Receive(tag, timeout), m.AnyMessage)  # type: ignore[arg-type]

    # -- moving

    async def move(self, lease: Callable[[], Awaitable[tuple[NodeLink, wire.Leased]]]) -> WorkspaceReport:
        """Continue in a worker on another node, which ``lease`` gets, with these variables and files.

        Calls wait meanwhile, and one that runs is waited for. Snapshots end with the worker they were taken in. What
        could not be moved is in the report. If the move fails, the session stays where it is, and the caller has to
        release the lease.
        """
        backoff = Backoff(initial=0.01, maximum=0.2)
        while self._calls:  # noqa: ASYNC110 - many places would have to set an event
            await asyncio.sleep(backoff.next_delay())
        async with self._moving:
            chunks: dict[bytes, bytes] = {}
            name, _ = await self._link.call(
                self.session_id, "start_capture", wire.StartCapture(None, (), DEFAULT_WORKSPACE_BYTES, 60.0), str
            )
            while True:
                batch, _ = await self._link.call(self.session_id, "next_chunks", wire.Named(name), wire.CaptureBatch)
                chunks.update(batch.chunks)
                if batch.manifest is not None:
                    break
            link, leased = await lease()
            target = RemoteWorkerSession(self.config, link, leased)

            async def fetch(digest: bytes) -> bytes:
                return chunks[digest]

            report = await target.restore_workspace(batch.manifest, fetch)
            self._check_lease()
            self._link.notify("release", self.session_id)
            self._link, self.session_id, self._info = link, leased.session_id, target._info
            return report

    async def _collect(
        self, message: m.ExecuteMessage, timeout: float | None, on_message: Callable[[m.Message], None] | None
    ) -> ExecutionResult:
        collector = ResultCollector(message.id, display_limit=self.config.display_limit)
        stream = self.execute(message, timeout)
        try:
            async for one in stream:
                if on_message is not None:
                    on_message(one)
                if isinstance(one, _FINAL):
                    return collector.build(one)
                collector.add(one)
        except ExecutionTimeout as problem:
            return collector.build_timed_out(problem)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        raise Closed("the stream of the execution ended without a result")


def _make_loss_message(execution_id: str, problem: WorkerDied) -> m.ErrorMessage:
    return m.ErrorMessage(
        exception_type="WorkerDied",
        exception_message=str(problem),
        execution_id=execution_id,
        state="lost",
        cause=problem.cause.kind,
        timestamp=time.time(),
    )


def _make_loss_result(execution_id: str, problem: WorkerDied) -> ExecutionResult:
    error = _make_loss_message(execution_id, problem)
    return ExecutionResult(execution_id, error=error, state="lost", reason=str(problem.cause))
