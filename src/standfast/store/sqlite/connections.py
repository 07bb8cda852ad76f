"""SQLite connections: the connection of the SQL modules, and readers on threads of their own or of the caller."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from standfast.lifecycle.threads import SingleThreadExecutor
from standfast.store.sql.connection import TableNames

T = TypeVar("T")

SLOW_SECONDS = 0.005
"""After work on the caller's thread that takes longer, further work is declined for a while."""
SLOW_JOB_SECONDS = 0.001
"""What each further job may take that shares a commit."""
MIN_PAUSE, MAX_PAUSE = 0.1, 10.0
DECLINED: Any = object()
"""Returned in place of a result: the caller must use another thread."""


class SlownessGuard:
    """Keeps work from the caller's thread for a while after it was slow: twice as long each time in a row.

    A busy machine makes one commit slow, a slow disk makes many.
    """

    def __init__(self) -> None:
        self._until = self._pause = 0.0

    def allows(self, now: float) -> bool:
        return now >= self._until

    def note(self, started: float, *, jobs: int = 1) -> None:
        """Note that ``jobs`` were done together since ``started``, on the monotonic clock."""
        now = time.monotonic()
        if now - started <= SLOW_SECONDS + (jobs - 1) * SLOW_JOB_SECONDS:
            self._pause = 0.0
        else:
            self._pause = min(max(2 * self._pause, MIN_PAUSE), MAX_PAUSE)
            self._until = now + self._pause


class SqliteConnection:
    """A sqlite3 connection as a :class:`~standfast.store.sql.connection.DatabaseConnection`."""

    lock_clause = ""
    words_expression = ""

    def __init__(self, raw: sqlite3.Connection, names: TableNames, *, lock_timeout: float = 0) -> None:
        self.raw = raw
        self.lock_timeout = lock_timeout
        self.log_limit: int | None = None
        """After how many pages a commit copies the log into the database; None for the default or never."""
        self.use_table_names(names)

    def use_table_names(self, names: TableNames) -> None:
        self.names = names
        self.statement_cache: dict[str, str] = {}

    def substitute_table_names(self, text: str) -> str:
        filled = self.statement_cache.get(text)
        if filled is None:
            filled = self.statement_cache[text] = self.names.substitute(text)
        return filled

    def fetch_one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None:
        row: Sequence[Any] | None = self.raw.execute(self.substitute_table_names(sql), params).fetchone()
        return row

    def fetch_all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self.raw.execute(self.substitute_table_names(sql), params).fetchall()

    def execute(self, sql: str, params: Mapping[str, Any]) -> None:
        self.raw.execute(self.substitute_table_names(sql), params)

    def execute_many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None:
        self.raw.executemany(self.substitute_table_names(sql), params)


class SnapshotReader:
    """A connection of one thread at a time, opened by the first read. All statements of a read see the same state."""

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        self.connect = connect
        self.connection: SqliteConnection | None = None
        self.lock = threading.Lock()

    def read_in_snapshot(self, work: Callable[[SqliteConnection], T]) -> T:
        """Return the result of ``work`` in a transaction. The caller holds the lock."""
        if self.connection is None:
            self.connection = self.connect()
        raw = self.connection.raw
        try:
            raw.execute("BEGIN")
            result = work(self.connection)
            raw.execute("ROLLBACK")
        except BaseException:
            if not rollback_or_close(raw):
                self.connection = None
            raise
        return result

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.raw.close()
            self.connection = None


class ReaderThread(SnapshotReader):
    """A thread with its own connection that runs one read at a time."""

    def __init__(self, name: str, connect: Callable[[], SqliteConnection]) -> None:
        super().__init__(connect)
        self.thread = SingleThreadExecutor(name)
        self.pending_reads = 0

    async def read(self, work: Callable[[SqliteConnection], T]) -> T:
        self.pending_reads += 1
        try:
            return await self.thread.run(self._read, work)
        finally:
            self.pending_reads -= 1

    def _read(self, work: Callable[[SqliteConnection], T]) -> T:
        with self.lock:
            return self.read_in_snapshot(work)

    async def copy_log(self) -> None:
        """Copy the write-ahead log into the database. Writers continue meanwhile, and a failure is left to them."""
        self.pending_reads += 1
        try:
            await self.thread.run(self._copy_log)
        finally:
            self.pending_reads -= 1

    def _copy_log(self) -> None:
        with self.lock, contextlib.suppress(sqlite3.Error):
            if self.connection is None:
                self.connection = self.connect()
            self.connection.raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def close(self) -> None:
        self.thread.close_sync()
        self.disconnect()


class InlineReader(SnapshotReader):
    """Makes small reads on the thread of the caller, which takes less time than waking another thread twice.

    With the write-ahead log a read never waits for a writer. The reader declines for a while after a slow read,
    while another thread uses its connection, and on errors of the database, which the reader threads then report.
    """

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        super().__init__(connect)
        self.closed = False
        self.guard = SlownessGuard()

    def try_read(self, work: Callable[[SqliteConnection], Any]) -> Any:
        """Return the result of ``work`` in one snapshot, or :data:`DECLINED`."""
        started = time.monotonic()
        if not self.guard.allows(started) or not self.lock.acquire(blocking=False):
            return DECLINED
        try:
            if self.closed:
                return DECLINED
            if self.connection is None:
                self.connection = self.connect()
            result = work(self.connection)  # of which one statement matters, so that it needs no transaction
            self.guard.note(started)
            return result
        except sqlite3.OperationalError:
            return DECLINED
        finally:
            self.lock.release()

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.disconnect()


def rollback_or_close(raw: sqlite3.Connection) -> bool:
    """Roll back an open transaction. If that fails, close the connection and return False."""
    for _ in range(2):  # a second attempt, because closing an in-memory database destroys it
        with contextlib.suppress(sqlite3.Error):
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            return True
    with contextlib.suppress(sqlite3.Error):
        raw.close()
    return False
