"""The reference backend: plain dictionaries, nothing durable. The other backends are tested against it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.base.clock import Clock, system_clock
from holdfast.base.errors import (
    ApprovalMoved,
    Closed,
    FenceLost,
    HistoryMoved,
    InvalidInput,
    KeyReused,
    NotFound,
    RunMoved,
)
from holdfast.store import contract
from holdfast.store.contract import (
    NOWHERE,
    ApprovalRecord,
    Cursor,
    Found,
    Generation,
    Head,
    Lease,
    LeaseHeld,
    Logged,
    Op,
    Outcome,
    Page,
    Quarantined,
    Row,
    RunRecord,
    SessionRecord,
)
from holdfast.store.view import cut, length

K = TypeVar("K")
V = TypeVar("V")


class MemoryBackend:
    """Everything in this process, gone with it. One commit at a time, each whole or not at all."""

    indexes_words = False

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.clock = clock
        self.closed = False
        self.records: dict[str, SessionRecord] = {}
        self.erased_upto: dict[int, int] = {}
        self.tapes: dict[tuple[int, int], bytes | None] = {}
        self.links: dict[tuple[int, str], int] = {}
        self.archive: dict[tuple[str, int], Generation] = {}
        self.keys: dict[tuple[str, str], tuple[str, Head]] = {}
        self.quarantine: dict[tuple[str, int, int], Quarantined] = {}
        self.run_records: dict[str, RunRecord] = {}
        self.logs: dict[tuple[str, str, int], Logged] = {}
        self.approval_records: dict[str, ApprovalRecord] = {}
        self.leases: dict[str, Lease] = {}
        self.undo: list[Callable[[], None]] = []

    async def commit(self, *ops: Op) -> list[Outcome]:
        self.check_open()
        now = self.clock()
        self.undo.clear()
        try:
            return [_APPLIERS[type(op)](self, op, now) for op in ops]
        except BaseException:
            for step in reversed(self.undo):
                step()
            raise

    async def close(self) -> None:
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise Closed("this store is closed")

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """Set an entry in a way that the running commit can take back."""
        if key in table:
            old = table[key]
            self.undo.append(lambda: table.__setitem__(key, old))
        else:
            self.undo.append(lambda: table.__delitem__(key))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        old = table.pop(key)
        self.undo.append(lambda: table.__setitem__(key, old))

    # --- writes ---------------------------------------------------------------------------------

    def splice(self, op: contract.Splice, now: float) -> Head:
        if op.shape is not None and op.expected is None:
            raise InvalidInput("a shape needs the version it was made for")
        if op.key is not None and (op.session_id, op.key.name) in self.keys:
            digest, head = self.keys[op.session_id, op.key.name]
            if digest != op.key.digest:
                raise KeyReused(op.session_id, op.key.name)
            return head
        old = self.records.get(op.session_id)
        self.check_version(op.session_id, op.expected)
        if old is not None:
            contract.check_seal(op, sealed=old.seal is not None, tape=old.tape, found=old.head)
        generation = old.generation if old else 0
        if op.shape and op.shape.archive and old:
            resumes_at = old.next_seq + len(op.add)
            shown = Generation(generation, old.length, old.view, resumes_at, now)
            self.put(self.archive, (op.session_id, generation), shown)
            generation += 1
        new = old or SessionRecord(
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
        for seq, data in enumerate(op.add, start=new.next_seq):
            self.put(self.tapes, (new.tape, seq), data)
        for tape, upto in op.links:
            self.put(self.links, (tape, op.session_id), upto)
        new = msgspec.structs.replace(
            new,
            version=new.version + 1,
            length=op.shape.length if op.shape else new.length + len(op.add),
            next_seq=new.next_seq + len(op.add),
            open_from=op.shape.open_from if op.shape else new.open_from,
            closed=op.shape.closed if op.shape else new.closed,
            generation=generation,
            seal=op.seal,
            updated_at=max(now, new.updated_at),
        )
        self.put(self.records, op.session_id, new)
        if op.key is not None:
            self.put(self.keys, (op.session_id, op.key.name), (op.key.digest, new.head))
        return new.head

    def check_version(self, session_id: str, expected: int | None) -> None:
        record = self.records.get(session_id)
        found = record.head if record else NOWHERE
        if expected is not None and expected != found.version:
            raise HistoryMoved(session_id, expected=expected, found=found)

    def erase(self, op: contract.Erase, now: float) -> Head:
        self.check_version(op.session_id, op.expected)
        old = self.records.get(op.session_id)
        if old is None:
            return NOWHERE
        contract.check_seal(op, sealed=old.seal is not None, tape=old.tape, found=old.head)
        shared = [tape for tape, session_id in self.links if session_id == op.session_id]
        for tape in shared:
            self.drop(self.links, (tape, op.session_id))
        self.drop_session(self.archive, op.session_id)
        self.drop_session(self.quarantine, op.session_id)
        self.drop_session(self.keys, op.session_id)
        if op.forget:
            self.drop(self.records, op.session_id)
            self.put(self.erased_upto, old.tape, old.next_seq)
            head = NOWHERE
        else:
            self.put(self.erased_upto, old.tape, old.next_seq)
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
            self.sweep(tape)
        return head

    def drop_session(self, table: dict[Any, Any], session_id: str) -> None:
        for key in [key for key in table if key[0] == session_id]:
            self.drop(table, key)

    def sweep(self, tape: int) -> None:
        """Destroy what was erased and what no fork shows."""
        shared = max((upto for (linked, _), upto in self.links.items() if linked == tape), default=0)
        erased = self.erased_upto.get(tape, 0)
        for place in [place for place in self.tapes if place[0] == tape and shared <= place[1] < erased]:
            self.drop(self.tapes, place)

    def annotate(self, op: contract.Annotate, now: float) -> Head:
        old = self.records.get(op.session_id) or SessionRecord(
            session_id=op.session_id,
            tape=op.tape,
            version=0,
            length=0,
            next_seq=0,
            open_from=0,
            created_at=now,
            updated_at=now,
        )
        both = {**old.metadata, **op.metadata}
        new = msgspec.structs.replace(
            old,
            metadata=copied({key: value for key, value in both.items() if value is not None}),
            owner=op.owner if op.owner is not None else old.owner,
            updated_at=max(now, old.updated_at),
        )
        self.put(self.records, op.session_id, new)
        return new.head

    def require(self, op: contract.Require, now: float) -> None:
        self.check_version(op.session_id, op.version)

    def set_aside(self, op: contract.Quarantine, now: float) -> None:
        key = (op.session_id, op.tape, op.seq)
        if key not in self.quarantine:
            self.put(self.quarantine, key, Quarantined(op.tape, op.seq, op.reason, now))

    def save_run(self, op: contract.SaveRun, now: float) -> None:
        old = self.run_records.get(op.run_id)
        found = old.revision if old else 0
        if found != op.expected:
            raise RunMoved(op.run_id, expected=op.expected, found=found)
        new = RunRecord(
            run_id=op.run_id,
            order=old.order if old else 1 + max((run.order for run in self.run_records.values()), default=0),
            session_id=op.session_id,
            status=op.status,
            revision=found + 1,
            data=op.data,
            journal_length=old.journal_length if old else 0,
            event_length=old.event_length if old else 0,
            created_at=old.created_at if old else now,
            updated_at=now,
        )
        self.put(self.run_records, op.run_id, new)

    def append_log(self, log: str, run_id: str, entries: Sequence[tuple[str, bytes]], now: float) -> None:
        run = self.run_records.get(run_id)
        if run is None:
            raise NotFound("run", run_id)
        counter = f"{log}_length"
        before = getattr(run, counter)
        for seq, (kind, data) in enumerate(entries, start=before + 1):
            self.put(self.logs, (log, run_id, seq), Logged(seq, kind, data, now))
        self.put(self.run_records, run_id, msgspec.structs.replace(run, **{counter: before + len(entries)}))

    def append_journal(self, op: contract.Journal, now: float) -> None:
        self.append_log("journal", op.run_id, op.entries, now)

    def append_events(self, op: contract.Emit, now: float) -> None:
        self.append_log("event", op.run_id, op.events, now)

    def save_approval(self, op: contract.SaveApproval, now: float) -> None:
        old = self.approval_records.get(op.approval_id)
        found = old.revision if old else 0
        if found != op.expected:
            raise ApprovalMoved(op.approval_id, expected=op.expected, found=found)
        new = ApprovalRecord(
            approval_id=op.approval_id,
            run_id=old.run_id if old else op.run_id,
            session_id=old.session_id if old else op.session_id,
            status=op.status,
            revision=found + 1,
            data=op.data,
            requested_at=old.requested_at if old else now,
            expires_at=op.expires_at,
        )
        self.put(self.approval_records, op.approval_id, new)

    def take_lease(self, op: contract.TakeLease, now: float) -> Lease:
        held = self.leases.get(op.name)
        if held and held.expires_at > now and held.owner != op.owner:
            raise LeaseHeld(op.name, owner=held.owner, expires_at=held.expires_at)
        keeps = held is not None and held.owner == op.owner and held.expires_at > now
        lease = Lease(op.name, op.owner, (held.token if held else 0) + (not keeps), now + op.ttl)
        self.put(self.leases, op.name, lease)
        return lease

    def renew_lease(self, op: contract.RenewLease, now: float) -> Lease:
        held = self.check_fence(op, now)
        lease = msgspec.structs.replace(held, expires_at=now + op.ttl)
        self.put(self.leases, op.name, lease)
        return lease

    def drop_lease(self, op: contract.DropLease, now: float) -> None:
        held = self.leases.get(op.name)
        if held and held.token == op.token:
            self.put(self.leases, op.name, Lease(op.name, "", held.token, 0))

    def check_fence(self, op: contract.Fence | contract.RenewLease, now: float) -> Lease:
        held = self.leases.get(op.name)
        if held is None or held.token != op.token or not held.owner:
            raise FenceLost(op.name, expected=op.token, found=held.token if held else 0)
        return held

    def fence(self, op: contract.Fence, now: float) -> None:
        self.check_fence(op, now)

    # --- reads ----------------------------------------------------------------------------------

    async def record(self, session_id: str) -> SessionRecord | None:
        self.check_open()
        found = self.records.get(session_id)
        return msgspec.structs.replace(found, metadata=copied(found.metadata)) if found else None

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        record = await self.record(session_id)
        if record is None:
            return None
        if generation is None:
            view = record.view
        elif (session_id, generation) in self.archive:
            view = self.archive[session_id, generation].spans
        else:
            raise NotFound("generation", generation)
        size = length(view)
        if last is not None:
            start, stop = max(size - last, 0), size
        places = [
            (span.tape, seq)
            for span in cut(view, start, size if stop is None else stop)
            for seq in range(span.start, span.stop)
        ]
        rows = [Row(start + index, *place, self.tapes.get(place)) for index, place in enumerate(places)]
        return Page(record, rows)

    async def sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        self.check_open()
        found = [
            record
            for record in self.records.values()
            if (owner is None or record.owner == owner)
            and (not query or query.lower() in record.session_id.lower() or self.annotated(record, query))
            and (after is None or (record.updated_at, record.session_id) < (after.updated_at, after.session_id))
        ]
        found.sort(key=lambda record: (record.updated_at, record.session_id), reverse=True)
        return [msgspec.structs.replace(record, metadata=copied(record.metadata)) for record in found[:limit]]

    def annotated(self, record: SessionRecord, query: str) -> bool:
        return query.lower() in msgspec.json.encode(record.metadata).decode().lower()

    async def generations(self, session_id: str) -> list[Generation]:
        self.check_open()
        return [entry for (owner, _), entry in sorted(self.archive.items()) if owner == session_id]

    async def quarantined(self, session_id: str) -> list[Quarantined]:
        self.check_open()
        return [entry for (owner, *_), entry in sorted(self.quarantine.items()) if owner == session_id]

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        return None

    async def run(self, run_id: str) -> RunRecord | None:
        self.check_open()
        return self.run_records.get(run_id)

    async def runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        self.check_open()
        found = [
            run
            for run in self.run_records.values()
            if run.order > after
            and (status is None or run.status in status)
            and (session_id is None or run.session_id == session_id)
        ]
        return sorted(found, key=lambda run: run.order)[:limit]

    async def journal(self, run_id: str, *, after: int) -> list[Logged]:
        return self.logged("journal", run_id, after)

    async def events(self, run_id: str, *, after: int, limit: int) -> list[Logged]:
        return self.logged("event", run_id, after)[:limit]

    def logged(self, log: str, run_id: str, after: int) -> list[Logged]:
        self.check_open()
        run = self.run_records.get(run_id)
        stop = getattr(run, f"{log}_length") if run else 0
        return [self.logs[log, run_id, seq] for seq in range(after + 1, stop + 1)]

    async def approval(self, approval_id: str) -> ApprovalRecord | None:
        self.check_open()
        return self.approval_records.get(approval_id)

    async def approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        self.check_open()
        found = [
            approval
            for approval in self.approval_records.values()
            if approval.approval_id > after
            and status in (None, approval.status)
            and run_id in (None, approval.run_id)
            and session_id in (None, approval.session_id)
        ]
        return sorted(found, key=lambda approval: approval.approval_id)[:limit]

    async def approvals_due(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        self.check_open()
        behind = (-math.inf, "") if after is None else (after.expires_at or 0.0, after.approval_id)
        found = [
            (approval.expires_at, approval.approval_id, approval)
            for approval in self.approval_records.values()
            if approval.status == status and approval.expires_at is not None and approval.expires_at <= at
        ]
        return [one for *place, one in sorted(found, key=lambda row: row[:2]) if tuple(place) > behind][:limit]

    async def time(self) -> float:
        self.check_open()
        return self.clock()

    async def lease(self, name: str) -> Lease | None:
        self.check_open()
        held = self.leases.get(name)
        return held if held and held.owner else None


def copied(metadata: dict[str, Any]) -> dict[str, Any]:
    """Annotations as a database would hand them out: JSON, and nobody else's."""
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(metadata))
    return copy


_APPLIERS: dict[type, Callable[[MemoryBackend, Any, float], Outcome]] = {
    contract.Splice: MemoryBackend.splice,
    contract.Erase: MemoryBackend.erase,
    contract.Annotate: MemoryBackend.annotate,
    contract.Require: MemoryBackend.require,
    contract.Quarantine: MemoryBackend.set_aside,
    contract.SaveRun: MemoryBackend.save_run,
    contract.Journal: MemoryBackend.append_journal,
    contract.Emit: MemoryBackend.append_events,
    contract.SaveApproval: MemoryBackend.save_approval,
    contract.TakeLease: MemoryBackend.take_lease,
    contract.RenewLease: MemoryBackend.renew_lease,
    contract.DropLease: MemoryBackend.drop_lease,
    contract.Fence: MemoryBackend.fence,
}
