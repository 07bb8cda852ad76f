"""The worker that has a workspace, and what its executor knows about it."""

import asyncio
from dataclasses import dataclass, field

from standfast.store.records import WorkspaceRecord
from standfast.workers import WorkerSession, WorkspaceManifest
from standfast.workers.shared_contents import SharedContent
from standfast.workspaces.live_snapshots import LiveSnapshots
from standfast.workspaces.ownership import RecordedCall
from standfast.workspaces.run_workspace import RunWorkspace


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
