"""The in-memory backend. It is also the reference implementation that the other backends are tested against."""

import math
from collections.abc import Sequence

import msgspec

from standfast.base.errors import Closed, NotFound
from standfast.base.ids import new_id
from standfast.base.time import Clock, system_clock
from standfast.store.backend import Cursor
from standfast.store.links import LinkListener, MemoryLink
from standfast.store.memory_tables import MemoryTables, copy_metadata, get_order
from standfast.store.operations import Op, OpResult
from standfast.store.records import (
    CLAIMABLE_RUN_STATUSES,
    HOLDING_RUN_STATUSES,
    QUEUED_RUN_STATUSES,
    ApprovalPlace,
    ApprovalRecord,
    BlobRecord,
    ChangedApproval,
    CheckpointRecord,
    DocumentRecord,
    Generation,
    HistoryPage,
    Lease,
    LogEntry,
    QuarantinedItem,
    QueueDepth,
    Row,
    RunRecord,
    SearchCandidate,
    SessionRecord,
    SessionTurn,
    VersionRecord,
    WorkspaceRecord,
)
from standfast.store.tape import compute_length, slice_spans


class MemoryBackend:
    """A store in dictionaries of this process. Commits are serial and atomic; nothing is durable."""

    indexes_words = False

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.clock = clock
        self.location = new_id("memory")
        self.closed = False
        self.tables = MemoryTables()
        self.links: dict[str, MemoryLink] = {}

    async def commit(self, *ops: Op) -> list[OpResult]:
        self.check_open()
        return self.tables.apply(ops, self.clock())

    async def close(self) -> None:
        self.closed = True

    async def open_link(self, name: str, listener: LinkListener) -> MemoryLink:
        return MemoryLink(self.links, name, listener)

    def check_open(self) -> None:
        if self.closed:
            raise Closed("this store is closed")

    async def get_session(self, session_id: str) -> SessionRecord | None:
        self.check_open()
        record = self.tables.records.get(session_id)
        return msgspec.structs.replace(record, metadata=copy_metadata(record.metadata)) if record else None

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> HistoryPage | None:
        record = await self.get_session(session_id)
        if record is None:
            return None
        if generation is None:
            view = record.view
        elif (session_id, generation) in self.tables.generations:
            view = self.tables.generations[session_id, generation].spans
        else:
            raise NotFound("generation", generation)
        size = compute_length(view)
        if last is not None:
            start, stop = max(size - last, 0), size
        places = [
            (span.tape, seq)
            for span in slice_spans(view, start, size if stop is None else stop)
            for seq in range(span.start, span.stop)
        ]
        rows = [Row(start + index, *place, self.tables.tapes.get(place)) for index, place in enumerate(places)]
        overrun = record.seal is not None and (record.tape, record.next_seq) in self.tables.tapes
        return HistoryPage(record, rows, overrun)

    async def list_sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        self.check_open()
        found = [
            record
            for record in self.tables.records.values()
            if record.matches(owner=owner, query=query)
            and (after is None or (record.updated_at, record.session_id) < (after.updated_at, after.session_id))
        ]
        found.sort(key=lambda record: (record.updated_at, record.session_id), reverse=True)
        return [msgspec.structs.replace(record, metadata=copy_metadata(record.metadata)) for record in found[:limit]]

    async def list_generations(self, session_id: str) -> list[Generation]:
        self.check_open()
        return [entry for (owner, _), entry in sorted(self.tables.generations.items()) if owner == session_id]

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]:
        self.check_open()
        return [entry for (owner, *_), entry in sorted(self.tables.quarantine.items()) if owner == session_id]

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        return None

    async def get_run(self, run_id: str) -> RunRecord | None:
        self.check_open()
        return self.tables.runs.get(run_id)

    async def list_runs(
        self,
        *,
        status: Sequence[str] | None,
        session_id: str | None,
        limit: int,
        after: int,
        owner: str | None = None,
        newest_first: bool = False,
    ) -> list[RunRecord]:
        self.check_open()
        found = [
            run
            for run in self.tables.runs.values()
            if (run.order > after if not newest_first else not after or run.order < after)
            and (status is None or run.status in status)
            and (session_id is None or run.session_id == session_id)
            and self.is_owned(run.session_id, owner)
        ]
        return sorted(found, key=lambda run: run.order, reverse=newest_first)[:limit]

    async def list_claimable(self, *, queues: Sequence[str], limit: int, after: str | None) -> list[RunRecord]:
        self.check_open()
        runs = [
            run
            for run in self.tables.runs.values()
            if run.status in CLAIMABLE_RUN_STATUSES and not run.behind and run.queue in queues
        ]
        turns: dict[tuple[object, ...], int] = {}

        def find_turn(run: RunRecord) -> tuple[object, ...]:
            lane = run.priority, run.status, run.queue, run.share
            turns[lane] = turns.get(lane, 0) + 1
            passed = after is not None and run.share <= after
            ranks = -run.priority, CLAIMABLE_RUN_STATUSES.index(run.status), queues.index(run.queue)
            return (*ranks, turns[lane], passed, run.share, run.order)

        return sorted(sorted(runs, key=get_order), key=find_turn)[:limit]

    async def list_waiting_queues(self) -> list[str]:
        self.check_open()
        runs = self.tables.runs.values()
        return sorted({run.queue for run in runs if run.status in CLAIMABLE_RUN_STATUSES and not run.behind})

    async def list_queue_depths(self) -> list[QueueDepth]:
        self.check_open()
        waiting: dict[tuple[str, str, bool], list[float]] = {}
        for run in self.tables.runs.values():
            if run.status in CLAIMABLE_RUN_STATUSES:
                waiting.setdefault((run.queue, run.status, run.behind), []).append(run.created_at)
        return [
            QueueDepth(queue=queue, status=status, behind=behind, count=len(times), oldest_at=min(times))
            for (queue, status, behind), times in sorted(waiting.items())
        ]

    def is_owned(self, session_id: str | None, owner: str | None) -> bool:
        session = self.tables.records.get(session_id) if session_id is not None else None
        return owner is None or (session is not None and session.owner == owner)

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        return self.read_log("journal", run_id, after)

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        return self.read_log("event", run_id, after)[:limit]

    def read_log(self, log: str, run_id: str, after: int) -> list[LogEntry]:
        self.check_open()
        run = self.tables.runs.get(run_id)
        stop = getattr(run, f"{log}_length") if run else 0
        return [self.tables.logs[log, run_id, seq] for seq in range(after + 1, stop + 1)]

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        self.check_open()
        return self.tables.approvals.get(approval_id)

    async def list_approvals(
        self,
        *,
        status: str | None,
        run_id: str | None,
        session_id: str | None,
        limit: int,
        after: str,
        owner: str | None = None,
    ) -> list[ApprovalRecord]:
        self.check_open()
        found = [
            approval
            for approval in self.tables.approvals.values()
            if approval.approval_id > after
            and status in (None, approval.status)
            and run_id in (None, approval.run_id)
            and session_id in (None, approval.session_id)
            and self.is_owned(approval.session_id, owner)
        ]
        return sorted(found, key=lambda approval: approval.approval_id)[:limit]

    async def list_changed_approvals(
        self, *, after: ApprovalPlace, upto: int | None, status: str | None, limit: int, owner: str | None = None
    ) -> list[ChangedApproval]:
        self.check_open()
        last = (after.number, after.approval_id)
        places = sorted((number, name) for name, number in self.tables.approval_changes.items())
        found = [
            ChangedApproval(ApprovalPlace(number, name), self.tables.approvals[name])
            for number, name in places
            if (number, name) > last and (upto is None or number <= upto)
        ]
        return [
            one for one in found if status in (None, one.record.status) and self.is_owned(one.record.session_id, owner)
        ][:limit]

    async def count_approval_changes(self) -> int:
        self.check_open()
        return self.tables.counters.get("approvals", 1)

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        self.check_open()
        last = (-math.inf, "") if after is None else (after.expires_at or 0.0, after.approval_id)
        found = [
            (approval.expires_at, approval.approval_id, approval)
            for approval in self.tables.approvals.values()
            if approval.status == status and approval.expires_at is not None and approval.expires_at <= at
        ]
        return [one for *place, one in sorted(found, key=lambda row: row[:2]) if tuple(place) > last][:limit]

    async def get_workspace(self, key: str) -> WorkspaceRecord | None:
        self.check_open()
        return self.tables.workspaces.get(key)

    async def list_workspaces(self, *, limit: int, after: str) -> list[WorkspaceRecord]:
        self.check_open()
        return [self.tables.workspaces[key] for key in sorted(self.tables.workspaces) if key > after][:limit]

    async def read_versions(self, key: str, *, after: int = 0, upto: int | None = None) -> list[VersionRecord]:
        workspace = await self.get_workspace(key)
        last = 0 if workspace is None else min(workspace.version, workspace.version if upto is None else upto)
        return [self.get_version(key, number) for number in range(after + 1, last + 1)]

    def get_version(self, key: str, number: int) -> VersionRecord:
        version, checkpoint = self.tables.versions[key, number], self.tables.checkpoints.get((key, number))
        if checkpoint is None:
            return version
        return msgspec.structs.replace(version, checkpoint_id=checkpoint.checkpoint_id, size=checkpoint.size)

    async def get_checkpoint(self, key: str, version: int) -> CheckpointRecord | None:
        self.check_open()
        return self.tables.checkpoints.get((key, version))

    async def find_blobs(self, digests: Sequence[str]) -> list[BlobRecord]:
        self.check_open()
        return [self.tables.blobs[digest][0] for digest in digests if digest in self.tables.blobs]

    async def read_blob(self, blob: BlobRecord) -> bytes | None:
        self.check_open()
        return self.tables.blob_data.get(blob.digest)

    async def get_document(self, kind: str, key: str) -> DocumentRecord | None:
        self.check_open()
        return self.tables.documents.get((kind, key))

    async def list_documents(
        self, kind: str, *, limit: int, after: str = "", before: str | None = None, reverse: bool = False
    ) -> list[DocumentRecord]:
        self.check_open()
        found = [
            document
            for document in self.tables.documents.values()
            if document.kind == kind and document.key > after and (before is None or document.key < before)
        ]
        return sorted(found, key=lambda document: document.key, reverse=reverse)[:limit]

    async def get_time(self) -> float:
        self.check_open()
        return self.clock()

    async def get_lease(self, name: str) -> Lease | None:
        self.check_open()
        lease = self.tables.leases.get(name)
        return lease if lease and lease.owner else None

    async def get_session_turn(self, session_id: str, *, lease: str) -> SessionTurn:
        runs = await self.list_runs(status=None, session_id=session_id, limit=len(self.tables.runs), after=0)
        holder = next((run for run in runs if run.status in HOLDING_RUN_STATUSES), None)
        queued = [run for status in QUEUED_RUN_STATUSES for run in runs if run.status == status]
        session = await self.get_session(session_id)
        return SessionTurn(self.tables.leases.get(lease), holder, queued[0] if queued else None, session)
