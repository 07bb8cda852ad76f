"""A capture of a workspace on another machine."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from standfast.base.errors import Closed
from standfast.fleet._node import requests as r
from standfast.workers.captures import Capture
from standfast.workers.chunks import decode_chunk
from standfast.workers.errors import CaptureFailed, CaptureProblem, WorkerDied, WorkerRequestFailed, WorkspaceRefused
from standfast.workers.wire.manifests import InvalidManifest, WorkspaceManifest

if TYPE_CHECKING:
    from standfast.fleet.session import RemoteWorkerSession


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
            batch = await self._session.call("next_chunks", r.Named(self.capture_id), r.CaptureBatch)
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
                await self._session.call("close_capture", r.Named(self.capture_id), type(None))
