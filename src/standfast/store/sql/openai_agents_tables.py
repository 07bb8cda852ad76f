"""Read and write the tables of openai-agents in its own format, as long as they are not adopted.

openai-agents stores a row per item with the JSON in ``message_data``. Its default table names are those of
``SQLiteSession`` and ``SQLAlchemySession`` here as well, so that both programs can use one database: nothing is added
to it and no row looks different. Its tables have no place for idempotency keys and earlier generations, which are not
kept, nor for forks, metadata and runs, which raise :class:`NotAdopted`. :mod:`~standfast.store.sql.adoption` takes the
tables over.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, TypeAlias

from standfast.base.errors import NotAdopted
from standfast.store import operations, preconditions
from standfast.store.operations import Op, OpResult
from standfast.store.records import EMPTY_HEAD, Head, HistoryPage, Row, SessionRecord
from standfast.store.sql import queries, workspaces
from standfast.store.sql.connection import DatabaseConnection, TableNames, as_bytes, get_names_beside

ForeignTablesPolicy: TypeAlias = Literal["refuse", "share", "adopt"]
"""What a backend does with tables of openai-agents: raise :class:`NotAdopted`, use them as they are, or adopt them."""


class AdoptedMeanwhile(Exception):
    """Another process has adopted the tables: the backend has to be opened again."""


class OpenAIAgentsTables:
    """The tables of openai-agents in one database.

    ``order`` are the columns by which the items are sorted, which differ between its session classes. Every method
    raises :class:`AdoptedMeanwhile` once the tables are adopted.
    """

    def __init__(
        self,
        names: TableNames,
        *,
        location: str,
        order: str,
        get_columns: Callable[[Any, str], Collection[str]],
    ) -> None:
        self.names = names
        self.location = location
        self.order = order
        self.get_columns = get_columns
        self.select = f"SELECT id, message_data FROM {names.items} WHERE session_id = :session_id"

    def build_params(self, session_id: str) -> dict[str, Any]:
        """Return the parameters of the statement that selects the items of a session."""
        return {"session_id": session_id}

    def get_query(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that does for these tables what ``function`` does for those of standfast."""
        counterparts: Mapping[Callable[..., Any], Callable[..., Any]] = {
            queries.get_session: self.get_session,
            queries.read: self.read,
            queries.list_generations: lambda db, session_id: [],
            queries.list_quarantined: lambda db, session_id: [],
            workspaces.get_workspace: lambda db, key: None,
        }
        found = counterparts.get(function)
        if isinstance(getattr(function, "__self__", None), OpenAIAgentsTables):
            found = function
        if found is None:
            self.refuse(f"{function.__name__}()")

        def query(db: DatabaseConnection, *args: Any, **kwargs: Any) -> Any:
            self.check_ownership(db)
            return found(db, *args, **kwargs)

        return query

    def holds(self, session_id: str) -> bool:
        """Return whether a session is in these tables: all are, until the tables are adopted."""
        return True

    def refuse(self, operation: str) -> NoReturn:
        raise NotAdopted(self.location, operation=operation)

    def check_ownership(self, db: DatabaseConnection) -> None:
        if "tape" in self.get_columns(db, get_names_beside(self.names).sessions):
            raise AdoptedMeanwhile

    # --- reading --------------------------------------------------------------------------------

    def get_session(self, db: DatabaseConnection, session_id: str) -> SessionRecord | None:
        here = self.build_params(session_id)
        last_first = ", ".join(f"{column} DESC" for column in self.order.split(", "))
        row = db.fetch_one(
            f"SELECT created_at, updated_at FROM {self.names.sessions} WHERE session_id = :session_id",
            {"session_id": session_id},
        )
        counted = db.fetch_one(f"SELECT COUNT(*) FROM ({self.select}) AS items", here)
        length = counted[0] if counted else 0
        if row is None and not length:
            return None
        last = db.fetch_one(f"{self.select} ORDER BY {last_first} LIMIT 1", here) or (0, "")
        created, updated = (to_timestamp(time, 0.0) for time in row or (None, None))
        return SessionRecord(
            session_id=session_id,
            tape=compute_number("tape", session_id),
            version=compute_number("version", length, *last),
            length=length,
            next_seq=length,
            open_from=0,
            created_at=created,
            updated_at=updated,
        )

    def read(
        self,
        db: DatabaseConnection,
        session_id: str,
        *,
        start: int,
        stop: int | None,
        last: int | None,
        generation: int | None,
    ) -> HistoryPage | None:
        while True:
            record = self.get_session(db, session_id)
            if record is None or generation is not None:
                return None
            first, end = start, record.length if stop is None else min(stop, record.length)
            if last is not None:
                first, end = max(record.length - last, 0), record.length
            found = db.fetch_all(
                f"{self.select} ORDER BY {self.order} LIMIT :count OFFSET :first",
                {**self.build_params(session_id), "count": max(end - first, 0), "first": first},
            )
            rows = [
                Row(position, record.tape, position, as_bytes(data))
                for position, (_, data) in enumerate(found, start=first)
            ]
            if self.get_session(db, session_id) == record:
                return HistoryPage(record, rows)

    # --- writing --------------------------------------------------------------------------------

    def apply(self, db: DatabaseConnection, ops: Sequence[Op]) -> list[OpResult]:
        """Apply the operations of a commit inside a transaction, or raise :class:`NotAdopted`."""
        self.check_ownership(db)
        return [self.apply_one(db, op) for op in ops]

    def apply_one(self, db: DatabaseConnection, op: Op) -> OpResult:
        match op:
            case operations.Splice(seal=None, links=()):
                return self.splice(db, op)
            case operations.Erase(seal=None):
                return self.erase(db, op)
            case operations.Quarantine():  # the item is removed, as openai-agents does
                return None
            case operations.RequireVersion():
                preconditions.check_version(op.session_id, op.version, found=self.lock(db, op.session_id))
                return None
            case _:
                return self.refuse(type(op).__name__)

    def lock(self, db: DatabaseConnection, session_id: str) -> Head:
        """Lock the row of the session, which openai-agents updates with every write, and return the head."""
        db.fetch_one(
            f"SELECT 1 FROM {self.names.sessions} WHERE session_id = :session_id{db.lock_clause}",
            {"session_id": session_id},
        )
        record = self.get_session(db, session_id)
        return record.head if record else EMPTY_HEAD

    def splice(self, db: DatabaseConnection, op: operations.Splice) -> Head:
        """Append, or replace the rows from the first one that changes. There is no place for an earlier generation."""
        here, head = {"session_id": op.session_id}, self.lock(db, op.session_id)
        preconditions.check_view_update(op)
        preconditions.check_version(op.session_id, op.expected, found=head)
        added = [data.decode() for data in op.add]
        update = op.view_update
        if update is not None:
            if any(span.tape != op.tape for span in update.closed):
                self.refuse("a view of another session")
            stored = db.fetch_all(f"{self.select} ORDER BY {self.order}", self.build_params(op.session_id))
            texts = [*(data for _, data in stored), *added]
            places = [place for span in update.closed for place in range(span.start, span.stop)]
            places += range(update.open_from, len(texts))
            kept = next((at for at, place in enumerate(places) if at != place), len(places))
            kept = min(kept, len(stored))
            self.remove_rows(db, op.session_id, [row_id for row_id, _ in stored[kept:]])
            added = [texts[place] for place in places[kept:]]
        if not db.fetch_one(f"SELECT 1 FROM {self.names.sessions} WHERE session_id = :session_id", here):
            db.execute(f"INSERT INTO {self.names.sessions} (session_id) VALUES (:session_id)", here)
        self.add_texts(db, op.session_id, added)
        db.execute(
            f"UPDATE {self.names.sessions} SET updated_at = CURRENT_TIMESTAMP WHERE session_id = :session_id", here
        )
        return self.lock(db, op.session_id)

    def remove_rows(self, db: DatabaseConnection, session_id: str, row_ids: Sequence[Any]) -> None:
        db.execute_many(f"DELETE FROM {self.names.items} WHERE id = :id", [{"id": row_id} for row_id in row_ids])

    def add_texts(self, db: DatabaseConnection, session_id: str, texts: Sequence[str]) -> None:
        for text in texts:  # one by one: the ids have to follow the order of the items
            db.execute(
                f"INSERT INTO {self.names.items} (session_id, message_data) VALUES (:session_id, :data)",
                {"session_id": session_id, "data": text},
            )

    def erase(self, db: DatabaseConnection, op: operations.Erase) -> Head:
        preconditions.check_version(op.session_id, op.expected, found=self.lock(db, op.session_id))
        for table in (self.names.items, self.names.sessions):
            db.execute(f"DELETE FROM {table} WHERE session_id = :session_id", {"session_id": op.session_id})
        return EMPTY_HEAD


def compute_number(*parts: Any) -> int:
    """Return a positive number that is the same for the same parts."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 2) + 1


def to_timestamp(timestamp: Any, default: float) -> float:
    """Convert a timestamp of a database to seconds since 1970. A timestamp without a time zone is in UTC."""
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            return default
    if not isinstance(timestamp, datetime):
        return default
    return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()
