"""Keep the workspaces of conversations: run their cells, version by version, and save what they leave behind.

The caller of a cell waits for a fork of the worker. The fork writes the checkpoint while the worker goes on. While one
checkpoint is being written no other is begun; the one that follows then has everything up to that moment.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from standfast.base.errors import BlobsMissing, Closed, NotFound, StandfastError, Unsupported
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.store.backend import Backend
from standfast.store.records import WorkspaceRecord
from standfast.workers import Capture, CaptureFailed, WorkerSession, WorkspaceManifest
from standfast.workers.python_sessions import Durability, PythonCallResult, SlotAccess
from standfast.workspaces.calls import RecordedCall
from standfast.workspaces.ownership import LEASE_MARGIN, Ownership, acquire_workspace
from standfast.workspaces.recovery import RestoreReport, compute_output_digest, restore_version
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import Cell, parse_session_id

_log = get_logger(__name__)


@dataclass(eq=False)
class LiveWorkspace:
    """The worker that has a workspace at a version. ``dirty`` means that it may have gone beyond that version."""

    session: WorkerSession
    workspace_id: str = ""
    version: int = 0
    saved_version: int = 0
    manifest: WorkspaceManifest | None = None
    """That of the latest checkpoint in the store: what it has is not written again."""
    dirty: bool = False
    pending: RecordedCall | None = None
    """The call that made the next version, until its outcome is committed or given up."""
    last_call: RecordedCall | None = None
    saver: "asyncio.Task[None] | None" = None
    problem: str = ""
    """Why the last checkpoint could not be written."""

    def is_at(self, record: WorkspaceRecord | None) -> bool:
        at = (record.workspace_id, record.version) if record else ("", 0)
        return not self.dirty and self.session.is_alive and (self.workspace_id, self.version) == at

    async def settle(self) -> None:
        """Wait for the outcome of the call that made the next version."""
        call = self.pending
        if call is None:
            return
        await call.finished.wait()
        if self.pending is call:
            self.pending = None
            if call.committed:
                self.version, self.dirty = self.version + 1, False


class WorkspaceKeeper:
    """Runs the cells of conversations in the workspaces of one backend."""

    def __init__(
        self, backend: Backend, *, durability: Durability, max_checkpoint_mb: int, is_encrypted: bool = False
    ) -> None:
        self.is_encrypted = is_encrypted
        self.backend, self.durability, self.max_bytes = backend, durability, max_checkpoint_mb << 20
        self.storage = WorkspaceStorage(backend)
        self._owner = new_id("python")

    async def run(
        self,
        slot: SlotAccess,
        key: str,
        code: str,
        *,
        timeout: float,
        call: RecordedCall | None = None,
        origin: str = "",
    ) -> PythonCallResult:
        """Run a cell in the workspace ``key``, as it is in the store, and add the version that it makes."""
        if slot.live is not None:
            await slot.live.settle()
        else:
            await self._refuse_encrypted(key)
        owned = await self._acquire(key, timeout, call)
        async with self._release_on_error(owned):
            record = await self.storage.get(key)
            live, report = await self._ensure_current(slot, key, record, owned)
            notes = [report.describe()] if report else []
            if report is not None and call is not None:
                call.add_note("workspace.restored", make_restored_data(key, report))
            live.dirty = True
            result = await live.session.run(code, timeout=timeout, allow_input=False)
            if result.state == "lost":
                slot.discard()
                await self._release(owned, call)
                return PythonCallResult(result, "variables", record is None, tuple(notes), is_kept=True)
            run_id, separator, path = origin.partition(":")
            made_by = (path, run_id) if separator else (origin, "")
            cell = Cell(live.version, code, compute_output_digest(result), *made_by, timeout)
            notes += await self._finish_cell(slot, live, key, record, owned, cell, call)
        return PythonCallResult(result, "variables", record is None, tuple(notes))

    @asynccontextmanager
    async def hold(self, slot: SlotAccess, key: str, *, timeout: float) -> AsyncIterator[WorkerSession]:
        """Hold the session of a workspace; what the block changes becomes a version that is saved when it ends."""
        if slot.live is not None:
            await slot.live.settle()
        else:
            await self._refuse_encrypted(key)
        owned = await self._acquire(key, timeout, None)
        async with self._release_on_error(owned):
            record = await self.storage.get(key)
            live, _ = await self._ensure_current(slot, key, record, owned)
            live.dirty = True
            yield live.session
            op = self.storage.build_append_op(key, record, Cell(live.version, code=""))
            await self.backend.commit(op, owned.build_release_op())
            live.workspace_id, live.version, live.dirty = op.workspace_id, op.expected + 1, False
            await self._save(slot, live, key)

    async def save(self, slot: SlotAccess, key: str) -> None:
        """Write the checkpoint of the latest version, if it has none, and wait for it."""
        live = slot.live
        if live is None:
            return
        await live.settle()
        while live.saver is not None and not live.saver.done():
            await asyncio.wait([live.saver])
        if live.saved_version < live.version and not live.dirty and live.session.is_alive:
            await self._save(slot, live, key)

    async def _refuse_encrypted(self, key: str) -> None:
        """Refuse to store the workspace of an encrypted session in clear."""
        session_id = parse_session_id(key)
        if self.is_encrypted or session_id is None:
            return
        record = await self.backend.get_session(session_id)
        if record is not None and record.seal is not None:
            raise Unsupported(
                f"session {session_id!r} is encrypted, and its variables and files would be stored in clear: use a"
                " Runtime with encryption_key=, or use durability='off'"
            )

    # --- ownership ----------------------------------------------------------------------------------

    async def _acquire(self, key: str, timeout: float, call: RecordedCall | None) -> Ownership:
        return await acquire_workspace(
            self.backend, key, owner=self._owner, ttl=timeout + LEASE_MARGIN, patience=timeout, call=call
        )

    @asynccontextmanager
    async def _release_on_error(self, owned: Ownership) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            with suppress(StandfastError):
                await asyncio.shield(self.backend.commit(owned.build_release_op()))
            raise

    async def _release(self, owned: Ownership, call: RecordedCall | None) -> None:
        if call is not None:
            call.add_ops(owned.build_release_op())
        else:
            await self.backend.commit(owned.build_release_op())

    # --- the worker ---------------------------------------------------------------------------------

    async def _ensure_current(
        self, slot: SlotAccess, key: str, record: WorkspaceRecord | None, owned: Ownership
    ) -> tuple[LiveWorkspace, RestoreReport | None]:
        """Return the worker with the latest version, and what came back if it had to be restored."""
        live: LiveWorkspace | None = slot.live
        if live is not None and live.is_at(record):
            return live, None
        slot.discard()
        session = await slot.acquire()
        live = LiveWorkspace(session, dirty=True)
        slot.live = live
        if record is None:
            live.dirty = False
            return live, None
        report = await restore_version(session, self.storage, key, record.version, max_bytes=self.max_bytes)
        await self.backend.commit(owned.build_renewal_op())
        if not session.is_alive:
            raise Closed(f"the worker ended while the workspace {key!r} was restored")
        live.workspace_id, live.version, live.dirty = record.workspace_id, record.version, False
        live.saved_version, live.manifest = report.checkpoint, report.manifest
        return live, report

    async def _finish_cell(
        self,
        slot: SlotAccess,
        live: LiveWorkspace,
        key: str,
        record: WorkspaceRecord | None,
        owned: Ownership,
        cell: Cell,
        call: RecordedCall | None,
    ) -> list[str]:
        """Add the version that a cell has made, and begin its checkpoint."""
        op = self.storage.build_append_op(key, record, cell)
        notes = [live.problem] if live.problem else []
        live.problem = ""
        capture = await self._capture_if_idle(live)
        live.workspace_id = op.workspace_id
        if call is None:
            await self.backend.commit(op, owned.build_release_op())
            live.version, live.dirty = op.expected + 1, False
        else:
            call.add_ops(op, owned.build_release_op())
            live.pending = call
        live.last_call = call
        if capture is not None:
            live.saver = asyncio.create_task(self._save_in_background(slot, live, key, op.expected + 1, capture, call))
        elif live.problem:
            notes.append(live.problem)
            live.problem = ""
        if call is not None:
            call.before_stop(lambda: self._save_before_stop(slot, key))
        return notes

    # --- checkpoints --------------------------------------------------------------------------------

    async def _capture_if_idle(self, live: LiveWorkspace) -> Capture | None:
        """Fork the worker for a checkpoint, unless an earlier one is still being written."""
        if self.durability != "each_call" or (live.saver is not None and not live.saver.done()):
            return None
        return await self._capture(live)

    async def _capture(self, live: LiveWorkspace) -> Capture | None:
        try:
            return await live.session.capture(live.manifest or (), max_bytes=self.max_bytes)
        except (CaptureFailed, Closed) as problem:
            live.problem = describe_problem(problem)
            return None

    async def _save_in_background(
        self, slot: SlotAccess, live: LiveWorkspace, key: str, version: int, capture: Capture, call: RecordedCall | None
    ) -> None:
        with slot.keep():
            await self._write(live, key, version, capture, call)

    async def _save_before_stop(self, slot: SlotAccess, key: str) -> None:
        """Save the latest version before its run ends or pauses. What cannot be saved is replayed later."""
        try:
            async with slot.enter():
                await self.save(slot, key)
        except (TimeoutError, StandfastError) as problem:
            _log.warning("workspace %s: not saved: %s", key, problem)

    async def _save(self, slot: SlotAccess, live: LiveWorkspace, key: str) -> None:
        capture = await self._capture(live)
        if capture is not None:
            await self._write(live, key, live.version, capture, live.last_call)

    async def _write(
        self, live: LiveWorkspace, key: str, version: int, capture: Capture, call: RecordedCall | None
    ) -> None:
        """Write a checkpoint. A failure leaves the one before it, and is told with the next cell."""
        try:
            async with capture:
                saved = await self.storage.write_capture(
                    capture, key=key, workspace_id=live.workspace_id, version=version
                )
            if call is not None:
                await call.finished.wait()
                if not call.committed:
                    return
                data = {
                    "key": key,
                    "version": version,
                    "checkpoint": saved.checkpoint_id,
                    "size": saved.op.size,
                    "unkept": {**saved.manifest.unkept, **saved.manifest.unkept_files},
                }
                await call.record_note("workspace.saved", data, saved.op)
            else:
                await self.backend.commit(saved.op)
        except (BlobsMissing, NotFound) as problem:
            live.manifest = None  # write everything again
            _log.warning("workspace %s: the checkpoint of version %d was not written: %s", key, version, problem)
        except (StandfastError, OSError) as problem:
            live.problem = describe_problem(problem)
            _log.warning("workspace %s: the checkpoint of version %d was not written: %s", key, version, problem)
        else:
            live.manifest, live.saved_version = saved.manifest, version


def describe_problem(problem: BaseException) -> str:
    return f"[the variables and files could not be saved, the last save stays: {problem}]"


def make_restored_data(key: str, report: RestoreReport) -> dict[str, Any]:
    return {
        "key": key,
        "version": report.version,
        "checkpoint": report.checkpoint,
        "replayed": list(report.replayed),
        "missing": list(report.missing),
        "differs": [{"version": one.version, "call": one.call} for one in report.differs],
        "unkept": report.unkept,
        "refused": list(report.refused),
    }
