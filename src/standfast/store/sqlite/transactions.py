"""Transactions on an SQLite connection, and the ones that are made in place."""

import asyncio
import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from standfast.store.operations import Annotate, AppendEvents, AppendJournal, Erase, Op, SaveApproval, SaveRun, Splice
from standfast.store.sql.connection import TableNames

_MAX_INLINE_BYTES = 32_768  # bytes that one caller may commit in place
_MAX_GROUP_BYTES = 8 * _MAX_INLINE_BYTES  # ... and all those of one turn of the loop together
_ROW_OVERHEAD = 64  # bytes that a row counts for, besides its own
_SLOW_COMMIT_SECONDS = 0.005  # seconds after which a commit in place was a mistake
_PAUSE_SECONDS = 10.0  # seconds for which it is then not tried again
_CHECKPOINT_EVERY = 256  # commits, two of which the writing thread makes in any case


class SqliteConnection:
    """A sqlite3 connection that speaks the relational code's language."""

    lock_clause = ""
    words_expression = ""

    def __init__(self, raw: sqlite3.Connection, names: TableNames, *, lock_timeout: float = 0) -> None:
        self.raw = raw
        self.lock_timeout = lock_timeout
        self.use_names(names)

    def use_names(self, names: TableNames) -> None:
        self.names = names
        self.statement_cache: dict[str, str] = {}

    def substitute_names(self, text: str) -> str:
        filled = self.statement_cache.get(text)
        if filled is None:
            filled = self.statement_cache[text] = self.names.substitute(text)
        return filled

    def fetch_one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None:
        row: Sequence[Any] | None = self.raw.execute(self.substitute_names(sql), params).fetchone()
        return row

    def fetch_all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self.raw.execute(self.substitute_names(sql), params).fetchall()

    def execute(self, sql: str, params: Mapping[str, Any]) -> None:
        self.raw.execute(self.substitute_names(sql), params)

    def execute_many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None:
        self.raw.executemany(self.substitute_names(sql), params)


Work = Callable[[SqliteConnection], Any]


class InlineCommitter:
    """Makes small commits on the callers' own thread, as long as nothing has to be waited for.

    Callers that come in the same turn of their event loop share a commit. It never waits for a lock and never
    syncs a file: then, and for a while after a commit that took long, it declines, and they ask the writing thread.
    """

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        self.connect = connect
        self.connection: SqliteConnection | None = None
        self.closed = False
        self.lock = threading.Lock()
        self.pending: dict[asyncio.AbstractEventLoop, list[tuple[Work, float, asyncio.Future[Any]]]] = {}
        self.paused_until = 0.0
        self.commit_count = 0

    async def commit(self, work: Work, size: float) -> Any:
        """What the work answered, or :data:`DECLINED`. ``weight`` is that of its operations."""
        if size > _MAX_INLINE_BYTES:
            return DECLINED
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        waiting = self.pending.get(loop)
        if waiting is None:
            waiting = self.pending[loop] = []
            loop.call_soon(self.flush, loop)
        waiting.append((work, size, future))
        return await future

    def flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit for those who wait in this loop, if any: at the end of its turn, or earlier when the store closes."""
        callers = [caller for caller in self.pending.pop(loop, ()) if not caller[2].done()]
        if not callers:
            return
        try:
            small = sum(weight for _, weight, _ in callers) <= _MAX_GROUP_BYTES
            results = self.try_commit([work for work, _, _ in callers]) if small else [DECLINED] * len(callers)
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            results = [Failure(error)] * len(callers)
        for (_, _, future), result in zip(callers, results, strict=True):
            if isinstance(result, Failure):
                future.set_exception(result.error)
            else:
                future.set_result(result)

    def try_commit(self, works: list[Work]) -> list[Any]:
        started = time.monotonic()
        # Now and then the thread has a turn: its commit brings the log into the file, and the one after begins
        # the log anew. Both wait for the disk.
        self.commit_count += 1
        thread_has_turn = self.commit_count % _CHECKPOINT_EVERY < 2
        if thread_has_turn or started < self.paused_until or not self.lock.acquire(blocking=False):
            return [DECLINED] * len(works)
        try:
            if self.closed:
                return [DECLINED] * len(works)
            if self.connection is None:
                self.connection = self.open_connection()
            results = commit_group(self.connection, works)
            if time.monotonic() - started > _SLOW_COMMIT_SECONDS:
                self.paused_until = time.monotonic() + _PAUSE_SECONDS
            return results
        except CannotBegin:  # another process writes, or the file is gone: the thread will find out
            return [DECLINED] * len(works)
        except BrokenConnection:
            self.connection = None
            raise
        finally:
            self.lock.release()

    def open_connection(self) -> SqliteConnection:
        try:
            return self.connect()
        except sqlite3.OperationalError as error:
            raise CannotBegin from error

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.disconnect()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.raw.close()
            self.connection = None


DECLINED: Any = object()


class Failure:
    """One caller's error in a transaction that goes on for the others."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class CannotBegin(Exception):
    """The write lock was not to be had."""


class BrokenConnection(Exception):
    """The transaction could not even be rolled back; the connection was closed."""


def commit_group(connection: SqliteConnection, works: Sequence[Work]) -> list[Any]:
    """One transaction for all: what each returned, or its :class:`Failure`. An exception means: nothing was written."""
    raw = connection.raw
    try:
        begin_immediate(connection)
        results = [works[0](connection)] if len(works) == 1 else [run_in_savepoint(connection, work) for work in works]
        raw.execute("COMMIT")
    except BaseException as error:
        if not rollback_or_close(raw):
            raise BrokenConnection from error
        raise
    return results


def begin_immediate(connection: SqliteConnection) -> None:
    """Take the write lock, as soon as others leave it and as long as there is patience."""
    # SQLite itself asks more and more rarely while it waits, up to ten times a second. It would come late, and when
    # somebody writes again and again, never.
    deadline = time.monotonic() + connection.lock_timeout
    while True:
        try:
            connection.raw.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise CannotBegin from error


def rollback_or_close(raw: sqlite3.Connection) -> bool:
    """Roll back if need be; a connection that will not let go of its transaction is closed instead."""
    for _ in range(2):  # once more before giving up: a database in memory goes with its connection
        with contextlib.suppress(sqlite3.Error):
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            return True
    with contextlib.suppress(sqlite3.Error):
        raw.close()
    return False


def run_in_savepoint(connection: SqliteConnection, work: Work) -> Any:
    """Run one of several; what it cannot do, it has not done, and the others go on."""
    connection.raw.execute("SAVEPOINT caller")
    try:
        result = work(connection)
    except sqlite3.OperationalError:
        raise  # the database's trouble, not this caller's
    except Exception as error:  # noqa: BLE001 - it belongs to this caller alone
        connection.raw.execute("ROLLBACK TO caller")
        result = Failure(error)
    connection.raw.execute("RELEASE caller")
    return result


def estimate_size(ops: Sequence[Op]) -> float:
    """Roughly how many bytes the operations write; infinite when what is stored already decides it."""
    return sum(map(estimate_op_size, ops))


def estimate_op_size(op: Op) -> float:
    if isinstance(op, (Erase, Annotate)):
        return math.inf
    spans = len(op.view_update.closed) if isinstance(op, Splice) and op.view_update else 0
    return sum(_ROW_OVERHEAD + len(blob) for blob in iter_blobs(op)) + _ROW_OVERHEAD * spans


def iter_blobs(op: Op) -> Iterable[bytes]:
    if isinstance(op, Splice):
        return op.add
    if isinstance(op, (AppendJournal, AppendEvents)):
        return (data for _, data in (op.entries if isinstance(op, AppendJournal) else op.events))
    return (op.data,) if isinstance(op, (SaveRun, SaveApproval)) else ()
