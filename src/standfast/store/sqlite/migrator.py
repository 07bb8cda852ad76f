"""Prepare an SQLite file: its journal mode and its tables."""

import random
import sqlite3
import time
from functools import partial

from standfast.store.sql import adoption, schema
from standfast.store.sql.connection import TableNames, are_left_to_owner, select_table_names
from standfast.store.sql.openai_agents_tables import ForeignTablesPolicy, OpenAIAgentsTables
from standfast.store.sqlite.connections import SqliteConnection

_FOREIGN_ORDER = "id"  # by which SQLiteSession of openai-agents sorts the items of a session


def get_columns(connection: SqliteConnection, table: str) -> list[str]:
    """Return the columns of a table, none if it does not exist."""
    return [row[1] for row in connection.fetch_all(f"PRAGMA table_info({table})", {})]


def find_openai_agents(
    connection: SqliteConnection, requested: TableNames, *, location: str, policy: ForeignTablesPolicy
) -> OpenAIAgentsTables | None:
    """Return the tables of openai-agents if the backend has to use them as they are."""
    if policy == "adopt" or not are_left_to_owner(requested, partial(get_columns, connection)):
        return None
    found = OpenAIAgentsTables(requested, location=location, order=_FOREIGN_ORDER, get_columns=get_columns)
    return found if policy == "share" else found.refuse("a store")


def migrate(connection: SqliteConnection, requested: TableNames, *, location: str, now: float) -> TableNames:
    """Create, migrate or adopt the tables in the current transaction, and return the names under which they are."""
    columns = partial(get_columns, connection)
    names = select_table_names(requested, columns)
    connection.use_table_names(names)

    def migrate() -> None:
        schema.migrate(connection, dialect="sqlite", types=schema.SQLITE_TYPES, location=location, now=now)

    adoption.migrate_and_adopt(
        migrate, connection, names, columns, requested=requested, dialect="sqlite", order=_FOREIGN_ORDER, now=now
    )
    return names


def enable_wal(raw: sqlite3.Connection, *, timeout: float) -> None:
    """Switch to the write-ahead log.

    Retries while the file is locked, because SQLite ignores its busy timeout when it changes the journal mode.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))
