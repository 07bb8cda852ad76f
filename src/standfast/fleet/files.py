"""The files of a session on another machine, and a capture of its workspace."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from standfast.base.errors import Closed
from standfast.fleet._node import wire
from standfast.workers.captures import Capture
from standfast.workers.chunks import decode_chunk
from standfast.workers.errors import CaptureFailed, CaptureProblem, WorkerDied, WorkerRequestFailed, WorkspaceRefused
from standfast.workers.files import FileEntries, Files
from standfast.workers.wire.manifests import InvalidManifest, WorkspaceManifest

if TYPE_CHECKING:
    from standfast.fleet.session import RemoteWorkerSession


class RemoteFiles(Files):
    """Write, read, list and remove files by their path relative to the session's directory, on its node."""

    def __init__(self, session: "RemoteWorkerSession") -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()

    async def write(self, path: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else data
        await self._session.call("write_file", wire.FileRequest(path, content), type(None))

    async def read(self, path: str, *, limit: int = 256 << 20) -> bytes:
        return await self._session.call("read_file", wire.FileRequest(path, limit=limit), bytes)

    async def list(self, path: str = ".") -> FileEntries:
        return await self._session.call("list_files", wire.FileRequest(path), FileEntries)

    async def remove(self, path: str) -> None:
        await self._session.call("remove_file", wire.FileRequest(path), type(None))

    def write_entries(self, entries: Iterable[tuple[str, int, bytes | None]]) -> dict[str, str]:
        """Write files with their modes. Called in a thread, as that of a local session is."""
        work = self._session.call("write_files", wire.WriteFiles(list(entries)), dict[str, str])
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class RemoteCapture(Capture):
    """A capture on another machine: its chunks are fetched in batches, and verified here."""

    def __init__(self, session: "RemoteWorkerSession", name: str, *, known: frozenset[bytes], max_bytes: int) -> None:
        self.capture_id = name
        self._session, self._known, self._max_bytes = session, known, max_bytes
        self._chunks: list[tuple[bytes, bytes]] = []
        self._received: set[bytes] = set()
        self._received_bytes = 0
        self._manifest: WorkspaceManifest | None = None
        self._problem: CaptureFailed | None = None

    async def __anext__(self) -> tuple[bytes, bytes]:
        while not self._chunks:
            if self._problem is not None:
                raise self._problem
            if self._manifest is not None:
                raise StopAsyncIteration
            await self._fetch()
        digest, data = self._chunks.pop(0)
        try:
            self._received_bytes += len(await asyncio.to_thread(decode_chunk, digest, data))
        except WorkspaceRefused as problem:
            raise self._fail("protocol", problem.detail) from None
        if self._received_bytes > self._max_bytes:
            raise self._fail("too-large", f"the workspace has more than {self._max_bytes} bytes")
        return digest, data

    async def _fetch(self) -> None:
        try:
            batch = await self._session.call("next_chunks", wire.Named(self.capture_id), wire.CaptureBatch)
            manifest = None if batch.manifest is None else WorkspaceManifest.decode(batch.manifest)
        except CaptureFailed as problem:
            self._problem = problem
            raise
        except (WorkerDied, WorkerRequestFailed, Closed) as problem:
            raise self._fail("worker", str(problem)) from None
        except InvalidManifest as problem:
            raise self._fail("protocol", str(problem)) from problem
        digests = [digest for digest, _ in batch.chunks]
        if len({*digests, *self._received, *self._known}) < len(digests) + len(self._received) + len(self._known):
            raise self._fail("protocol", "the node sent a chunk that was not requested")
        self._received.update(digests)
        if manifest is not None and not self._received <= manifest.digests <= self._known | self._received:
            raise self._fail("protocol", "the manifest and the chunks that were sent do not match")
        self._manifest, self._chunks = manifest, batch.chunks

    def _fail(self, kind: CaptureProblem, detail: str) -> CaptureFailed:
        self._manifest, self._chunks, self._problem = None, [], CaptureFailed(kind, detail)
        return self._problem

    async def close(self) -> None:
        if self._manifest is None and self._problem is None:
            self._fail("closed", "the capture was closed")
            with contextlib.suppress(WorkerDied, Closed):
                await self._session.call("close_capture", wire.Named(self.capture_id), type(None))
