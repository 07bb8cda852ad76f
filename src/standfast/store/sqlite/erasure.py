"""Remove what SQLite itself keeps of erased data.

``PRAGMA secure_delete`` overwrites deleted rows. The search index would still keep the words of deleted items until it
merges its segments, and the write-ahead log copies of pages from before the erasure.
"""

import sqlite3
from collections.abc import Sequence

from standfast.store.operations import (
    DeleteDocument,
    DeleteRun,
    DeleteWorkspace,
    Erase,
    Op,
    RewriteRun,
    RewriteVersions,
)
from standfast.store.sql.connection import DatabaseConnection

SECURE_DELETE = "secure_delete = ON"
"""The pragma of every connection that writes. SQLite's own default leaves deleted rows in free pages."""
TRUNCATE_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"
_CHECKPOINT_WAIT_MS = 1000  # for readers of other processes; a log that they still read is truncated later
_MERGED_PAGES = 500  # of the index in one transaction, so that other writers need not wait long
_ERASING_OPS = frozenset((Erase, DeleteRun, DeleteWorkspace, DeleteDocument, RewriteRun, RewriteVersions))
_INDEX_FORGETS_AT_ONCE = sqlite3.sqlite_version_info >= (3, 42, 0)


def is_erasing(ops: Sequence[Op]) -> bool:
    return not _ERASING_OPS.isdisjoint(map(type, ops))


def has_index(db: DatabaseConnection) -> bool:
    return db.fetch_one("SELECT 1 FROM sqlite_master WHERE name = '{_search}'", {}) is not None


def prepare_index(db: DatabaseConnection) -> None:
    """Make the index destroy the words of deleted items, where SQLite can."""
    if _INDEX_FORGETS_AT_ONCE and has_index(db):
        db.execute("INSERT INTO {_search} ({_search}, rank) VALUES ('secure-delete', 1)", {})


def merge_index(db: DatabaseConnection) -> bool:
    """Merge part of the index, which destroys the words of deleted items; return whether there is more to merge."""
    if _INDEX_FORGETS_AT_ONCE or not has_index(db):
        return False
    before = count_changes(db)
    # A negative number merges everything, as 'optimize' does, but only so many pages at a time.
    db.execute(f"INSERT INTO {{_search}} ({{_search}}, rank) VALUES ('merge', -{_MERGED_PAGES})", {})
    return count_changes(db) - before >= 2  # one change is the command itself


def count_changes(db: DatabaseConnection) -> int:
    row = db.fetch_one("SELECT total_changes()", {})
    return int(row[0]) if row else 0


def truncate_log(raw: sqlite3.Connection) -> bool:
    """Empty the write-ahead log; return False if another connection still reads from it, or if it failed."""
    try:
        (timeout,) = raw.execute("PRAGMA busy_timeout").fetchone()
        raw.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
        try:
            (busy, *_) = raw.execute(TRUNCATE_LOG).fetchone()
        finally:
            raw.execute(f"PRAGMA busy_timeout = {timeout}")
    except sqlite3.Error:
        return False
    return not busy
