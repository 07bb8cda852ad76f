"""Run the cells of conversations in their workspaces, version by version, and save the results.

After a cell the worker is forked, and the fork writes the checkpoint while the worker continues: only a caller that
comes back at once waits for the fork. While one checkpoint is being written, no other is started; the next one has
everything up to its start.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from standfast.base.errors import BlobsMissing, Closed, NotFound, StandfastError, WorkspaceMoved
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.store.backend import Backend
from standfast.store.records import WorkspaceRecord
from standfast.workers import Capture, WorkerError, WorkerSession
from standfast.workers.cell_executors import CellObserver, Durability, SlotAccess, run_prepared
from standfast.workers.python_sessions import PythonCallResult
from standfast.workspaces.live_workspace import LiveWorkspace, keep_contents
from standfast.workspaces.ownership import Ownership, RecordedCall, acquire_workspace
from standfast.workspaces.recovery import RestoreReport, compute_output_digest, make_restored_data, restore_version
from standfast.workspaces.run_workspace import RunWorkspace
from standfast.workspaces.storage import WorkspaceStorage, refuse_clear, refuse_encrypted
from standfast.workspaces.versions import Cell, list_prepared

_log = get_logger(__name__)
_RESTORE_ATTEMPTS = 4
_MAX_EXTERNAL_DEATHS = 10
_SEED_BITS = 53


class WorkspaceExecutor:
    """Runs the cells of conversations in the workspaces of one backend."""

    def __init__(
        self,
        backend: Backend,
        *,
        durability: Durability,
        max_checkpoint_mb: int,
        live_snapshots: int = 0,
        is_encrypted: bool = False,
    ) -> None:
        self.is_encrypted, self.live_snapshots = is_encrypted, live_snapshots
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
        run: RunWorkspace | None = None,
        observer: CellObserver | None = None,
        prepare: str = "",
    ) -> PythonCallResult:
        """Run a cell in the workspace ``key``, as it is in the store, and add the version that it makes.

        ``run`` is the run that makes the call, unless it is durable. ``prepare`` is run before the cell, unless it has
        prepared the worker.
        """
        if run is not None and run.is_confidential:
            refuse_clear(self.backend, is_encrypted=self.is_encrypted)
        owned, record = await self._acquire(slot, key, timeout, call)
        async with owned.hold():
            notes: list[str] = []
            if run is not None:
                record, problem = await run.prepare(self.storage, key, record)
                notes += [problem] if problem else []
            live, report = await self._ensure_current(slot, key, record)
            notes += [report.describe()] if report else []
            live.last_run = run
            if report is not None and call is not None:
                call.add_note("workspace.restored", make_restored_data(key, report))
            live.dirty = True
            place = await self.storage.find_place(key)
            seed = None if live.is_seeded else secrets.randbits(_SEED_BITS)
            due = "" if prepare in live.prepared else prepare
            result = await run_prepared(live.session, code, timeout, observer, prepare=due, seed=seed)
            live.is_seeded = True
            live.prepared.add(due)
            if result.state == "lost":
                slot.discard()
                await self._release(owned, call)
                return PythonCallResult(result, "variables", record is None, tuple(notes), is_kept=True)
            run_id, separator, path = origin.partition(":")
            made_by = (path, run_id if call is None else call.run_id) if separator else (origin, "")
            cell = Cell(
                live.version,
                code,
                compute_output_digest(result),
                *made_by,
                timeout,
                place=place,
                seed=seed,
                prepare=due,
            )
            notes += await self._finish_cell(slot, live, key, record, owned, cell, call)
            if run is not None and call is None:
                save = partial(self._save_before_stop, slot, key)
                run.note_version(self.storage, key, live.workspace_id, live.version, cell, save)
        return PythonCallResult(result, "variables", record is None, tuple(notes))

    @asynccontextmanager
    async def hold(self, slot: SlotAccess, key: str, *, timeout: float) -> AsyncIterator[WorkerSession]:
        """Hold the session of a workspace; what the block changes becomes a version that is saved when it ends."""
        owned, record = await self._acquire(slot, key, timeout, None)
        async with owned.hold():
            live, _ = await self._ensure_current(slot, key, record)
            live.dirty = True
            place = await self.storage.find_place(key)
            yield live.session
            op = self.storage.build_append_op(key, record, Cell(live.version, code="", place=place))
            await self.backend.commit(op, owned.build_fence_op(), owned.build_release_op())
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

    # --- ownership ----------------------------------------------------------------------------------

    async def _acquire(
        self, slot: SlotAccess, key: str, timeout: float, call: RecordedCall | None
    ) -> tuple[Ownership, WorkspaceRecord | None]:
        """Own a workspace, and return its record.

        A live worker of this process is expected to have the latest version, which is cheaper to check than to read.
        """
        live: LiveWorkspace | None = slot.live
        if live is None:
            await refuse_encrypted(self.backend, key, is_encrypted=self.is_encrypted)
        else:
            await live.settle()
        if live is not None and live.is_usable and live.version:
            expected = WorkspaceRecord(
                key=key, workspace_id=live.workspace_id, version=live.version, created_at=0.0, updated_at=0.0
            )
            with suppress(WorkspaceMoved):
                check = self.storage.build_append_op(key, expected)
                owned = await acquire_workspace(
                    self.backend, key, owner=self._owner, wait=timeout, call=call, check=check
                )
                return owned, expected
        owned = await acquire_workspace(self.backend, key, owner=self._owner, wait=timeout, call=call)
        async with owned.hold():
            return owned, await self.storage.get(key)

    async def _release(self, owned: Ownership, call: RecordedCall | None) -> None:
        if call is not None:
            call.add_ops(owned.build_release_op())
        else:
            await self.backend.commit(owned.build_release_op())

    # --- the worker ---------------------------------------------------------------------------------

    async def _ensure_current(
        self, slot: SlotAccess, key: str, record: WorkspaceRecord | None
    ) -> tuple[LiveWorkspace, RestoreReport | None]:
        """Return the worker with the latest version, and the report if it had to be restored."""
        live: LiveWorkspace | None = slot.live
        if live is not None and (live.is_at(record) or await self._return_live(live, key, record)):
            return live, None
        deadly = attempt = external = 0
        unloadable: list[int] = []
        while attempt < _RESTORE_ATTEMPTS and external < _MAX_EXTERNAL_DEATHS:
            slot.discard()
            live = slot.live = LiveWorkspace(await slot.acquire(), dirty=True, snapshot_limit=self.live_snapshots)
            if record is None:
                await self.storage.read_latest_line(key, None)
                live.dirty = False
                return live, None
            # A cell that ends each worker in which it is run again would keep the workspace from ever being used.
            is_last = attempt == _RESTORE_ATTEMPTS - 1
            report = await restore_version(
                live.session,
                self.storage,
                key,
                record,
                max_bytes=self.max_bytes,
                until=deadly * is_last,
                unloadable=unloadable,
                is_shared=bool(self.live_snapshots),
            )
            cause = live.session.info.cause
            if cause is not None and cause.is_external:
                external += 1
                continue
            if report.unloadable:
                unloadable.append(report.unloadable)
                continue
            if live.session.is_alive:
                live.workspace_id, live.version, live.dirty = record.workspace_id, record.version, False
                live.saved_version, live.manifest = report.checkpoint, report.manifest
                live.contents, live.prepared = report.contents, set(report.prepared)
                live.is_seeded = bool(report.checkpoint or report.replayed)
                return live, report
            if not report.missing or (attempt and report.missing[0] != deadly):
                break
            deadly, attempt = report.missing[0], attempt + 1
        raise Closed(f"the worker ended while the workspace {key!r} was restored")

    async def _return_live(self, live: LiveWorkspace, key: str, record: WorkspaceRecord | None) -> bool:
        """Bring the worker back to an earlier version by a snapshot, if that is what the record asks for."""
        if record is None or not self.live_snapshots or record.workspace_id != live.workspace_id:
            return False
        if live.saver is not None:
            await asyncio.wait([live.saver])
        line = await self.storage.read_line(key, record.version)
        if not line or not live.is_usable or live.manifest is None or live.manifest_version != live.version:
            return False
        live.dirty = True
        try:
            manifest = await live.snapshots.return_to(line[-1].number, live.manifest, self.storage)
        except (StandfastError, OSError) as problem:
            _log.warning("workspace %s: not taken from a snapshot: %s", key, problem)
            return False
        if manifest is not None:
            live.version = live.manifest_version = record.version
            live.saved_version, live.manifest, live.dirty = line[-1].number, manifest, False
            live.prepared = set(list_prepared(line))
        return manifest is not None

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
        notes = [describe_problem(live.problem)] if live.problem else []
        if call is not None and live.problem:
            call.add_note("workspace.unsaved", make_unsaved_data(key, live))
        live.problem = ""
        live.workspace_id = op.workspace_id
        if call is None:
            await self.backend.commit(op, owned.build_fence_op(), owned.build_release_op())
            live.version, live.dirty = op.expected + 1, False
        else:
            call.add_ops(op, owned.build_release_op())
            live.pending = call
        live.last_call = call
        if self.durability == "each_call" and (live.saver is None or live.saver.done()):
            self._start_saver(slot, live, key, op.expected + 1)
        if call is not None:
            call.before_stop(lambda: self._save_before_stop(slot, key))
        return notes

    # --- checkpoints --------------------------------------------------------------------------------

    async def _capture(self, live: LiveWorkspace) -> Capture | None:
        """Fork the worker for a checkpoint, and for a live snapshot if these are configured."""
        try:
            await live.snapshots.take()
            return await live.session.capture(live.manifest or (), max_bytes=self.max_bytes)
        except (WorkerError, Closed) as problem:
            live.problem = str(problem)
            return None
        finally:
            live.forked.set()

    async def _save_in_background(
        self, slot: SlotAccess, live: LiveWorkspace, key: str, version: int, call: RecordedCall | None
    ) -> None:
        before = live.manifest
        with slot.keep():
            capture = await self._capture(live)
            if capture is not None:
                async with self.storage.open_large_writes():
                    await self._write(live, key, version, capture, call)
        is_behind = live.saved_version == version and (live.version > version or live.pending is not None)
        if is_behind or (before is not None and live.manifest is None):  # its content was pruned
            slot.start(self._save_next(slot, live, key), name=f"the next checkpoint of {key}")

    def _start_saver(self, slot: SlotAccess, live: LiveWorkspace, key: str, version: int) -> None:
        def finish(task: "asyncio.Task[None]") -> None:
            if live.saver is task:  # the next one may have started, and not have forked the worker yet
                live.forked.set()

        live.forked.clear()
        work = self._save_in_background(slot, live, key, version, live.last_call)
        live.saver = slot.start(work, name=f"a checkpoint of {key}")
        live.saver.add_done_callback(finish)

    async def _save_next(self, slot: SlotAccess, live: LiveWorkspace, key: str) -> None:
        """Save the version that was made while the one before it was being saved."""
        if slot.live is not live:
            return
        async with slot.enter():
            await live.settle()
            is_behind = live.saved_version < live.version and live.is_usable and slot.live is live
            if is_behind and (live.saver is None or live.saver.done()):
                self._start_saver(slot, live, key, live.version)
                await live.forked.wait()

    async def _save_before_stop(self, slot: SlotAccess, key: str) -> None:
        """Save the latest version before its run ends or pauses. What cannot be saved is replayed later."""
        try:
            async with slot.enter():
                await self.save(slot, key)
                live = slot.live
                if live is not None and live.problem and live.last_call is not None:
                    await live.last_call.record_note("workspace.unsaved", make_unsaved_data(key, live))
        except (TimeoutError, StandfastError) as problem:
            _log.warning("workspace %s: not saved: %s", key, problem)

    async def _save(self, slot: SlotAccess, live: LiveWorkspace, key: str) -> None:
        capture = await self._capture(live)
        if capture is not None:
            async with self.storage.open_large_writes():
                await self._write(live, key, live.version, capture, live.last_call)

    async def _write(
        self, live: LiveWorkspace, key: str, version: int, capture: Capture, call: RecordedCall | None
    ) -> None:
        """Write a checkpoint. A failure leaves the one before it, and is reported with the next cell."""
        written: dict[bytes, bytes] | None = {} if self.live_snapshots else None
        try:
            async with capture:
                saved = await self.storage.write_capture(
                    capture, key=key, workspace_id=live.workspace_id, version=version, written=written
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
        except Closed as problem:  # the program ends, and the calls since the last checkpoint are run again later
            _log.debug("workspace %s: the checkpoint of version %d was not written: %s", key, version, problem)
        except (StandfastError, OSError) as problem:
            live.problem = str(problem)
            _log.warning("workspace %s: the checkpoint of version %d was not written: %s", key, version, problem)
        else:
            live.manifest, live.saved_version, live.manifest_version = saved.manifest, version, version
            if written is not None and not live.is_released:
                live.contents = await keep_contents(self.storage, saved.manifest, written, live.contents)
            if live.is_released:  # meanwhile
                live.release()
            live.snapshots.add(version, saved.manifest, live.contents)
            if live.last_run is not None:
                live.last_run.note_checkpoint(version, saved.checkpoint_id)


def make_unsaved_data(key: str, live: LiveWorkspace) -> dict[str, Any]:
    return {"key": key, "reason": live.problem, "checkpoint": live.saved_version}


def describe_problem(problem: str) -> str:
    return f"[the variables and files could not be saved, the last checkpoint is kept: {problem}]"
