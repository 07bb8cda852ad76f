"""The worker that has a workspace, and its live snapshots, by which it returns to one of its latest versions quickly.

A worker goes back to an earlier version by a sleeping fork of its process. A fork of the conversation has a worker of
its own, in a sandbox of its own: a fork of the process would stay in the sandbox of its origin, with the same directory
and the same open files, since a confined process cannot be moved. Its worker maps the large contents of the checkpoint,
which are kept in memory for that, and loads the rest of it.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from standfast.base.errors import Closed, StandfastError
from standfast.base.log import get_logger
from standfast.store.records import WorkspaceRecord
from standfast.workers import SnapshotPoint, WorkerError, WorkerSession, WorkspaceManifest
from standfast.workers.shared_contents import SharedContent, share_contents
from standfast.workspaces.ownership import RecordedCall
from standfast.workspaces.run_workspace import RunWorkspace
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.view import read_content

_log = get_logger(__name__)


@dataclass(frozen=True)
class LivePoint:
    """A snapshot of the variables, the manifest of that moment, and its large contents in memory."""

    snapshot: SnapshotPoint
    manifest: WorkspaceManifest
    contents: tuple[SharedContent, ...] = ()


class LiveSnapshots:
    """The latest snapshots of one worker, at most ``limit``. They end with the worker."""

    def __init__(self, session: WorkerSession, limit: int) -> None:
        self._session, self._limit = session, limit
        self._points: dict[int, LivePoint] = {}
        self._pending: SnapshotPoint | None = None

    async def take(self) -> None:
        """Take a snapshot of the idle worker, if that is configured and possible; drop the oldest above the limit."""
        if not self._limit:
            return
        unused, self._pending = [self._pending] if self._pending is not None else [], None
        while len(self._points) >= self._limit:
            unused.append(self._points.pop(next(iter(self._points))).snapshot)
        with suppress(WorkerError, Closed):
            for snapshot in unused:
                await self._session.drop(snapshot)
            self._pending = await self._session.snapshot()

    def add(self, version: int, manifest: WorkspaceManifest, contents: tuple[SharedContent, ...]) -> None:
        """Use the snapshot that was taken last for a version, whose manifest is complete now."""
        if self._pending is not None:
            self._points[version], self._pending = LivePoint(self._pending, manifest, contents), None

    def forget(self) -> None:
        """Forget all snapshots of a worker that has ended."""
        self._points, self._pending = {}, None

    async def return_to(
        self, version: int, current: WorkspaceManifest, storage: WorkspaceStorage
    ) -> WorkspaceManifest | None:
        """Bring variables and files back to a version; return its manifest, or ``None`` if there is no snapshot of it.

        ``current`` is the manifest of what the worker has now. If this raises, the worker must not be used any more.
        """
        point = self._points.get(version)
        if point is None or not can_restore_files(current, point.manifest):
            return None
        await self._session.rollback(point.snapshot)
        await restore_files(self._session, storage, current, point.manifest)
        # What was taken back is dropped first.
        self._points = dict(sorted(self._points.items(), key=lambda item: item[0] <= version))
        return point.manifest


async def keep_contents(
    storage: WorkspaceStorage,
    manifest: WorkspaceManifest,
    written: dict[bytes, bytes],
    held: tuple[SharedContent, ...],
) -> tuple[SharedContent, ...]:
    """Return the large contents of a checkpoint in memory, from the chunks that were just written, or from ``held``.

    Without them, which is what a failure leads to, a fork reads the checkpoint.
    """

    async def fetch(digest: bytes) -> bytes:
        return written[digest] if digest in written else await storage.fetch(digest)

    try:
        return await share_contents(manifest, fetch, held)
    except (StandfastError, OSError) as problem:
        _log.warning("the large contents of a workspace are not kept in memory: %s", problem)
        return ()


def can_restore_files(current: WorkspaceManifest, wanted: WorkspaceManifest) -> bool:
    """Return whether files are all that has to be removed or written, and their content is known."""
    target = {one.path: one.kind for one in wanted.files}
    kept = all(one.kind == "file" or target.get(one.path) == one.kind for one in current.files)
    return kept and not current.unkept_files and not wanted.unkept_files


async def restore_files(
    session: WorkerSession, storage: WorkspaceStorage, current: WorkspaceManifest, wanted: WorkspaceManifest
) -> None:
    """Change the files of a session from those of one manifest to those of another."""
    present, target = {one.path: one for one in current.files}, {one.path: one for one in wanted.files}
    for path in present:
        if path not in target or target[path].kind != present[path].kind:
            await session.files.remove(path)
    entries: list[tuple[str, int, bytes | None]] = []
    for path in sorted(target):
        file, before = target[path], present.get(path)
        if before is None or (before.kind, before.mode, before.content) != (file.kind, file.mode, file.content):
            is_file = file.kind == "file"
            entries.append((path, file.mode, await read_content(storage, file.content) if is_file else None))
    problems = await asyncio.to_thread(session.files.write_entries, entries)
    if problems:
        path, reason = next(iter(problems.items()))
        raise OSError(f"{path} could not be written: {reason}")


@dataclass(eq=False)
class LiveWorkspace:
    """The worker that has a workspace at a version. ``dirty`` means that it may have gone beyond that version."""

    session: WorkerSession
    workspace_id: str = ""
    version: int = 0
    saved_version: int = 0
    manifest: WorkspaceManifest | None = None
    """That of the latest checkpoint in the store: what it has is not written again."""
    manifest_version: int = 0
    """The version whose files are exactly those of the manifest."""
    contents: tuple[SharedContent, ...] = ()
    """Large contents of the manifest in memory, for forks of the conversation."""
    dirty: bool = False
    is_seeded: bool = False
    """Whether the random generators of the worker continue as those of any other worker at this version would."""
    prepared: set[str] = field(default_factory=set)
    """The code that has prepared the worker."""
    pending: RecordedCall | None = None
    """The call that made the next version, until its outcome is committed or discarded."""
    last_call: RecordedCall | None = None
    last_run: RunWorkspace | None = None
    saver: "asyncio.Task[None] | None" = None
    forked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the worker is about to be forked, when it must not run code."""
    problem: str = ""
    """Why the last checkpoint could not be written."""
    snapshot_limit: int = 0
    is_released: bool = False

    def __post_init__(self) -> None:
        self.forked.set()
        self.snapshots = LiveSnapshots(self.session, self.snapshot_limit)

    def release(self) -> None:
        self.contents, self.is_released = (), True
        self.snapshots.forget()

    @property
    def is_usable(self) -> bool:
        return not self.dirty and self.session.is_alive

    def is_at(self, record: WorkspaceRecord | None) -> bool:
        at = (record.workspace_id, record.version) if record else ("", 0)
        return self.is_usable and (self.workspace_id, self.version) == at

    async def settle(self) -> None:
        """Wait for the fork of the worker, and for the outcome of the call that made the next version."""
        await self.forked.wait()
        call = self.pending
        if call is None:
            return
        await call.finished.wait()
        if self.pending is call:
            self.pending = None
            if call.committed:
                self.version, self.dirty = self.version + 1, False
