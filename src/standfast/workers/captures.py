"""A capture: the workspace of a worker as chunks and a manifest, while the worker continues."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

from standfast.base.errors import Closed
from standfast.workers._host.message_limits import measure_weight
from standfast.workers.chunks import encode_chunk
from standfast.workers.errors import CaptureFailed
from standfast.workers.wire import manifests as wire
from standfast.workers.wire.manifests import InvalidManifest, WorkspaceManifest, hash_chunk

Blob = tuple[bytes, bytes]

_MAX_QUEUED = 4
_BUFFER_SIZE = 4 << 20
_MAX_CHUNKS = 400_000
_MAX_MANIFEST_WEIGHT = 4_000_000


class Capture:
    """``async for digest, data in capture: ...``, then ``capture.manifest``.

    Iterating gives each chunk that was not known before, once: its digest and its bytes as they are to be stored. Store
    the manifest when the iteration has ended; until then the capture is not complete. Raises CaptureFailed when the
    copy of the worker fails, is killed, or takes too long. ``close`` cancels the capture, and so does leaving the
    ``async with`` block.
    """

    def __init__(
        self, *, known: frozenset[bytes], max_bytes: int, timeout: float, on_end: Callable[[CaptureFailed | None], None]
    ) -> None:
        self.capture_id = ""
        self._known, self._max_bytes, self._on_end = known, max_bytes, on_end
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout
        self._timeout = timeout
        self._sock, self.remote_socket = socket.socketpair()
        self._sock.setblocking(False)
        for end in (self._sock, self.remote_socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_SIZE)
        self._queue: asyncio.Queue[asyncio.Future[Blob] | None] = asyncio.Queue()
        self._free_places = asyncio.Semaphore(_MAX_QUEUED)
        self._received: set[bytes] = set()
        self._received_bytes = 0
        self._manifest: WorkspaceManifest | None = None
        self._problem: CaptureFailed | None = None
        self._failure: CaptureFailed | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_released = False

    @property
    def manifest(self) -> WorkspaceManifest:
        """What was captured. Raises Closed before the iteration has ended, and what the iteration raised after that."""
        if self._problem is not None:
            raise self._problem
        if self._manifest is None:
            raise Closed("the capture is not complete: iterate over it to its end first")
        return self._manifest

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Blob]:
        return self

    async def __anext__(self) -> Blob:
        item = await self._queue.get()
        if item is not None:
            self._free_places.release()
            try:
                return await item
            except CaptureFailed as problem:
                self._manifest, self._problem = None, problem
                raise
        # For the next caller.
        self._queue.put_nowait(None)
        if self._problem is not None:
            raise self._problem
        raise StopAsyncIteration

    async def close(self) -> None:
        """Cancel the capture if it is not complete: kill the copy of the worker, and forget its chunks."""
        if self._reader is not None and not self._reader.done():
            self._reader.cancel()
            await asyncio.wait([self._reader])
        self._finish(CaptureFailed("closed", "the capture was closed"))

    # -- used by the session

    def start(self, request: wire.CaptureRequest, create_task: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        """Start to send the request and to read what the copy of the worker sends."""
        self._reader = create_task(self._read(wire.encode_request(request)))
        # A task that is cancelled before it starts runs no code of its own.
        ended = CaptureFailed("closed", "the session has ended")
        self._reader.add_done_callback(lambda _: self._finish(self._failure or ended))

    def fail(self, problem: CaptureFailed) -> None:
        """End the capture with an error, from outside."""
        if self._reader is None or self._reader.done():
            self._finish(problem)
        else:
            # The loop knows the socket by its number, which the next socket may get: it is closed after the reader.
            self._failure = self._failure or problem
            self._reader.cancel()

    def _finish(self, problem: CaptureFailed | None) -> None:
        if self._is_released:
            return
        self._is_released = True
        if self._manifest is None:
            self._problem = problem
            while not self._queue.empty():
                if (item := self._queue.get_nowait()) is not None:
                    item.cancel()
        self._queue.put_nowait(None)
        self._sock.close()
        self.remote_socket.close()
        self._on_end(self._problem)

    # -- the stream

    async def _read(self, payload: bytes) -> None:
        problem: CaptureFailed | None = None
        try:
            async with asyncio.timeout_at(self._deadline):
                await asyncio.get_running_loop().sock_sendall(self._sock, payload)
                while self._manifest is None:
                    await self._read_frame()
        except TimeoutError:
            problem = CaptureFailed("timeout", f"it took more than {self._timeout} s")
        except OSError as error:
            problem = CaptureFailed("worker", f"the copy of the worker ended: {error}")
        except CaptureFailed as error:
            problem = error
        self._finish(problem)

    async def _read_frame(self) -> None:
        header = await self._receive(wire.FRAME_HEADER.size)
        kind, length, digest = wire.FRAME_HEADER.unpack(header)
        if length > wire.FRAME_LIMITS.get(kind, -1):
            raise CaptureFailed("protocol", "the copy of the worker sent a frame of an unknown kind or size")
        data = await self._receive(length)
        if kind == wire.CHUNK:
            await self._add_chunk(digest, data)
        elif kind == wire.MANIFEST:
            # In a thread: one with all entries that are allowed takes seconds.
            self._manifest = await asyncio.to_thread(self._check_manifest, bytes(data))
        elif kind == wire.TOO_LARGE:
            raise CaptureFailed("too-large", f"the workspace has more than {self._max_bytes} bytes")
        else:
            raise CaptureFailed("worker", data.decode("utf-8", "replace"))

    async def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        loop = asyncio.get_running_loop()
        while view:
            received = await loop.sock_recv_into(self._sock, view)
            if not received:
                raise ConnectionAbortedError("its socket was closed")
            view = view[received:]
        return data

    async def _add_chunk(self, digest: bytes, data: bytearray) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > self._max_bytes:
            raise CaptureFailed("too-large", f"the workspace has more than {self._max_bytes} bytes")
        if digest in self._received or digest in self._known or not data or len(self._received) >= _MAX_CHUNKS:
            raise CaptureFailed("protocol", "the copy of the worker sent a chunk that was not requested")
        self._received.add(digest)
        await self._free_places.acquire()
        self._queue.put_nowait(asyncio.ensure_future(asyncio.to_thread(_process_chunk, digest, data)))

    def _check_manifest(self, data: bytes) -> WorkspaceManifest:
        try:
            if measure_weight(data, limit=_MAX_MANIFEST_WEIGHT) > _MAX_MANIFEST_WEIGHT:
                raise CaptureFailed("protocol", "the manifest has too many parts")
            manifest = WorkspaceManifest.decode_body(data)
        except (InvalidManifest, ValueError) as problem:
            raise CaptureFailed("protocol", str(problem)) from problem
        digests = manifest.digests
        if not digests <= (self._known | self._received) or not self._received <= digests:
            raise CaptureFailed("protocol", "the manifest and the chunks that were sent do not match")
        if manifest.size > self._max_bytes:
            raise CaptureFailed("too-large", f"the workspace has more than {self._max_bytes} bytes")
        return manifest


def _process_chunk(digest: bytes, data: bytearray) -> Blob:
    if hash_chunk(data).digest() != digest:
        raise CaptureFailed("protocol", "a chunk does not match its digest")
    return digest, encode_chunk(data)
