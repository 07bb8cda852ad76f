"""The reads of the relational backends.

The functions take a connection, which need not be in a transaction. :class:`RelationalQueries` offers them as the
methods of a backend that can run a function on a connection.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from standfast.base.errors import NotFound, SessionDamaged
from standfast.base.log import get_logger
from standfast.store.backend import Cursor
from standfast.store.records import (
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
    SessionRecord,
    SessionTurn,
    VersionRecord,
    WorkspaceRecord,
)
from standfast.store.sql import documents, run_queries, workspaces
from standfast.store.sql.connection import DatabaseConnection, as_bytes
from standfast.store.sql.run_queries import (
    count_approval_changes,
    find_first_runs,
    get_approval,
    get_latest_lease,
    get_lease,
    get_run,
    list_approvals,
    list_changed_approvals,
    list_due_approvals,
    list_runs,
    read_log,
)
from standfast.store.tape import TapeSpans, compute_length, join_spans, slice_spans

_SESSION_COLUMNS = (
    "session_id, tape, version, length, next_seq, open_from, closed, generation, seal, owner, metadata,"
    " created_at, updated_at"
)
_log = get_logger(__name__)
_spans_decoder = msgspec.json.Decoder(TapeSpans)

NO_LIMIT = 2**62


def session_record_from_row(row: Sequence[Any]) -> SessionRecord:
    (
        session_id,
        tape,
        version,
        size,
        next_seq,
        open_from,
        closed,
        generation,
        seal,
        owner,
        metadata,
        *times,
    ) = row
    numbers = (tape, version, size, next_seq, open_from, generation)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or open_from > next_seq:
        raise SessionDamaged(session_id, f"its record has invalid numbers: {numbers}")
    try:
        spans = _spans_decoder.decode(closed)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise SessionDamaged(session_id, f"its view cannot be read: {error}") from None
    if not all(0 <= span.start <= span.stop for span in spans):
        raise SessionDamaged(session_id, f"its view has invalid spans: {spans}")
    return SessionRecord(
        session_id=session_id,
        tape=tape,
        version=version,
        length=size,
        next_seq=next_seq,
        open_from=open_from,
        closed=spans,
        generation=generation,
        seal=None if seal is None else bytes(seal),
        owner=owner,
        metadata=parse_metadata(metadata),
        created_at=times[0],
        updated_at=times[1],
    )


def parse_metadata(stored: Any) -> dict[str, Any]:
    """Return the metadata of a session; an empty dictionary if unreadable, so that the history can still be read."""
    try:
        metadata = msgspec.json.decode(stored)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def iter_undamaged(rows: Sequence[Sequence[Any]]) -> Iterator[SessionRecord]:
    """Yield the sessions in these rows, without those that cannot be read."""
    for row in rows:
        try:
            yield session_record_from_row(row)
        except SessionDamaged as problem:
            _log.warning("session omitted from a listing: %s", problem)


def get_session(db: DatabaseConnection, session_id: str) -> SessionRecord | None:
    row = db.fetch_one(
        f"SELECT {_SESSION_COLUMNS} FROM {{sessions}} WHERE session_id = :session_id", {"session_id": session_id}
    )
    return session_record_from_row(row) if row else None


def get_session_turn(db: DatabaseConnection, session_id: str, *, lease: str) -> SessionTurn:
    latest = get_latest_lease(db, lease)  # before the runs, see SessionTurn
    return SessionTurn(latest, *find_first_runs(db, session_id), get_session(db, session_id))


def read(
    db: DatabaseConnection, session_id: str, *, start: int, stop: int | None, last: int | None, generation: int | None
) -> HistoryPage | None:
    while True:
        record = get_session(db, session_id)
        if record is None:
            return None
        view = record.view if generation is None else read_generation_spans(db, session_id, generation)
        size = compute_length(view)
        if last is not None:
            start, stop = max(size - last, 0), size
        rows = read_rows(db, slice_spans(view, start, size if stop is None else stop), start)
        overrun = record.seal is not None and has_records_after(db, record)
        if (not overrun and all(row.data is not None for row in rows)) or is_unchanged(db, record):
            return HistoryPage(record, rows, overrun)
        # Items were erased or added between the statements: the page mixes both states, so read again.


def has_records_after(db: DatabaseConnection, record: SessionRecord) -> bool:
    found = db.fetch_one(
        "SELECT 1 FROM {items} WHERE tape = :tape AND seq >= :next_seq LIMIT 1",
        {"tape": record.tape, "next_seq": record.next_seq},
    )
    return found is not None


def is_unchanged(db: DatabaseConnection, record: SessionRecord) -> bool:
    current = get_session(db, record.session_id)
    return current is not None and current.version == record.version


def read_generation_spans(db: DatabaseConnection, session_id: str, generation: int) -> TapeSpans:
    row = db.fetch_one(
        "SELECT spans FROM {_generations} WHERE session_id = :session_id AND generation = :generation",
        {"session_id": session_id, "generation": generation},
    )
    if row is None:
        raise NotFound("generation", generation)
    return join_spans(_spans_decoder.decode(row[0]))


def read_rows(db: DatabaseConnection, spans: TapeSpans, start: int) -> list[Row]:
    """Read the items of spans whose first position is ``start``. A missing item has no data."""
    rows: list[Row] = []
    for span in spans:
        stored: dict[int, Any] = dict(
            db.fetch_all(
                "SELECT seq, data FROM {items} WHERE tape = :tape AND seq >= :start AND seq < :stop ORDER BY seq",
                {"tape": span.tape, "start": span.start, "stop": span.stop},
            )  # type: ignore[arg-type]
        )
        for seq in range(span.start, span.stop):
            data = stored.get(seq)
            rows.append(Row(start + len(rows), span.tape, seq, as_bytes(data)))
    return rows


def list_sessions(
    db: DatabaseConnection, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
) -> list[SessionRecord]:
    where, params = ["1 = 1"], dict[str, Any](limit=limit)
    if owner is not None:
        where.append("owner = :owner")
        params["owner"] = owner
    if query:
        where.append(
            "(LOWER(session_id) LIKE LOWER(:query) ESCAPE '!' OR LOWER(metadata) LIKE LOWER(:query) ESCAPE '!')"
        )
        params["query"] = "%" + escape_like(query) + "%"
    if after is not None:
        where.append("(updated_at < :at OR (updated_at = :at AND session_id < :after))")
        params.update(at=after.updated_at, after=after.session_id)
    found = db.fetch_all(
        f"SELECT {_SESSION_COLUMNS} FROM {{sessions}} WHERE {' AND '.join(where)}"
        " ORDER BY updated_at DESC, session_id DESC LIMIT :limit",
        params,
    )
    return list(iter_undamaged(found))


def escape_like(text: str) -> str:
    """Escape a text for LIKE with ``!`` as the escape character."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def list_generations(db: DatabaseConnection, session_id: str) -> list[Generation]:
    found = db.fetch_all(
        "SELECT generation, length, spans, resumes_at, replaced_at FROM {_generations} WHERE session_id = :session_id"
        " ORDER BY generation",
        {"session_id": session_id},
    )
    return [
        Generation(number, size, join_spans(_spans_decoder.decode(spans)), *rest)
        for number, size, spans, *rest in found
    ]


def list_quarantined(db: DatabaseConnection, session_id: str) -> list[QuarantinedItem]:
    found = db.fetch_all(
        "SELECT tape, seq, reason, quarantined_at FROM {_quarantine} WHERE session_id = :session_id ORDER BY tape, seq",
        {"session_id": session_id},
    )
    return [QuarantinedItem(*row) for row in found]


T = TypeVar("T")


class RelationalQueries(ABC):
    """The reads of a backend except the search, which differs between databases."""

    @abstractmethod
    async def run_query(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function`` with a connection and these arguments."""

    async def get_session(self, session_id: str) -> SessionRecord | None:
        return await self.run_query(get_session, session_id)

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> HistoryPage | None:
        return await self.run_query(read, session_id, start=start, stop=stop, last=last, generation=generation)

    async def list_sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        return await self.run_query(list_sessions, owner=owner, query=query, limit=limit, after=after)

    async def list_generations(self, session_id: str) -> list[Generation]:
        return await self.run_query(list_generations, session_id)

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]:
        return await self.run_query(list_quarantined, session_id)

    async def get_run(self, run_id: str) -> RunRecord | None:
        return await self.run_query(get_run, run_id)

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
        return await self.run_query(
            list_runs,
            status=status,
            session_id=session_id,
            limit=limit,
            after=after,
            owner=owner,
            newest_first=newest_first,
        )

    async def list_claimable(self, *, queues: Sequence[str], limit: int, after: str | None) -> list[RunRecord]:
        return await self.run_query(run_queries.list_claimable, queues, limit=limit, after=after)

    async def list_waiting_queues(self) -> list[str]:
        return await self.run_query(run_queries.list_waiting_queues)

    async def list_queue_depths(self) -> list[QueueDepth]:
        return await self.run_query(run_queries.list_queue_depths)

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        return await self.run_query(read_log, "{_journal}", run_id, after=after, limit=NO_LIMIT)

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        return await self.run_query(read_log, "{_events}", run_id, after=after, limit=limit)

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        return await self.run_query(get_approval, approval_id)

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
        return await self.run_query(
            list_approvals, status=status, run_id=run_id, session_id=session_id, limit=limit, after=after, owner=owner
        )

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        return await self.run_query(list_due_approvals, status=status, at=at, limit=limit, after=after)

    async def list_changed_approvals(
        self, *, after: ApprovalPlace, upto: int | None, status: str | None, limit: int, owner: str | None = None
    ) -> list[ChangedApproval]:
        return await self.run_query(
            list_changed_approvals, after=after, upto=upto, status=status, limit=limit, owner=owner
        )

    async def count_approval_changes(self) -> int:
        return await self.run_query(count_approval_changes)

    async def get_lease(self, name: str) -> Lease | None:
        return await self.run_query(get_lease, name)

    async def get_session_turn(self, session_id: str, *, lease: str) -> SessionTurn:
        return await self.run_query(get_session_turn, session_id, lease=lease)

    async def get_workspace(self, key: str) -> WorkspaceRecord | None:
        return await self.run_query(workspaces.get_workspace, key)

    async def list_workspaces(self, *, limit: int, after: str) -> list[WorkspaceRecord]:
        return await self.run_query(workspaces.list_workspaces, limit=limit, after=after)

    async def read_versions(self, key: str, *, after: int = 0, upto: int | None = None) -> list[VersionRecord]:
        return await self.run_query(workspaces.read_versions, key, after=after, upto=upto)

    async def get_checkpoint(self, key: str, version: int) -> CheckpointRecord | None:
        return await self.run_query(workspaces.get_checkpoint, key, version)

    async def find_blobs(self, digests: Sequence[str]) -> list[BlobRecord]:
        return await self.run_query(workspaces.find_blobs, digests) if digests else []

    async def read_blob(self, blob: BlobRecord) -> bytes | None:
        return await self.run_query(workspaces.read_blob, blob.digest)

    async def get_document(self, kind: str, key: str) -> DocumentRecord | None:
        return await self.run_query(documents.get_document, kind, key)

    async def list_documents(
        self, kind: str, *, limit: int, after: str = "", before: str | None = None, reverse: bool = False
    ) -> list[DocumentRecord]:
        return await self.run_query(
            documents.list_documents, kind, limit=limit, after=after, before=before, reverse=reverse
        )
