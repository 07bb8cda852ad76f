"""The workspace of a durable run's sandbox, in the store of its runtime.

Each call makes a version with a checkpoint, written in the commit of the call's outcome. A sandbox that is opened
again, in whichever process, begins with the latest version.
"""

import asyncio
import io
import tarfile
from functools import partial
from typing import Any

import msgspec

from standfast.base.errors import NotFound, StandfastError, Unsupported, WorkspaceMoved
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.sandbox.archives import read_archive, write_archive
from standfast.sandbox.client import BaseSandboxClient
from standfast.sandbox.config import SandboxArchiveLimits
from standfast.sandbox.errors import SandboxError
from standfast.sandbox.sessions import BaseSandboxSession
from standfast.sandbox.snapshot import RemoteSnapshot
from standfast.store.backend import Backend
from standfast.store.operations import AppendVersions, Op
from standfast.workers.errors import WorkspaceRefused
from standfast.workers.wire.manifests import WorkspaceManifest
from standfast.workspaces.ownership import RecordedCall
from standfast.workspaces.recovery import count_calls
from standfast.workspaces.storage import WorkspaceStorage, build_checkpoint_op, refuse_encrypted
from standfast.workspaces.versions import Cell, encode_cell

DEPENDENCY = "standfast.store"
"""The key of the store among the dependencies of a session."""

_log = get_logger(__name__)


class StoredSandbox:
    """The versions of one workspace. ``lock`` is held from the archive of a version to the commit that has it.

    It is what :class:`RemoteSnapshot` finds in the dependencies of the session.
    """

    def __init__(
        self, backend: Backend, key: str, recorded: RecordedCall, *, run_id: str, is_encrypted: bool = False
    ) -> None:
        self.key, self.run_id, self.lock = key, run_id, asyncio.Lock()
        self.is_outdated = False
        """Whether others have changed or deleted the workspace. What this sandbox has becomes its next version."""
        self.lost_versions: tuple[int, ...] = ()
        self._storage, self._recorded, self._is_encrypted = WorkspaceStorage(backend), recorded, is_encrypted
        self._workspace_id, self._version = new_id("workspace"), 0
        self._manifest: WorkspaceManifest | None = None
        self._state: dict[str, Any] | None = None

    def bind(
        self, session: BaseSandboxSession, client: BaseSandboxClient[Any], limits: SandboxArchiveLimits | None
    ) -> None:
        """Save the workspace of this session, unless it has more bytes than archives may have."""
        self._session, self._describe = session, partial(client.describe_session, session)
        self._max_bytes = (limits or SandboxArchiveLimits()).max_input_bytes
        session.dependencies.bind_value(DEPENDENCY, self, overwrite=True)

    @property
    def snapshot(self) -> RemoteSnapshot:
        """The snapshot of sessions that begin with the latest version."""
        return RemoteSnapshot(id="workspace", client_dependency_key=DEPENDENCY)

    async def load(self) -> dict[str, Any] | None:
        """Find the latest version; return the state of its session, or None if the workspace is a new one."""
        await refuse_encrypted(self._storage.backend, self.key, is_encrypted=self._is_encrypted)
        record = await self._storage.get(self.key)
        if record is None:
            return None
        self._workspace_id, self._version = record.workspace_id, record.version
        line = await self._storage.read_line(self.key, record.version)
        refused: list[str] = []
        missing: list[int] = []
        number = 0
        while line:
            latest = line[-1]
            try:
                if latest.checkpoint_id is not None:
                    _, self._manifest = await self._storage.get_manifest(self.key, latest.number)
                    number = latest.number
                    break
            except (WorkspaceRefused, NotFound, Unsupported) as problem:
                _log.warning("workspace %s: the checkpoint of version %d: %s", self.key, latest.number, problem)
                refused.append(str(problem))
            missing.insert(0, line.pop().number)
        self.lost_versions = tuple(missing)
        if number or missing:
            unkept = self._manifest.unkept_files if self._manifest else {}
            data = {"key": self.key, "version": self._version, "checkpoint": number, "missing": missing}
            await self._recorded.record_note("workspace.restored", {**data, "unkept": unkept, "refused": refused})
        states = [version.cell.sandbox for version in line if version.cell.sandbox is not None]
        self._state = states[-1] if states else None
        return self._state

    def describe_loss(self) -> str | None:
        """Return a note for the model about commands whose effects are lost."""
        if not self.lost_versions:
            return None
        return f"The workspace is not complete: the effects of {count_calls(self.lost_versions)} are lost."

    # --- what RemoteSnapshot uses -----------------------------------------------------------------

    async def exists(self, snapshot_id: str) -> bool:
        return self._manifest is not None

    async def download(self, snapshot_id: str) -> io.IOBase:
        if self._manifest is None:
            raise NotFound("checkpoint", self.key)
        return await write_archive(self._manifest, self._storage)

    async def upload(self, snapshot_id: str, data: io.IOBase) -> None:
        """Save the workspace between two calls: commands may have changed files after their calls ended."""
        await self._refresh()
        try:
            manifest, chunks = await asyncio.to_thread(read_archive, data, self._get_known(), max_bytes=self._max_bytes)
            if self._manifest is not None and manifest.files == self._manifest.files:
                return
            await self._storage.write_chunks(_iterate(chunks))
            state = self._describe()
            changed = state if state != self._state else None
            place = await self._storage.find_place(self.key)
            cell = Cell(self._version, "", run_id=self.run_id, sandbox=changed, place=place)
            ops, note = self._build_version(cell, manifest)
            await self._recorded.record_note("workspace.saved", note, *ops)
        except (WorkspaceMoved, tarfile.TarError, ValueError) as problem:
            _log.warning("workspace %s: not saved at the end of a run: %s", self.key, problem)
            return
        self.adopt(manifest, state)

    # --- versions of calls ------------------------------------------------------------------------

    async def add_version(self, call: RecordedCall, path: str) -> "PendingVersion | None":
        """Archive the workspace and add its version to the outcome of a call; None if nothing has changed.

        Call :meth:`PendingVersion.finish` when the outcome is committed. A workspace that cannot be archived becomes a
        version without a checkpoint: what the call did is lost when the workspace is restored.
        """
        await self._refresh()
        state = self._describe()
        manifest: WorkspaceManifest | None = None
        try:
            archive = await self._session.persist_workspace()
            with archive:
                found, chunks = await asyncio.to_thread(
                    read_archive, archive, self._get_known(), max_bytes=self._max_bytes
                )
            if self._manifest is not None and found.files == self._manifest.files and state == self._state:
                return None
            await self._storage.write_chunks(_iterate(chunks))
            manifest = found
        except (SandboxError, StandfastError, tarfile.TarError, OSError, ValueError) as problem:
            _log.warning("workspace %s: version %d could not be saved: %s", self.key, self._version + 1, problem)
        changed = state if state != self._state else None
        place = await self._storage.find_place(self.key)
        cell = Cell(self._version, "", call=path, run_id=self.run_id, sandbox=changed, place=place)
        ops, note = self._build_version(cell, manifest)
        call.add_ops(*ops)
        if manifest is not None:
            call.add_note("workspace.saved", note)
        return PendingVersion(self, manifest, state)

    async def _refresh(self) -> None:
        if self.is_outdated:
            record = await self._storage.get(self.key)
            self._workspace_id = record.workspace_id if record else new_id("workspace")
            self._version, self._manifest, self._state = record.version if record else 0, None, None
            self.is_outdated = False

    def adopt(self, manifest: WorkspaceManifest | None, state: dict[str, Any]) -> None:
        """Take over a version that was committed."""
        self._version, self._state = self._version + 1, state
        self._manifest = manifest or self._manifest

    def _get_known(self) -> frozenset[bytes]:
        return self._manifest.digests if self._manifest is not None else frozenset()

    def _build_version(self, cell: Cell, manifest: WorkspaceManifest | None) -> tuple[list[Op], dict[str, Any]]:
        number = self._version + 1
        ops: list[Op] = [
            AppendVersions(
                key=self.key,
                workspace_id=self._workspace_id,
                expected=self._version,
                versions=(encode_cell(cell),),
            )
        ]
        note: dict[str, Any] = {"key": self.key, "version": number}
        if manifest is not None:
            checkpoint = build_checkpoint_op(manifest, self.key, self._workspace_id, number)
            ops.append(checkpoint)
            note |= {"checkpoint": checkpoint.checkpoint_id, "size": checkpoint.size, "unkept": manifest.unkept_files}
        return ops, note


class PendingVersion(msgspec.Struct):
    """A version that is written with the outcome of its call."""

    sandbox: StoredSandbox
    manifest: WorkspaceManifest | None
    state: dict[str, Any]

    def finish(self, *, committed: bool) -> None:
        if committed:
            self.sandbox.adopt(self.manifest, self.state)
        else:
            self.sandbox.is_outdated = True


async def _iterate(chunks: dict[bytes, bytes]) -> Any:
    for item in chunks.items():
        yield item
