"""Import the tables of openai-agents, so that a program that switches to standfast keeps its sessions.

openai-agents stores a row per item with the JSON in ``message_data``, and its default table names are those that
``SQLiteSession`` and ``SQLAlchemySession`` use here as well. Its tables stay as they are, so that
openai-agents can still use them, and their rows are copied in the transaction that creates the tables of standfast
beside them.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.base.errors import InvalidInput
from standfast.base.items import decode_item
from standfast.base.log import get_logger
from standfast.base.text import extract_text, extract_words
from standfast.store.operations import Splice
from standfast.store.sql.connection import DatabaseConnection, GetColumns, TableNames, are_foreign
from standfast.store.sql.history_writes import splice
from standfast.store.sql.queries import as_bytes

_log = get_logger(__name__)
# AdvancedSQLiteSession stores the branches of a message in its own table; messages of other sessions are not in it.
_MAIN_BRANCH_FILTER = (
    " AND (id NOT IN (SELECT message_id FROM message_structure)"
    " OR id IN (SELECT message_id FROM message_structure WHERE branch_id = 'main'))"
)


def migrate_and_import(
    migrate: Callable[[], None],
    db: DatabaseConnection,
    names: TableNames,
    get_columns: GetColumns,
    *,
    requested: TableNames,
    now: float,
) -> None:
    """Migrate; the first time, import the tables of openai-agents if they have the ``requested`` names."""
    check_table_names(db, names, get_columns)
    foreign = not get_columns(names.sessions) and are_foreign(requested, get_columns)
    migrate()
    if foreign:
        import_rows(db, requested, get_columns, now)


def check_table_names(db: DatabaseConnection, names: TableNames, get_columns: GetColumns) -> None:
    """Check that the tables with this prefix do not belong to a store with other session and item tables."""
    shared = names.substitute("{_schema}")
    if not get_columns(shared) or not (db.fetch_one("SELECT MAX(version) FROM {_schema}", {}) or [None])[0]:
        return
    missing = [table for table in (names.sessions, names.items) if "tape" not in get_columns(table)]
    if missing:
        raise InvalidInput(
            f"the table {shared} belongs to a store with other tables: {' and '.join(missing)} not found. "
            "Open that store with its own table names, or use another prefix for the sessions table of this one"
        )


def import_rows(db: DatabaseConnection, names: TableNames, get_columns: GetColumns, now: float) -> None:
    """Copy the rows of the tables of openai-agents, which have these ``names``, in their order."""
    times: dict[str, Sequence[Any]] = {}
    if get_columns(names.sessions):
        stored = db.fetch_all(f"SELECT session_id, created_at, updated_at FROM {names.sessions}", {})
        times = {session_id: timestamps for session_id, *timestamps in stored}
    sessions = db.fetch_all(f"SELECT DISTINCT session_id FROM {names.items} ORDER BY session_id", {})
    branch_filter = _MAIN_BRANCH_FILTER if {"message_id", "branch_id"} <= set(get_columns("message_structure")) else ""
    for (session_id,) in sessions:
        rows = db.fetch_all(
            f"SELECT message_data FROM {names.items} WHERE session_id = :session_id{branch_filter} ORDER BY id",
            {"session_id": session_id},
        )
        items = tuple(as_bytes(row[0]) or b"" for row in rows)
        created, updated = (to_timestamp(time, now) for time in times.get(session_id, (None, None)))
        words = tuple(map(extract_row_words, items)) if db.words_expression else ()
        splice(db, Splice(session_id=session_id, add=items, words=words), created)
        db.execute(
            "UPDATE {sessions} SET updated_at = :updated WHERE session_id = :session_id",
            {"session_id": session_id, "updated": max(created, updated)},
        )
    _log.warning(
        "copied %d sessions of openai-agents from %s and %s; what openai-agents writes to its tables from now on is not"
        " seen here",
        len(sessions),
        names.sessions,
        names.items,
    )


def extract_row_words(data: bytes) -> str:
    try:
        return " ".join(extract_words(extract_text(decode_item(data))))
    except ValueError:
        return ""


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
