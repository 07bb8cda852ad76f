"""The tables of the in-memory backend, and every operation of a commit on them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from standfast.base.errors import KeyReused, NotFound, RunShared
from standfast.store import operations, preconditions
from standfast.store.memory_workspaces import DocumentTables, WorkspaceTables
from standfast.store.operations import Op, OpResult
from standfast.store.records import (
    EMPTY_HEAD,
    ApprovalRecord,
    Generation,
    Head,
    JournalEnd,
    Lease,
    LogEntry,
    QuarantinedItem,
    RunRecord,
    SessionRecord,
)
from standfast.store.tape import get_ranges_on_tape, iter_gaps


class MemoryTables(WorkspaceTables, DocumentTables):
    """Dictionaries, and an undo log of the running commit."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, SessionRecord] = {}
        self.erased_upto: dict[int, int] = {}
        self.tapes: dict[tuple[int, int], bytes | None] = {}
        self.links: dict[tuple[int, str], tuple[tuple[int, int], ...]] = {}
        self.generations: dict[tuple[str, int], Generation] = {}
        self.batch_keys: dict[tuple[str, str], tuple[str, Head]] = {}
        self.quarantine: dict[tuple[str, int, int], QuarantinedItem] = {}
        self.runs: dict[str, RunRecord] = {}
        self.run_count = 0
        self.logs: dict[tuple[str, str, int], LogEntry] = {}
        self.approvals: dict[str, ApprovalRecord] = {}
        self.approval_changes: dict[str, int] = {}
        """By approval: the number of its latest change."""
        self.counters: dict[str, int] = {}
        self.leases: dict[str, Lease] = {}

    def apply(self, ops: Iterable[Op], now: float) -> list[OpResult]:
        """Apply the operations in order. An exception undoes those before it."""
        self.undo_steps.clear()
        try:
            return [_APPLIERS[type(op)](self, op, now) for op in ops]
        except BaseException:
            for step in reversed(self.undo_steps):
                step()
            raise

    def splice(self, op: operations.Splice, now: float) -> Head:
        preconditions.check_view_update(op)
        if op.key is not None and (op.session_id, op.key.name) in self.batch_keys:
            digest, head = self.batch_keys[op.session_id, op.key.name]
            if digest != op.key.digest:
                raise KeyReused(op.session_id, op.key.name)
            return head
        old = self.records.get(op.session_id)
        self.check_version(op.session_id, op.expected)
        if old is not None:
            preconditions.check_seal(op, sealed=old.seal is not None, tape=old.tape, found=old.head)
        generation = old.generation if old else 0
        if op.view_update and op.view_update.archive and old:
            resumes_at = old.next_seq + len(op.add)
            archived = Generation(generation, old.length, old.view, resumes_at, now)
            self.put(self.generations, (op.session_id, generation), archived)
            generation += 1
        new = old or make_session_record(op, now)
        for seq, data in enumerate(op.add, start=new.next_seq):
            self.put(self.tapes, (new.tape, seq), data)
        for tape, _ in op.links:
            self.put(
                self.links,
                (tape, op.session_id),
                get_ranges_on_tape(op.view_update.closed if op.view_update else (), tape),
            )
        new = msgspec.structs.replace(
            new,
            version=new.version + 1,
            length=op.view_update.length if op.view_update else new.length + len(op.add),
            next_seq=new.next_seq + len(op.add),
            open_from=op.view_update.open_from if op.view_update else new.open_from,
            closed=op.view_update.closed if op.view_update else new.closed,
            generation=generation,
            seal=op.seal,
            updated_at=max(now, new.updated_at),
        )
        self.put(self.records, op.session_id, new)
        if op.key is not None:
            self.put(self.batch_keys, (op.session_id, op.key.name), (op.key.digest, new.head))
        return new.head

    def check_version(self, session_id: str, expected: int | None) -> None:
        record = self.records.get(session_id)
        preconditions.check_version(session_id, expected, found=record.head if record else EMPTY_HEAD)

    def erase(self, op: operations.Erase, now: float) -> Head:
        self.check_version(op.session_id, op.expected)
        old = self.records.get(op.session_id)
        if old is None:
            return EMPTY_HEAD
        preconditions.check_seal(op, sealed=old.seal is not None, tape=old.tape, found=old.head)
        shared = [tape for tape, session_id in self.links if session_id == op.session_id]
        for tape in shared:
            self.delete(self.links, (tape, op.session_id))
        self.delete_session_entries(self.generations, op.session_id)
        self.delete_session_entries(self.quarantine, op.session_id)
        self.delete_session_entries(self.batch_keys, op.session_id)
        self.put(self.erased_upto, old.tape, old.next_seq)
        if op.forget:
            self.delete(self.records, op.session_id)
            head = EMPTY_HEAD
        else:
            new = msgspec.structs.replace(
                old,
                version=old.version + 1,
                length=0,
                open_from=old.next_seq,
                closed=(),
                seal=op.seal,
                updated_at=max(now, old.updated_at),
            )
            self.put(self.records, op.session_id, new)
            head = new.head
        for tape in (old.tape, *shared):
            self.delete_unreferenced_items(tape)
        return head

    def delete_session_entries(self, table: dict[Any, Any], session_id: str) -> None:
        for key in [key for key in table if key[0] == session_id]:
            self.delete(table, key)

    def delete_unreferenced_items(self, tape: int) -> None:
        """Delete the erased items of a tape, except those that a fork started with."""
        shared = [span for (linked, _), ranges in self.links.items() if linked == tape for span in ranges]
        for start, stop in iter_gaps(shared, self.erased_upto.get(tape, 0)):
            for place in [place for place in self.tapes if place[0] == tape and start <= place[1] < stop]:
                self.delete(self.tapes, place)

    def annotate(self, op: operations.Annotate, now: float) -> Head:
        old = self.records.get(op.session_id) or make_session_record(op, now)
        preconditions.check_owner(op, found=old.owner)
        merged = {**old.metadata, **op.metadata}
        new = msgspec.structs.replace(
            old,
            metadata=copy_metadata({key: value for key, value in merged.items() if value is not None}),
            owner=op.owner if op.owner is not None else old.owner,
            updated_at=max(now, old.updated_at),
        )
        self.put(self.records, op.session_id, new)
        return new.head

    def require_version(self, op: operations.RequireVersion, now: float) -> None:
        self.check_version(op.session_id, op.version)

    def quarantine_item(self, op: operations.Quarantine, now: float) -> None:
        key = (op.session_id, op.tape, op.seq)
        if key not in self.quarantine:
            self.put(self.quarantine, key, QuarantinedItem(op.tape, op.seq, op.reason, now))

    def save_run(self, op: operations.SaveRun, now: float) -> None:
        old = self.runs.get(op.run_id)
        preconditions.check_revision(op, found=old.revision if old else 0)
        if old is None:
            if op.parent is not None and op.parent not in self.runs:
                raise NotFound("run", op.parent)
            self.run_count += 1
        new = RunRecord(
            run_id=op.run_id,
            order=old.order if old else self.run_count,
            session_id=op.session_id,
            status=op.status,
            revision=op.expected + 1,
            data=op.data,
            journal_length=old.journal_length if old else 0,
            event_length=old.event_length if old else 0,
            parent=old.parent if old else op.parent,
            seal=old.seal if old else None,
            queue=op.queue if op.queue is not None else old.queue if old else "",
            priority=op.priority if op.priority is not None else old.priority if old else 0,
            share=op.share if op.share is not None else old.share if old else "",
            created_at=old.created_at if old else now,
            updated_at=now,
        )
        self.put(self.runs, op.run_id, new)

    def move_behind(self, op: operations.MoveBehind, now: float) -> None:
        run = self.runs.get(op.run_id)
        if run is not None and run.status == "queued":
            self.put(self.runs, op.run_id, msgspec.structs.replace(run, behind=op.behind))

    def delete_run(self, op: operations.DeleteRun, now: float) -> None:
        run = self.runs.get(op.run_id)
        preconditions.check_revision(op, found=run.revision if run else 0)
        fork = min((other for other in self.runs.values() if other.parent == op.run_id), key=get_order, default=None)
        if fork is not None:
            raise RunShared(op.run_id, fork_id=fork.run_id)
        if run is not None:
            self.delete(self.runs, op.run_id)
            for log, length in (("journal", run.journal_length), ("event", run.event_length)):
                for seq in range(1, length + 1):
                    self.delete(self.logs, (log, op.run_id, seq))
        for approval in [one for one in self.approvals.values() if one.run_id == op.run_id]:
            self.delete(self.approvals, approval.approval_id)
            self.delete(self.approval_changes, approval.approval_id)

    def append_log(self, log: str, run_id: str, entries: Sequence[tuple[str, bytes]], now: float) -> None:
        run = self.runs.get(run_id)
        if run is None:
            raise NotFound("run", run_id)
        counter = f"{log}_length"
        before = getattr(run, counter)
        for seq, (kind, data) in enumerate(entries, start=before + 1):
            self.put(self.logs, (log, run_id, seq), LogEntry(seq, kind, data, now))
        self.put(self.runs, run_id, msgspec.structs.replace(run, **{counter: before + len(entries)}))

    def append_journal(self, op: operations.AppendJournal, now: float) -> JournalEnd:
        run = self.runs.get(op.run_id)
        if run is not None:
            preconditions.check_journal(op, seal=run.seal, found=run.journal_length)
            self.put(self.runs, op.run_id, msgspec.structs.replace(run, seal=op.seal))
        self.append_log("journal", op.run_id, op.entries, now)
        return JournalEnd(self.runs[op.run_id].journal_length, now)

    def append_events(self, op: operations.AppendEvents, now: float) -> None:
        self.append_log("event", op.run_id, op.events, now)

    def rewrite_run(self, op: operations.RewriteRun, now: float) -> None:
        run = self.runs.get(op.run_id)
        if run is None:
            raise NotFound("run", op.run_id)
        preconditions.check_rewrite(op, seal=run.seal, journal=run.journal_length, events=run.event_length)
        self.put(self.runs, op.run_id, msgspec.structs.replace(run, data=op.data, seal=op.seal))
        for log, entries in (("journal", op.journal), ("event", op.events)):
            for seq, data in enumerate(entries, start=1):
                place = (log, op.run_id, seq)
                self.put(self.logs, place, msgspec.structs.replace(self.logs[place], data=data))

    def save_approval(self, op: operations.SaveApproval, now: float) -> None:
        old = self.approvals.get(op.approval_id)
        preconditions.check_revision(op, found=old.revision if old else 0)
        new = ApprovalRecord(
            approval_id=op.approval_id,
            run_id=old.run_id if old else op.run_id,
            session_id=old.session_id if old else op.session_id,
            status=op.status,
            revision=op.expected + 1,
            data=op.data,
            requested_at=old.requested_at if old else now,
            expires_at=op.expires_at,
        )
        self.put(self.approvals, op.approval_id, new)
        self.put(self.counters, "approvals", self.counters.get("approvals", 1) + 1)
        self.put(self.approval_changes, op.approval_id, self.counters["approvals"])

    def acquire_lease(self, op: operations.AcquireLease, now: float) -> Lease:
        lease = preconditions.grant_lease(op, self.leases.get(op.name), now)
        self.put(self.leases, op.name, lease)
        return lease

    def renew_lease(self, op: operations.RenewLease, now: float) -> Lease:
        held = preconditions.check_lease_token(op, self.leases.get(op.name))
        lease = msgspec.structs.replace(held, expires_at=now + op.ttl)
        self.put(self.leases, op.name, lease)
        return lease

    def release_lease(self, op: operations.ReleaseLease, now: float) -> None:
        held = self.leases.get(op.name)
        if held and held.token == op.token:
            self.put(self.leases, op.name, Lease(op.name, "", held.token, 0))

    def check_fence(self, op: operations.CheckFence, now: float) -> None:
        preconditions.check_lease_token(op, self.leases.get(op.name))


def make_session_record(op: operations.Splice | operations.Annotate, now: float) -> SessionRecord:
    """Return a session before its first operation."""
    return SessionRecord(
        session_id=op.session_id,
        tape=op.tape,
        version=0,
        length=0,
        next_seq=0,
        open_from=0,
        owner=op.owner,
        created_at=now,
        updated_at=now,
    )


def get_order(run: RunRecord) -> int:
    return run.order


def copy_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a copy that went through JSON, as a database would return it."""
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(metadata))
    return copy


_APPLIERS: dict[type, Callable[[MemoryTables, Any, float], OpResult]] = {
    operations.Splice: MemoryTables.splice,
    operations.Erase: MemoryTables.erase,
    operations.Annotate: MemoryTables.annotate,
    operations.RequireVersion: MemoryTables.require_version,
    operations.Quarantine: MemoryTables.quarantine_item,
    operations.SaveRun: MemoryTables.save_run,
    operations.MoveBehind: MemoryTables.move_behind,
    operations.DeleteRun: MemoryTables.delete_run,
    operations.AppendJournal: MemoryTables.append_journal,
    operations.AppendEvents: MemoryTables.append_events,
    operations.RewriteRun: MemoryTables.rewrite_run,
    operations.SaveApproval: MemoryTables.save_approval,
    operations.AppendVersions: MemoryTables.append_versions,
    operations.RewriteVersions: MemoryTables.rewrite_versions,
    operations.SaveCheckpoint: MemoryTables.save_checkpoint,
    operations.DropCheckpoint: MemoryTables.drop_checkpoint,
    operations.DeleteWorkspace: MemoryTables.delete_workspace,
    operations.PutBlob: MemoryTables.put_blob,
    operations.SweepBlobs: MemoryTables.sweep_blobs,
    operations.PutDocument: MemoryTables.put_document,
    operations.DeleteDocument: MemoryTables.delete_document,
    operations.AcquireLease: MemoryTables.acquire_lease,
    operations.RenewLease: MemoryTables.renew_lease,
    operations.ReleaseLease: MemoryTables.release_lease,
    operations.CheckFence: MemoryTables.check_fence,
}
