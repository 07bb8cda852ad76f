"""The reads of the relational backends.

The functions take a connection, which need not be in a transaction. :class:`RelationalQueries` offers them as the
methods of a backend that can run a function on a connection.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from standfast.base.errors import NotFound, SessionDamaged
from standfast.store.backend import Cursor
from standfast.store.records import (
    ApprovalRecord,
    Generation,
    Lease,
    LogEntry,
    Page,
    QuarantinedItem,
    Row,
    RunRecord,
    SessionRecord,
)
from standfast.store.sql.connection import DatabaseConnection
from standfast.store.tape import TapeSpans, join_spans, slice_spans, total_length

_SESSION_COLUMNS = (
    "session_id, tape, version, length, next_seq, open_from, closed, generation, seal, owner, metadata,"
    " created_at, updated_at"
)
_log = logging.getLogger(__name__)
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


def read(
    db: DatabaseConnection, session_id: str, *, start: int, stop: int | None, last: int | None, generation: int | None
) -> Page | None:
    while True:
        record = get_session(db, session_id)
        if record is None:
            return None
        view = record.view if generation is None else read_generation_spans(db, session_id, generation)
        size = total_length(view)
        if last is not None:
            start, stop = max(size - last, 0), size
        page = Page(record, read_rows(db, slice_spans(view, start, size if stop is None else stop), start))
        if all(row.data is not None for row in page.rows) or is_unchanged(db, record):
            return page
        # Items were erased between the two statements: the page mixes both states, so read again.


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


def as_bytes(data: Any) -> bytes | None:
    """Return the value of a column as bytes, also of a hand-edited one: the codec decides whether it is an item."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    return bytes(data) if isinstance(data, (memoryview, bytearray)) else repr(data).encode()


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


_RUN_COLUMNS = (
    "run_id, position, session_id, status, revision, data, journal_length, event_length, created_at, updated_at"
)


def run_record_from_row(row: Sequence[Any]) -> RunRecord:
    return RunRecord(
        run_id=row[0],
        order=row[1],
        session_id=row[2],
        status=row[3],
        revision=row[4],
        data=bytes(row[5]),
        journal_length=row[6],
        event_length=row[7],
        created_at=row[8],
        updated_at=row[9],
    )


def get_run(db: DatabaseConnection, run_id: str) -> RunRecord | None:
    row = db.fetch_one(f"SELECT {_RUN_COLUMNS} FROM {{_runs}} WHERE run_id = :run_id", {"run_id": run_id})
    return run_record_from_row(row) if row else None


def list_runs(
    db: DatabaseConnection, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
) -> list[RunRecord]:
    where, params = ["position > :after"], dict[str, Any](after=after, limit=limit)
    if session_id is not None:
        where.append("session_id = :session_id")
        params["session_id"] = session_id
    if status is None:
        return [run_record_from_row(row) for row in db.fetch_all(_build_runs_query(where), params)]
    if not status:
        return []
    # One select for each status: each reads from an index no more than it gives, in order. With IN, planners would
    # rather walk through everything that the session ever had.
    names = {f"status_{index}": name for index, name in enumerate(status)}
    selects = [
        f"SELECT {_RUN_COLUMNS} FROM ({_build_runs_query([*where, f'status = :{name}'])}) AS {name}" for name in names
    ]
    found = db.fetch_all(f"{' UNION ALL '.join(selects)} ORDER BY position LIMIT :limit", params | names)
    return [run_record_from_row(row) for row in found]


def _build_runs_query(where: Sequence[str]) -> str:
    return f"SELECT {_RUN_COLUMNS} FROM {{_runs}} WHERE {' AND '.join(where)} ORDER BY position LIMIT :limit"


def read_log(db: DatabaseConnection, table: str, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
    found = db.fetch_all(
        f"SELECT seq, kind, data, logged_at FROM {table} WHERE run_id = :run_id AND seq > :after"
        " ORDER BY seq LIMIT :limit",
        {"run_id": run_id, "after": after, "limit": limit},
    )
    return [LogEntry(seq, kind, bytes(data), at) for seq, kind, data, at in found]


_APPROVAL_COLUMNS = "approval_id, run_id, session_id, status, revision, data, requested_at, expires_at"


def approval_record_from_row(row: Sequence[Any]) -> ApprovalRecord:
    return ApprovalRecord(
        approval_id=row[0],
        run_id=row[1],
        session_id=row[2],
        status=row[3],
        revision=row[4],
        data=bytes(row[5]),
        requested_at=row[6],
        expires_at=row[7],
    )


def get_approval(db: DatabaseConnection, approval_id: str) -> ApprovalRecord | None:
    row = db.fetch_one(f"SELECT {_APPROVAL_COLUMNS} FROM {{_approvals}} WHERE approval_id = :id", {"id": approval_id})
    return approval_record_from_row(row) if row else None


def list_approvals(
    db: DatabaseConnection, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
) -> list[ApprovalRecord]:
    where, params = ["approval_id > :after"], dict[str, Any](after=after, limit=limit)
    for column, value in (("status", status), ("run_id", run_id), ("session_id", session_id)):
        if value is not None:
            where.append(f"{column} = :{column}")
            params[column] = value
    found = db.fetch_all(
        f"SELECT {_APPROVAL_COLUMNS} FROM {{_approvals}} WHERE {' AND '.join(where)} ORDER BY approval_id LIMIT :limit",
        params,
    )
    return [approval_record_from_row(row) for row in found]


def list_due_approvals(
    db: DatabaseConnection, *, status: str, at: float, limit: int, after: ApprovalRecord | None
) -> list[ApprovalRecord]:
    where, params = "status = :status AND expires_at <= :at", dict[str, Any](status=status, at=at, limit=limit)
    if after is not None:
        where += " AND expires_at >= :since AND (expires_at > :since OR approval_id > :last_id)"
        params |= {"since": after.expires_at, "last_id": after.approval_id}
    found = db.fetch_all(
        f"SELECT {_APPROVAL_COLUMNS} FROM {{_approvals}} WHERE {where} ORDER BY expires_at, approval_id LIMIT :limit",
        params,
    )
    return [approval_record_from_row(row) for row in found]


def get_lease(db: DatabaseConnection, name: str) -> Lease | None:
    row = db.fetch_one("SELECT owner, token, expires_at FROM {_leases} WHERE name = :name", {"name": name})
    return Lease(name, *row) if row and row[0] else None


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
    ) -> Page | None:
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
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        return await self.run_query(list_runs, status=status, session_id=session_id, limit=limit, after=after)

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        return await self.run_query(read_log, "{_journal}", run_id, after=after, limit=NO_LIMIT)

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        return await self.run_query(read_log, "{_events}", run_id, after=after, limit=limit)

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        return await self.run_query(get_approval, approval_id)

    async def list_approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        return await self.run_query(
            list_approvals, status=status, run_id=run_id, session_id=session_id, limit=limit, after=after
        )

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        return await self.run_query(list_due_approvals, status=status, at=at, limit=limit, after=after)

    async def get_lease(self, name: str) -> Lease | None:
        return await self.run_query(get_lease, name)
