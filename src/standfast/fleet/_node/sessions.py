"""The sessions of one node, served to pools elsewhere: each request is one method of a worker session."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from standfast.base.errors import Closed, InvalidInput
from standfast.fleet._node import wire
from standfast.fleet._node.wire import SessionBrief, decode
from standfast.workers.captures import Capture
from standfast.workers.errors import WorkspaceRefused
from standfast.workers.results import SnapshotPoint
from standfast.workers.session import WorkerSession
from standfast.workers.wire import messages as m
from standfast.workers.wire.manifests import WorkspaceManifest

_PAUSES = (m.ResultMessage, m.ErrorMessage, m.InputMessage)
"""What a caller waits for: nothing else is collected behind it."""
_MESSAGE_TYPES = {kind.__struct_config__.tag: kind for kind in m.Message.__subclasses__()}


class _Execution:
    """An execution whose messages a pool fetches in batches: as many as are there, and never more than it asks for.

    What is not fetched stays in the session, which lets the worker wait when its buffer is full.
    """

    def __init__(self, stream: AsyncIterator[m.Message]) -> None:
        self._stream = stream
        self._next: asyncio.Task[m.Message] | None = None

    async def fetch(self) -> wire.Messages:
        batch: list[Any] = []
        size = 0
        while size < wire.MAX_BATCH_BYTES:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._stream))
            if batch and not self._next.done():
                await asyncio.sleep(0)
                if not self._next.done():
                    break
            task = self._next
            try:
                message = await asyncio.shield(task)
            except StopAsyncIteration:
                return wire.Messages(batch, is_last=True)
            if task.done():
                self._next = None
            batch.append(message)
            size += len(message.data) if isinstance(message, m.OutputMessage) else 1000
            if isinstance(message, _PAUSES):
                break
        return wire.Messages(batch)

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class ServedSession:
    """One leased session, and what its pool has open in it."""

    def __init__(self, session: WorkerSession, client: str, request_id: str, *, is_fork: bool = False) -> None:
        self.session, self.client, self.request_id, self.is_fork = session, client, request_id, is_fork
        self._executions: dict[str, _Execution] = {}
        self._captures: dict[str, Capture] = {}
        self._staged: dict[bytes, bytes] = {}

    @property
    def brief(self) -> SessionBrief:
        info = self.session.info
        is_alive = self.session.is_alive
        return SessionBrief(info.state, is_alive, info.execution_count, info.error_count, info.last_used_at)

    async def close(self) -> None:
        """Stop what is open. The session itself goes back to its pool."""
        for execution in list(self._executions.values()):
            await execution.close()
        for capture in list(self._captures.values()):
            await capture.close()
        self._executions.clear()
        self._captures.clear()
        self._staged.clear()

    async def call(self, method: str, data: bytes) -> Any:
        kind, handler = _HANDLERS[method]
        return await handler(self, decode(data, kind))

    # -- executions

    async def run(self, request: wire.Run) -> Any:
        options: dict[str, Any] = {"timeout": request.timeout} if request.has_timeout else {}
        return await self.session.run(
            request.code,
            transaction=request.transaction,
            allow_input=request.allow_input,
            seed=request.seed,
            **options,
        )

    async def start_execution(self, request: wire.Execute) -> wire.Messages:
        options: dict[str, Any] = {"timeout": request.timeout} if request.has_timeout else {}
        execution = self._executions[request.message.id] = _Execution(self.session.execute(request.message, **options))
        return await self._fetch(request.message.id, execution)

    async def next_messages(self, request: wire.Named) -> wire.Messages:
        execution = self._executions.get(request.name)
        if execution is None:
            return wire.Messages([], is_last=True)
        return await self._fetch(request.name, execution)

    async def _fetch(self, name: str, execution: _Execution) -> wire.Messages:
        try:
            batch = await execution.fetch()
        except BaseException:
            await self._end_execution(name)
            raise
        if batch.is_last:
            self._executions.pop(name, None)
        return batch

    async def stop_execution(self, request: wire.Named) -> None:
        await self._end_execution(request.name)

    async def _end_execution(self, name: str) -> None:
        execution = self._executions.pop(name, None)
        if execution is not None:
            await execution.close()

    # -- control

    async def interrupt(self, request: wire.Named) -> Any:
        return await self.session.interrupt()

    async def cancel(self, request: wire.Cancel) -> Any:
        return await self.session.cancel(request.execution_id, request.grace)

    async def respond(self, request: wire.Send) -> bool:
        message = request.message
        if not isinstance(message, m.InputResponseMessage):
            raise InvalidInput(f"an answer to input is expected, not {type(message).__name__}")
        return await self.session.input_response(message.input_id, message.data, eof=message.eof)

    async def describe(self, request: wire.Named) -> Any:
        return self.session.info

    async def measure(self, request: wire.Named) -> Any:
        return await asyncio.to_thread(self.session.usage)

    async def namespace(self, request: wire.Named) -> Any:
        return await self.session.namespace()

    async def complete(self, request: wire.Named) -> Any:
        return await self.session.complete(request.name)

    async def heartbeat(self, request: wire.Named) -> m.HeartbeatMessage:
        return await self.session.heartbeat()

    # -- the state of the worker

    async def snapshot(self, request: wire.Named) -> Any:
        return await self.session.snapshot()

    async def use_point(self, request: wire.Point) -> None:
        work = self.session.rollback if request.action == "rollback" else self.session.drop
        await work(SnapshotPoint(request.point_id, request.hazards))

    async def checkpoint(self, request: wire.Named) -> Any:
        return await self.session.checkpoint(request.name)

    async def restore(self, request: wire.Restore) -> Any:
        return await self.session.restore(request.data, clear_existing=request.clear_existing)

    async def restart(self, request: wire.Named) -> Any:
        await self.session.restart()
        return self.session.info

    async def shutdown(self, request: wire.Named) -> None:
        await self.session.shutdown(request.name)

    async def terminate(self, request: wire.Named) -> None:
        await self.session.terminate()

    # -- captures

    async def start_capture(self, request: wire.StartCapture) -> str:
        known: Any = request.digests if request.manifest is None else WorkspaceManifest.decode(request.manifest)
        capture = await self.session.capture(known, max_bytes=request.max_bytes, timeout=request.timeout)
        name = m.new_id()
        self._captures[name] = capture
        return name

    async def next_chunks(self, request: wire.Named) -> wire.CaptureBatch:
        capture = self._captures.get(request.name)
        if capture is None:
            raise Closed("the capture was closed")
        chunks, size = list[tuple[bytes, bytes]](), 0
        async for digest, data in capture:
            chunks.append((digest, data))
            size += len(data)
            if size >= 4 * wire.MAX_BATCH_BYTES:
                return wire.CaptureBatch(chunks)
        del self._captures[request.name]
        return wire.CaptureBatch(chunks, capture.manifest.encode())

    async def close_capture(self, request: wire.Named) -> None:
        capture = self._captures.pop(request.name, None)
        if capture is not None:
            await capture.close()

    async def put_chunks(self, request: wire.PutChunks) -> None:
        self._staged.update(request.chunks)

    async def restore_workspace(self, request: wire.RestoreWorkspace) -> Any:
        async def fetch(digest: bytes) -> bytes:
            if digest not in self._staged:
                raise WorkspaceRefused("missing", f"the chunk {digest.hex()[:16]} was not sent")
            return self._staged[digest]

        async def prepare() -> None:
            """The caller has done it."""

        try:
            return await self.session.restore_workspace(
                request.manifest,
                fetch,
                max_bytes=request.max_bytes,
                timeout=request.timeout,
                prepare=prepare if request.is_prepared else None,
            )
        finally:
            self._staged.clear()

    # -- files and messages

    async def write_files(self, request: wire.WriteFiles) -> dict[str, str]:
        return await asyncio.to_thread(self.session.files.write_entries, request.entries)

    async def write_file(self, request: wire.FileRequest) -> None:
        await self.session.files.write(request.path, request.data)

    async def read_file(self, request: wire.FileRequest) -> bytes:
        return await self.session.files.read(request.path, limit=request.limit)

    async def list_files(self, request: wire.FileRequest) -> Any:
        return await self.session.files.list(request.path)

    async def remove_file(self, request: wire.FileRequest) -> None:
        await self.session.files.remove(request.path)

    async def send(self, request: wire.Send) -> None:
        await self.session.send_message(request.message)

    async def receive(self, request: wire.Receive) -> m.Message:
        kind = None if request.type is None else _MESSAGE_TYPES[request.type]
        return await self.session.receive_message(kind, request.timeout)


_Handler = Callable[[ServedSession, Any], Awaitable[Any]]
_HANDLERS: dict[str, tuple[Any, _Handler]] = {
    handler.__name__: (kind, handler)
    for kind, handlers in (
        (wire.Run, (ServedSession.run,)),
        (wire.Execute, (ServedSession.start_execution,)),
        (
            wire.Named,
            (
                ServedSession.next_messages,
                ServedSession.stop_execution,
                ServedSession.interrupt,
                ServedSession.describe,
                ServedSession.measure,
                ServedSession.namespace,
                ServedSession.complete,
                ServedSession.heartbeat,
                ServedSession.snapshot,
                ServedSession.checkpoint,
                ServedSession.restart,
                ServedSession.shutdown,
                ServedSession.terminate,
                ServedSession.next_chunks,
                ServedSession.close_capture,
            ),
        ),
        (wire.Cancel, (ServedSession.cancel,)),
        (wire.Send, (ServedSession.respond, ServedSession.send)),
        (wire.Point, (ServedSession.use_point,)),
        (wire.Restore, (ServedSession.restore,)),
        (wire.StartCapture, (ServedSession.start_capture,)),
        (wire.PutChunks, (ServedSession.put_chunks,)),
        (wire.RestoreWorkspace, (ServedSession.restore_workspace,)),
        (wire.WriteFiles, (ServedSession.write_files,)),
        (
            wire.FileRequest,
            (
                ServedSession.write_file,
                ServedSession.read_file,
                ServedSession.list_files,
                ServedSession.remove_file,
            ),
        ),
        (wire.Receive, (ServedSession.receive,)),
    )
    for handler in handlers
}


def describe_info(info: Any) -> dict[str, Any]:
    """Return a :class:`SessionInfo` as plain data."""
    return msgspec.to_builtins(dataclasses.asdict(info))  # type: ignore[no-any-return]
