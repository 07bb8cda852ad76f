"""Adopt the tables of openai-agents, and give them back.

Adopting copies their rows into tables of standfast beside them and stops openai-agents from writing to its own, all in
one transaction: a process that is killed leaves everything as it was. Its tables stay, so that they can be read and
given back.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.base.errors import InvalidInput, Unsupported
from standfast.base.items import decode_item
from standfast.base.log import get_logger
from standfast.base.text import extract_text, extract_words
from standfast.store.operations import Splice
from standfast.store.records import HistoryPage, SessionRecord
from standfast.store.sql import queries, schema
from standfast.store.sql.connection import DatabaseConnection, GetColumns, TableNames, are_left_to_owner, as_bytes
from standfast.store.sql.history_writes import splice
from standfast.store.sql.openai_agents_tables import to_timestamp

_log = get_logger(__name__)
# AdvancedSQLiteSession stores the branches of a message in its own table; messages of other sessions are not in it.
_MAIN_BRANCH_FILTER = (
    " AND (id NOT IN (SELECT message_id FROM message_structure)"
    " OR id IN (SELECT message_id FROM message_structure WHERE branch_id = 'main'))"
)
_ADDITIONAL_TABLES = {"message_structure": "message_id", "turn_usage": "user_turn_number"}
_REFUSAL = "these tables were adopted by standfast; give them back with: standfast adopt URL --undo"


def migrate_and_adopt(
    migrate: Callable[[], None],
    db: DatabaseConnection,
    names: TableNames,
    get_columns: GetColumns,
    *,
    requested: TableNames,
    dialect: str,
    order: str,
    now: float,
) -> None:
    """Migrate; the first time, adopt the tables of openai-agents if they have the ``requested`` names."""
    check_table_names(db, names, get_columns)
    foreign = are_left_to_owner(requested, get_columns)
    if foreign and dialect not in ("sqlite", "postgresql"):
        raise Unsupported(
            f"tables in {dialect} cannot be adopted in one transaction; copy them with `standfast import openai-agents`"
        )
    if foreign and dialect == "postgresql":
        db.execute(f"LOCK TABLE {requested.sessions}, {requested.items} IN SHARE ROW EXCLUSIVE MODE", {})
    migrate()
    if foreign:
        import_rows(db, requested, get_columns, order=order, now=now)
        for statement in build_locks(list_foreign_tables(requested, get_columns), dialect):
            db.execute(statement, {})


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


def import_rows(db: DatabaseConnection, names: TableNames, get_columns: GetColumns, *, order: str, now: float) -> None:
    """Copy the rows of the tables of openai-agents, which have these ``names``, in their order."""
    times: dict[str, Sequence[Any]] = {}
    if get_columns(names.sessions):
        stored = db.fetch_all(f"SELECT session_id, created_at, updated_at FROM {names.sessions}", {})
        times = {session_id: timestamps for session_id, *timestamps in stored}
    sessions = db.fetch_all(f"SELECT DISTINCT session_id FROM {names.items} ORDER BY session_id", {})
    branch_filter = _MAIN_BRANCH_FILTER if {"message_id", "branch_id"} <= set(get_columns("message_structure")) else ""
    for (session_id,) in sessions:
        rows = db.fetch_all(
            f"SELECT message_data FROM {names.items} WHERE session_id = :session_id{branch_filter} ORDER BY {order}",
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
    _log.info("adopted %d sessions of openai-agents from %s and %s", len(sessions), names.sessions, names.items)


def extract_row_words(data: bytes) -> str:
    try:
        return " ".join(extract_words(extract_text(decode_item(data))))
    except ValueError:
        return ""


# --- stopping openai-agents from writing to adopted tables ----------------------------------------


def list_foreign_tables(names: TableNames, get_columns: GetColumns) -> list[str]:
    additional = [table for table, column in _ADDITIONAL_TABLES.items() if column in get_columns(table)]
    return [names.sessions, names.items, *additional]


def build_locks(tables: Sequence[str], dialect: str) -> list[str]:
    """Return the statements after which every write to the tables fails, with a reason."""
    if dialect == "sqlite":
        # ROLLBACK, because versions of openai-agents up to 0.17 do not end their transaction after an error, and its
        # lock would keep out all others.
        return [
            f"CREATE TRIGGER standfast_{event.lower()}_{table} BEFORE {event} ON {table}"
            f" BEGIN SELECT RAISE(ROLLBACK, '{_REFUSAL}'); END"
            for table in tables
            for event in ("INSERT", "UPDATE", "DELETE")
        ]
    return [
        "CREATE OR REPLACE FUNCTION standfast_refuse_write() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$",
        *(
            f"CREATE TRIGGER standfast_refuse BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION standfast_refuse_write()"
            for table in tables
        ),
    ]


def build_unlocks(tables: Sequence[str], dialect: str) -> list[str]:
    if dialect == "sqlite":
        return [
            f"DROP TRIGGER IF EXISTS standfast_{event}_{table}"
            for table in tables
            for event in ("insert", "update", "delete")
        ]
    return [f"DROP TRIGGER IF EXISTS standfast_refuse ON {table}" for table in tables]


# --- giving the tables back -----------------------------------------------------------------------


class ReturnedSession(msgspec.Struct, frozen=True):
    """What giving back does to one session: the items that are written, or the ``problem`` that prevents it."""

    session_id: str
    outcome: Literal["unchanged", "returned", "deleted", "refused"]
    items: int = 0
    problem: str = ""


EncodePage: TypeAlias = Callable[[DatabaseConnection, HistoryPage], "list[str] | ReturnedSession | None"]
"""Returns the JSON texts of a session as openai-agents stores them; what is done instead of storing them; or nothing if
the session is only a part of another one."""


def return_sessions(
    db: DatabaseConnection,
    names: TableNames,
    get_columns: GetColumns,
    *,
    dialect: str,
    encode: EncodePage,
    dry_run: bool,
) -> list[ReturnedSession]:
    """Write what was added since into the tables of openai-agents, allow it to write again, and drop the own tables.

    ``db`` is in a transaction and substitutes the names of the own tables; ``names`` are those of openai-agents. If a
    session has a ``problem``, nothing is changed.
    """
    if dialect == "postgresql" and not dry_run:
        db.execute("LOCK TABLE {sessions}, {items} IN ACCESS EXCLUSIVE MODE", {})
    for table in ("{_runs}", "{_workspaces}"):
        if db.fetch_one(f"SELECT 1 FROM {table} LIMIT 1", {}):
            raise InvalidInput(
                "the store has durable runs or workspaces, and openai-agents has no place for them. Nothing was"
                " changed. Delete them first, or write the sessions to a file with `standfast export openai-agents`"
            )
    records = queries.list_sessions(db, owner=None, query=None, limit=queries.NO_LIMIT, after=None)
    pages = [queries.read(db, record.session_id, start=0, stop=None, last=None, generation=None) for record in records]
    plans = [_plan_return(db, names, page, encode) for page in pages if page is not None]
    own = {record.session_id for record in records}
    stored = db.fetch_all(f"SELECT DISTINCT session_id FROM {names.items} ORDER BY session_id", {})
    gone = [session_id for (session_id,) in stored if session_id not in own]
    report = [plan.report for plan in plans if plan.report is not None]
    report += [ReturnedSession(session_id, "deleted") for session_id in gone]
    if dry_run or any(entry.problem for entry in report):
        return sorted(report, key=lambda entry: entry.session_id)
    for statement in build_unlocks(list_foreign_tables(names, get_columns), dialect):
        db.execute(statement, {})
    for plan in plans:
        _write_back(db, names, plan)
    for session_id in gone:
        for table in (names.items, names.sessions):
            db.execute(f"DELETE FROM {table} WHERE session_id = :session_id", {"session_id": session_id})
    for statement in build_drops(dialect):
        db.execute(statement, {})
    return sorted(report, key=lambda entry: entry.session_id)


class _Plan(msgspec.Struct, frozen=True):
    record: SessionRecord
    report: ReturnedSession | None
    removed: list[Any] = []
    added: list[str] = []


def _plan_return(db: DatabaseConnection, names: TableNames, page: HistoryPage, encode: EncodePage) -> _Plan:
    session_id = page.record.session_id
    stored = db.fetch_all(
        f"SELECT id, message_data FROM {names.items} WHERE session_id = :session_id ORDER BY id",
        {"session_id": session_id},
    )
    texts = [row.data for row in page.rows]
    if page.record.seal is None and texts == [as_bytes(data) for _, data in stored]:
        return _Plan(page.record, ReturnedSession(session_id, "unchanged"))
    encoded = encode(db, page)
    if not isinstance(encoded, list):
        return _Plan(page.record, encoded)
    kept = 0
    while kept < min(len(stored), len(encoded)) and as_bytes(stored[kept][1]) == encoded[kept].encode():
        kept += 1
    removed, added = [row_id for row_id, _ in stored[kept:]], encoded[kept:]
    return _Plan(page.record, ReturnedSession(session_id, "returned", len(added)), removed, added)


def _write_back(db: DatabaseConnection, names: TableNames, plan: _Plan) -> None:
    here = {"session_id": plan.record.session_id}
    if plan.added and not db.fetch_one(f"SELECT 1 FROM {names.sessions} WHERE session_id = :session_id", here):
        db.execute(f"INSERT INTO {names.sessions} (session_id) VALUES (:session_id)", here)
    for row_id in plan.removed:
        db.execute(f"DELETE FROM {names.items} WHERE id = :id", {"id": row_id})
    for text in plan.added:
        db.execute(
            f"INSERT INTO {names.items} (session_id, message_data) VALUES (:session_id, :data)", {**here, "data": text}
        )


def build_drops(dialect: str) -> list[str]:
    """Return the statements that drop all tables and functions of the store."""
    statements = [text for migration in schema.MIGRATIONS for text in migration.iter_statements()]
    text = "\n".join([schema.CREATE_SCHEMA_TABLE, *statements])
    tables = re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\{\w+\})", text)
    functions = re.findall(r"CREATE OR REPLACE FUNCTION (\{\w+\})", text)
    search = [
        "DROP TRIGGER IF EXISTS {_search}_forgets",
        *(f"DROP TABLE IF EXISTS {table}" for table in ("{_search}", "{_search_rows}", "{_searched}")),
    ]
    return [
        *(search if dialect == "sqlite" else [f"DROP ROUTINE IF EXISTS {name}" for name in dict.fromkeys(functions)]),
        *(f"DROP TABLE IF EXISTS {table}" for table in reversed(tables)),
    ]
