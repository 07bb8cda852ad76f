"""Transactions on an SQLite connection, and the ones that are made in place."""

import asyncio
import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.store.contract import Annotate, Emit, Erase, Journal, Op, SaveApproval, SaveRun, Splice
from holdfast.store.relational.connection import Names

_SMALL = 32_768  # bytes that one caller may commit in place
_MOST = 8 * _SMALL  # ... and all those of one turn of the loop together
_ROW = 64  # bytes that a row counts for, besides its own
_TOO_LONG = 0.005  # seconds after which a commit in place was a mistake
_REST = 10.0  # seconds for which it is then not tried again
_CHECKPOINT_EVERY = 256  # commits, two of which the writing thread makes in any case


class SqliteConnection:
    """A sqlite3 connection that speaks the relational code's language."""

    lock = ""
    words = ""

    def __init__(self, raw: sqlite3.Connection, names: Names, *, patience: float = 0) -> None:
        self.raw = raw
        self.names = names
        self.patience = patience
        self.filled: dict[str, str] = {}

    def sql(self, text: str) -> str:
        filled = self.filled.get(text)
        if filled is None:
            filled = self.filled[text] = self.names.fill(text)
        return filled

    def one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None:
        row: Sequence[Any] | None = self.raw.execute(self.sql(sql), params).fetchone()
        return row

    def all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self.raw.execute(self.sql(sql), params).fetchall()

    def run(self, sql: str, params: Mapping[str, Any]) -> None:
        self.raw.execute(self.sql(sql), params)

    def many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None:
        self.raw.executemany(self.sql(sql), params)


Work = Callable[[SqliteConnection], Any]


class InPlace:
    """Makes small commits on the callers' own thread, as long as nothing has to be waited for.

    Callers that come in the same turn of their event loop share a commit. It never waits for a lock and never
    syncs a file: then, and for a while after a commit that took long, it declines, and they ask the writing thread.
    """

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        self.connect = connect
        self.connection: SqliteConnection | None = None
        self.closed = False
        self.busy = threading.Lock()
        self.waiting: dict[asyncio.AbstractEventLoop, list[tuple[Work, float, asyncio.Future[Any]]]] = {}
        self.rests_until = 0.0
        self.commits = 0

    async def commit(self, work: Work, weight: float) -> Any:
        """What the work answered, or :data:`DECLINED`. ``weight`` is that of its operations."""
        if weight > _SMALL:
            return DECLINED
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        waiting = self.waiting.get(loop)
        if waiting is None:
            waiting = self.waiting[loop] = []
            loop.call_soon(self.serve, loop)
        waiting.append((work, weight, future))
        return await future

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit for those who wait in this loop, if any: at the end of its turn, or earlier when the store closes."""
        callers = [caller for caller in self.waiting.pop(loop, ()) if not caller[2].done()]
        if not callers:
            return
        try:
            small = sum(weight for _, weight, _ in callers) <= _MOST
            results = self.try_now([work for work, _, _ in callers]) if small else [DECLINED] * len(callers)
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            results = [Failure(error)] * len(callers)
        for (_, _, future), result in zip(callers, results, strict=True):
            if isinstance(result, Failure):
                future.set_exception(result.error)
            else:
                future.set_result(result)

    def try_now(self, works: list[Work]) -> list[Any]:
        started = time.monotonic()
        # Now and then the thread has a turn: its commit brings the log into the file, and the one after begins
        # the log anew. Both wait for the disk.
        self.commits += 1
        thread_has_turn = self.commits % _CHECKPOINT_EVERY < 2
        if thread_has_turn or started < self.rests_until or not self.busy.acquire(blocking=False):
            return [DECLINED] * len(works)
        try:
            if self.closed:
                return [DECLINED] * len(works)
            if self.connection is None:
                self.connection = self.connected()
            results = commit_together(self.connection, works)
            if time.monotonic() - started > _TOO_LONG:
                self.rests_until = time.monotonic() + _REST
            return results
        except CannotBegin:  # another process writes, or the file is gone: the thread will find out
            return [DECLINED] * len(works)
        except BrokenConnection:
            self.connection = None
            raise
        finally:
            self.busy.release()

    def connected(self) -> SqliteConnection:
        try:
            return self.connect()
        except sqlite3.OperationalError as error:
            raise CannotBegin from error

    def close(self) -> None:
        with self.busy:
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


def commit_together(connection: SqliteConnection, works: Sequence[Work]) -> list[Any]:
    """One transaction for all: what each returned, or its :class:`Failure`. An exception means: nothing was written."""
    raw = connection.raw
    try:
        begin(connection)
        results = [works[0](connection)] if len(works) == 1 else [guarded(connection, work) for work in works]
        raw.execute("COMMIT")
    except BaseException as error:
        if not left_transaction(raw):
            raise BrokenConnection from error
        raise
    return results


def begin(connection: SqliteConnection) -> None:
    """Take the write lock, as soon as others leave it and as long as there is patience."""
    # SQLite itself asks more and more rarely while it waits, up to ten times a second. It would come late, and when
    # somebody writes again and again, never.
    deadline = time.monotonic() + connection.patience
    while True:
        try:
            connection.raw.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise CannotBegin from error


def left_transaction(raw: sqlite3.Connection) -> bool:
    """Roll back if need be; a connection that will not let go of its transaction is closed instead."""
    for _ in range(2):  # once more before giving up: a database in memory goes with its connection
        with contextlib.suppress(sqlite3.Error):
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            return True
    with contextlib.suppress(sqlite3.Error):
        raw.close()
    return False


def guarded(connection: SqliteConnection, work: Work) -> Any:
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


def weight(ops: Sequence[Op]) -> float:
    """Roughly how many bytes the operations write; infinite when what is stored already decides it."""
    return sum(map(weight_of, ops))


def weight_of(op: Op) -> float:
    if isinstance(op, (Erase, Annotate)):
        return math.inf
    spans = len(op.shape.closed) if isinstance(op, Splice) and op.shape else 0
    return sum(_ROW + len(blob) for blob in blobs(op)) + _ROW * spans


def blobs(op: Op) -> Iterable[bytes]:
    if isinstance(op, Splice):
        return op.add
    if isinstance(op, (Journal, Emit)):
        return (data for _, data in (op.entries if isinstance(op, Journal) else op.events))
    return (op.data,) if isinstance(op, (SaveRun, SaveApproval)) else ()
