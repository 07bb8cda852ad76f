"""Capture the workspace of a worker, and restore a captured workspace in another one."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import cast

from standfast.lifecycle.scope import run_to_end
from standfast.workers._host.executor import Executor
from standfast.workers._host.worker import Worker
from standfast.workers.captures import Capture
from standfast.workers.chunks import decode_chunk
from standfast.workers.errors import CaptureFailed, WorkerRequestFailed, WorkspaceRefused
from standfast.workers.files import Files
from standfast.workers.results import WorkspaceReport
from standfast.workers.shared_contents import MAX_SHARED, Fetch, SharedContent, find_shared
from standfast.workers.wire import messages as m
from standfast.workers.wire.manifests import (
    CaptureRequest,
    Content,
    InvalidManifest,
    PlannedGroup,
    Remains,
    RestorePlan,
    WorkspaceFile,
    WorkspaceManifest,
    encode_request,
)

DEFAULT_WORKSPACE_BYTES = 256 << 20
_PARALLEL_FETCHES = 8


class Captures:
    """Sends the requests that capture and restore the workspace of a session."""

    def __init__(self, worker: Worker, executor: Executor, files: Files) -> None:
        self._worker, self._executor, self._files = worker, executor, files

    async def start(self, known: WorkspaceManifest | Collection[bytes], *, max_bytes: int, timeout: float) -> Capture:
        worker, capture_id = self._worker, m.new_id()
        previous = known if isinstance(known, WorkspaceManifest) else None
        digests = known.digests if isinstance(known, WorkspaceManifest) else frozenset(known)
        request = CaptureRequest(known=b"".join(digests), files=previous.files if previous else (), max_bytes=max_bytes)
        capture = Capture(
            known=digests, max_bytes=max_bytes, timeout=timeout, on_end=lambda problem: self._end(capture_id, problem)
        )
        worker.captures[capture_id] = capture
        if worker.resource_watch is not None:
            worker.resource_watch.start()
        try:
            async with asyncio.timeout(timeout), self._executor.hold_idle() as router:
                capture.start(request, worker.create_task)
                await router.request(m.CaptureMessage(capture_id=capture_id), fds=(capture.remote_socket.fileno(),))
                capture.remote_socket.close()
        except WorkerRequestFailed as problem:
            failure = _describe_failure(problem, max_bytes)
            capture.fail(failure)
            raise failure from problem
        except TimeoutError:
            failure = CaptureFailed("timeout", f"it took more than {timeout} s")
            capture.fail(failure)
            raise failure from None
        except BaseException:
            capture.fail(CaptureFailed("closed", "the capture was closed"))
            raise
        return capture

    def _end(self, capture_id: str, problem: CaptureFailed | None) -> None:
        """Make sure that the copy of the worker is gone. The worker continues if the kernel killed it for memory."""
        self._worker.captures.pop(capture_id, None)
        resources = self._worker.resources
        if resources is not None:
            resources.process_group.end_capture(capture_id)
            if problem is not None and self._worker.is_alive:
                resources.process_group.cgroups.ignore_oom_kills()

    async def restore(
        self,
        manifest: WorkspaceManifest | bytes,
        fetch: Fetch,
        *,
        max_bytes: int,
        timeout: float | None,
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> WorkspaceReport:
        manifest = self._check(manifest, max_bytes)
        contents = await _fetch_contents(manifest, fetch)
        remains = None
        if prepare is not None:
            await prepare()
            remains = Remains(tuple(manifest.unkept), (*(one.path for one in manifest.files), *manifest.unkept_files))
        self._worker.shared_files.update(shared.file_id for shared in contents.shared.values())
        async with asyncio.timeout(timeout), self._executor.hold_idle():
            # Also when the caller is cancelled, so that no thread writes into a directory that is gone.
            lost_files = await run_to_end(
                asyncio.to_thread(_write_files, self._files, manifest.files, contents), grace=None
            )
            reply = await self._send_variables(manifest, contents, remains)
        files = tuple(file.path for file in manifest.files if file.kind == "file" and file.path not in lost_files)
        return WorkspaceReport(
            kept=reply.kept,
            lost={**manifest.unkept, **reply.lost},
            files=files,
            lost_files={**manifest.unkept_files, **lost_files},
        )

    def _check(self, manifest: WorkspaceManifest | bytes, max_bytes: int) -> WorkspaceManifest:
        try:
            if not isinstance(manifest, WorkspaceManifest):
                manifest = WorkspaceManifest.decode(manifest)
            manifest.check()
        except InvalidManifest as problem:
            raise WorkspaceRefused(problem.kind, str(problem)) from problem
        if manifest.size > max_bytes:
            raise WorkspaceRefused("too-large", f"it has {manifest.size} bytes; the limit is {max_bytes}")
        python = str(self._worker.metadata.get("python") or "")
        if python.split(".")[:2] != manifest.python.split("."):
            raise WorkspaceRefused(
                "python-version",
                f"it was captured by Python {manifest.python}, and this worker has Python {python}; "
                "set SessionConfig.python to the same version",
            )
        return manifest

    async def _send_variables(
        self, manifest: WorkspaceManifest, contents: "_FetchedContents", remains: Remains | None
    ) -> m.RestoreWorkspaceMessage:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            mapped = contents.choose_mapped(manifest)
            sender = asyncio.create_task(_send_contents(ours, manifest, contents, tuple(mapped), remains))
            try:
                router = self._worker.require_router()
                fds = (theirs.fileno(), *(shared.fd for shared in mapped.values()))
                reply = await router.request(m.RestoreWorkspaceMessage(), fds=fds)
            finally:
                sender.cancel()
                await asyncio.wait([sender])
        return cast(m.RestoreWorkspaceMessage, reply)


def _describe_failure(problem: WorkerRequestFailed, max_bytes: int) -> CaptureFailed:
    if problem.kind == "TooLarge":
        return CaptureFailed("too-large", f"the files have more than {max_bytes} bytes")
    return CaptureFailed("worker", str(problem))


@dataclass(frozen=True)
class _FetchedContents:
    """The contents of a workspace: those that are in memory, and the stored and verified chunks of the others."""

    shared: dict[Content, SharedContent]
    chunks: dict[bytes, bytes]

    def get_part(self, content: Content, number: int) -> bytes:
        if content in self.shared:
            return self.shared[content].read_chunk(number)
        return decode_chunk(content.chunks[number], self.chunks[content.chunks[number]])

    def read(self, content: Content) -> bytes:
        return b"".join(self.get_part(content, number) for number in range(len(content.chunks)))

    def choose_mapped(self, manifest: WorkspaceManifest) -> dict[int, SharedContent]:
        """Return what the worker can map, by its place among the contents of the variables."""
        found = {
            place: self.shared[content]
            for place, content in enumerate(_iterate_variables(manifest))
            if content in self.shared
        }
        return dict(list(found.items())[:MAX_SHARED])


async def _fetch_contents(manifest: WorkspaceManifest, fetch: Fetch) -> _FetchedContents:
    """Get all chunks as they are stored, and verify each, so that nothing is loaded if one is wrong."""
    contents = list(manifest.iterate_contents())
    shared = {content: found for content in contents if (found := find_shared(content)) is not None}
    missing = [content for content in contents if content not in shared]
    chunks: dict[bytes, bytes] = {}
    sizes: dict[bytes, int] = {}
    places = asyncio.Semaphore(_PARALLEL_FETCHES)

    async def get(digest: bytes) -> None:
        async with places:
            stored = await fetch(digest)
            if not isinstance(stored, bytes | bytearray | memoryview):
                raise WorkspaceRefused("missing", f"the chunk {digest.hex()[:16]} is not stored")
            chunks[digest] = bytes(stored)
            sizes[digest] = len(await asyncio.to_thread(decode_chunk, digest, chunks[digest]))

    try:
        async with asyncio.TaskGroup() as group:
            for digest in {digest for content in missing for digest in content.chunks}:
                group.create_task(get(digest))
    except BaseExceptionGroup as problems:  # the others are of the same store
        raise problems.exceptions[0] from None
    for content in missing:
        if content.size != sum(sizes[digest] for digest in content.chunks):
            raise WorkspaceRefused("damaged", f"content of {content.size} bytes has chunks of another size")
    return _FetchedContents(shared, chunks)


def _write_files(files: Files, entries: tuple[WorkspaceFile, ...], contents: _FetchedContents) -> dict[str, str]:
    """Write the files. Returns the reason for each that could not be written."""
    return files.write_entries(
        (entry.path, entry.mode, None if entry.kind == "directory" else contents.read(entry.content))
        for entry in entries
    )


async def _send_contents(
    sock: socket.socket,
    manifest: WorkspaceManifest,
    contents: _FetchedContents,
    mapped: tuple[int, ...],
    remains: Remains | None,
) -> None:
    """Send what the worker loads and does not map. A worker that closes the socket reports the reason itself."""
    loop = asyncio.get_running_loop()
    plan = RestorePlan(
        imports=manifest.imports,
        contents=tuple(content.size for content in manifest.contents),
        groups=tuple(
            PlannedGroup(
                names=group.names,
                content=group.content,
                offset=group.offset,
                size=group.size,
                buffers=tuple(buffer.size for buffer in group.buffers),
            )
            for group in manifest.groups
        ),
        state=manifest.state.size,
        cell_count=manifest.cell_count,
        mapped=mapped,
        remains=remains,
    )
    with contextlib.suppress(OSError):
        await loop.sock_sendall(sock, encode_request(plan))
        for place, content in enumerate(_iterate_variables(manifest)):
            for number in range(0 if place in mapped else len(content.chunks)):
                await loop.sock_sendall(sock, await asyncio.to_thread(contents.get_part, content, number))


def _iterate_variables(manifest: WorkspaceManifest) -> Iterable[Content]:
    yield from manifest.contents
    for group in manifest.groups:
        yield from group.buffers
    yield manifest.state
