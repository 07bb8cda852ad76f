"""Taking over the tables of openai-agents, so that a program which changes its import keeps its conversations.

That layout has a row per item with the JSON in ``message_data``, and its default table names are those of our
ready-made sessions. Its tables are renamed, never changed, and their rows are copied, in the same transaction that
creates ours.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.base.errors import InvalidInput
from holdfast.base.items import decode_item, text_of, words_of
from holdfast.store.contract import Splice
from holdfast.store.relational.connection import Connection, Names
from holdfast.store.relational.history_writes import splice
from holdfast.store.relational.reads import as_bytes

_log = logging.getLogger(__name__)
_SUFFIX = "_openai_agents"
# Its AdvancedSQLiteSession notes in a table of its own which branches a message is in; what others wrote is in none.
_ON_MAIN = (
    " AND (id NOT IN (SELECT message_id FROM message_structure)"
    " OR id IN (SELECT message_id FROM message_structure WHERE branch_id = 'main'))"
)

ColumnsOf = Callable[[str], Collection[str]]
"""The columns of a table, none when there is no such table."""


def around(migrate: Callable[[], None], db: Connection, names: Names, columns_of: ColumnsOf, *, now: float) -> None:
    """Migrate, and take over that layout's tables if they have the names of ours."""
    check_names(db, names, columns_of)
    foreign = "message_data" in columns_of(names.items)
    if foreign:
        set_aside(db, names, columns_of)
    migrate()
    if foreign:
        take_over(db, names, columns_of, now)


def check_names(db: Connection, names: Names, columns_of: ColumnsOf) -> None:
    """Make sure that the tables which all names of this stem share were not made for others."""
    shared = names.fill("{_schema}")
    if not columns_of(shared) or not (db.one("SELECT MAX(version) FROM {_schema}", {}) or [None])[0]:
        return
    missing = [table for table in (names.sessions, names.items) if "tape" not in columns_of(table)]
    if missing:
        raise InvalidInput(
            f"the table {shared} belongs to a store with other tables: there is no {' and no '.join(missing)} of it. "
            "Open that store by its own names, or give this one a table of sessions that begins otherwise"
        )


def set_aside(db: Connection, names: Names, columns_of: ColumnsOf) -> None:
    for table in (names.items, names.sessions):
        if columns_of(table):
            db.run(f"ALTER TABLE {table} RENAME TO {table}{_SUFFIX}", {})


def take_over(db: Connection, names: Names, columns_of: ColumnsOf, now: float) -> None:
    """Copy what was set aside into our tables, item by item in its order."""
    times: dict[str, Sequence[Any]] = {}
    if columns_of(names.sessions + _SUFFIX):
        stored = db.all(f"SELECT session_id, created_at, updated_at FROM {{sessions}}{_SUFFIX}", {})
        times = {session_id: found for session_id, *found in stored}
    known = db.all(f"SELECT DISTINCT session_id FROM {{items}}{_SUFFIX} ORDER BY session_id", {})
    shown = _ON_MAIN if {"message_id", "branch_id"} <= set(columns_of("message_structure")) else ""
    for (session_id,) in known:
        rows = db.all(
            f"SELECT message_data FROM {{items}}{_SUFFIX} WHERE session_id = :session_id{shown} ORDER BY id",
            {"session_id": session_id},
        )
        items = tuple(as_bytes(row[0]) or b"" for row in rows)
        created, updated = (seconds(time, now) for time in times.get(session_id, (None, None)))
        words = tuple(map(words_in, items)) if db.words else ()
        splice(db, Splice(session_id=session_id, add=items, words=words), created)
        db.run(
            "UPDATE {sessions} SET updated_at = :updated WHERE session_id = :session_id",
            {"session_id": session_id, "updated": max(created, updated)},
        )
    _log.warning(
        "took over %d conversations of openai-agents; its tables are kept as %s%s and %s%s",
        len(known),
        names.sessions,
        _SUFFIX,
        names.items,
        _SUFFIX,
    )


def words_in(data: bytes) -> str:
    try:
        return " ".join(words_of(text_of(decode_item(data))))
    except ValueError:
        return ""


def seconds(timestamp: Any, default: float) -> float:
    """A database's idea of a time as seconds since 1970, in UTC unless it says otherwise."""
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            return default
    if not isinstance(timestamp, datetime):
        return default
    return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()
