"""Transactions on SQLite connections: group and inline commits, reads on reader threads, safety across fork()."""

import asyncio
import contextlib
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from standfast.lifecycle.threads import SingleThreadExecutor
from standfast.store.operations import (
    Annotate,
    AppendEvents,
    AppendJournal,
    AppendVersions,
    DeleteRun,
    DeleteWorkspace,
    DropCheckpoint,
    Erase,
    Op,
    PutBlob,
    PutDocument,
    RewriteRun,
    RewriteVersions,
    SaveApproval,
    SaveCheckpoint,
    SaveRun,
    Splice,
    SweepBlobs,
)
from standfast.store.sql.connection import TableNames

T = TypeVar("T")

_MAX_INLINE_BYTES = 32_768  # per caller, of a commit on the caller's thread
_MAX_GROUP_BYTES = 8 * _MAX_INLINE_BYTES  # of all callers in one iteration of the event loop
_ROW_OVERHEAD = 64  # bytes that a row counts for in addition to its data
_SLOW_COMMIT_SECONDS = 0.005  # after an inline commit that takes longer, further ones are declined
_PAUSE_SECONDS = 10.0  # how long they are declined
_CHECKPOINT_INTERVAL = 256  # of so many commits, two always go to the writer thread


class SqliteConnection:
    """A sqlite3 connection as a :class:`~standfast.store.sql.connection.DatabaseConnection`."""

    lock_clause = ""
    words_expression = ""

    def __init__(self, raw: sqlite3.Connection, names: TableNames, *, lock_timeout: float = 0) -> None:
        self.raw = raw
        self.lock_timeout = lock_timeout
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


CommitWork = Callable[[SqliteConnection], Any]


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

    def close(self) -> None:
        self.thread.close_sync()
        self.disconnect()


class InlineReader(SnapshotReader):
    """Makes small reads on the thread of the caller, which takes less time than waking another thread twice.

    With the write-ahead log a read never waits for a writer. The reader declines for some seconds after a slow read,
    while another thread uses its connection, and on errors of the database, which the reader threads then report.
    """

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        super().__init__(connect)
        self.closed = False
        self.paused_until = 0.0

    def try_read(self, work: Callable[[SqliteConnection], Any]) -> Any:
        """Return the result of ``work`` in one snapshot, or :data:`DECLINED`."""
        started = time.monotonic()
        if started < self.paused_until or not self.lock.acquire(blocking=False):
            return DECLINED
        try:
            if self.closed:
                return DECLINED
            result = self.read_in_snapshot(work)
            if time.monotonic() - started > _SLOW_COMMIT_SECONDS:
                self.paused_until = time.monotonic() + _PAUSE_SECONDS
            return result
        except sqlite3.OperationalError:
            return DECLINED
        finally:
            self.lock.release()

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.disconnect()


class InlineCommitter:
    """Makes small commits on the thread of the caller, if they need not wait for anything.

    Callers in the same iteration of an event loop share a commit. The committer never waits for a lock and never syncs
    the file: if it would have to, and for some seconds after a slow commit, it declines, and the caller uses the writer
    thread instead. It also declines while that thread has work (``must_wait``), so that no commit overtakes an earlier
    one.
    """

    def __init__(self, connect: Callable[[], SqliteConnection], *, must_wait: Callable[[], bool]) -> None:
        self.connect = connect
        self.must_wait = must_wait
        self.connection: SqliteConnection | None = None
        self.closed = False
        self.lock = threading.Lock()
        self.pending: dict[asyncio.AbstractEventLoop, list[tuple[CommitWork, float, asyncio.Future[Any]]]] = {}
        self.paused_until = 0.0
        self.commit_count = 0

    async def commit(self, work: CommitWork, size: float) -> Any:
        """Return the result of ``work``, or :data:`DECLINED`. ``size`` is the estimated size of its operations."""
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
        """Commit the work of all callers that wait in ``loop``.

        Scheduled for the next iteration of the loop; closing the store calls it directly.
        """
        callers = [caller for caller in self.pending.pop(loop, ()) if not caller[2].done()]
        if not callers:
            return
        try:
            small = sum(size for _, size, _ in callers) <= _MAX_GROUP_BYTES
            results = self.try_commit([work for work, _, _ in callers]) if small else [DECLINED] * len(callers)
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            results = [Failure(error)] * len(callers)
        for (_, _, future), result in zip(callers, results, strict=True):
            if isinstance(result, Failure):
                future.set_exception(result.error)
            else:
                future.set_result(result)

    def try_commit(self, jobs: list[CommitWork]) -> list[Any]:
        started = time.monotonic()
        # Two commits of each _CHECKPOINT_INTERVAL go to the writer thread: the first one checkpoints the log and the
        # second one restarts it. Both wait for the disk.
        self.commit_count += 1
        checkpoint_due = self.commit_count % _CHECKPOINT_INTERVAL < 2
        if checkpoint_due or started < self.paused_until or self.must_wait():
            return [DECLINED] * len(jobs)
        if not self.lock.acquire(blocking=False):
            return [DECLINED] * len(jobs)
        try:
            if self.closed:
                return [DECLINED] * len(jobs)
            if self.connection is None:
                self.connection = self.open_connection()
            results = commit_group(self.connection, jobs)
            if time.monotonic() - started > _SLOW_COMMIT_SECONDS:
                self.paused_until = time.monotonic() + _PAUSE_SECONDS
            return results
        except CannotBegin:  # another process writes or the file is gone; the writer thread reports it
            return [DECLINED] * len(jobs)
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
"""Returned in place of a result: the caller must use the writer thread."""


class Failure:
    """The error of one caller in a transaction that continues for the others."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class CannotBegin(Exception):
    """The transaction could not begin: another writer holds the lock, or the file cannot be opened.

    Nothing was written.
    """


class BrokenConnection(Exception):
    """The transaction could not be rolled back, so the connection was closed."""


def commit_group(connection: SqliteConnection, jobs: Sequence[CommitWork]) -> list[Any]:
    """Run all ``jobs`` in one transaction and return one entry for each: its result, or a :class:`Failure`.

    If this raises an exception, nothing was written.
    """
    raw = connection.raw
    try:
        begin_immediate(connection)
        results = [jobs[0](connection)] if len(jobs) == 1 else [run_in_savepoint(connection, work) for work in jobs]
        raw.execute("COMMIT")
    except BaseException as error:
        if not rollback_or_close(raw):
            raise BrokenConnection from error
        raise
    return results


def begin_immediate(connection: SqliteConnection) -> None:
    """Acquire the write lock within the lock timeout of the connection."""
    # SQLite's own waiting backs off to ten attempts per second. That adds latency, and against a process that writes
    # continuously it may never succeed.
    deadline = time.monotonic() + connection.lock_timeout
    while True:
        try:
            connection.raw.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise CannotBegin from error


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


def run_in_savepoint(connection: SqliteConnection, work: CommitWork) -> Any:
    """Run one caller's work of a group. If it fails, its effects are undone and the others continue."""
    connection.raw.execute("SAVEPOINT caller")
    try:
        result = work(connection)
    except sqlite3.OperationalError:
        raise  # a failure of the database, which concerns all callers
    except Exception as error:  # noqa: BLE001 - passed on to this caller
        connection.raw.execute("ROLLBACK TO caller")
        result = Failure(error)
    connection.raw.execute("RELEASE caller")
    return result


_UNBOUNDED_OPS = (Erase, Annotate, DeleteRun, RewriteRun, RewriteVersions, DropCheckpoint, DeleteWorkspace, SweepBlobs)


def estimate_size(ops: Sequence[Op]) -> float:
    """Estimate how many bytes the operations write; infinite if it depends on the stored data."""
    return sum(map(estimate_op_size, ops))


def estimate_op_size(op: Op) -> float:
    if isinstance(op, _UNBOUNDED_OPS):
        return math.inf
    rows = len(op.view_update.closed) if isinstance(op, Splice) and op.view_update else 0
    rows += len(op.blobs) if isinstance(op, SaveCheckpoint) else 0
    return sum(_ROW_OVERHEAD + len(blob) for blob in iter_blobs(op)) + _ROW_OVERHEAD * rows


def iter_blobs(op: Op) -> Iterable[bytes]:
    if isinstance(op, Splice):
        return op.add
    if isinstance(op, (AppendJournal, AppendEvents)):
        return (data for _, data in (op.entries if isinstance(op, AppendJournal) else op.events))
    if isinstance(op, AppendVersions):
        return op.versions
    return (op.data,) if isinstance(op, (SaveRun, SaveApproval, SaveCheckpoint, PutBlob, PutDocument)) else ()


# A connection must not be open while the process forks: the child inherits it without its file locks, and connections
# that the child opens later rely on them. So all connections are closed before a fork. Both processes reconnect when
# needed, and the child starts its own threads.


class Forkable(Protocol):
    def pause(self) -> None:
        """Finish the running work, close every connection and block further work."""
        ...

    def resume(self, *, in_child: bool) -> None:
        """Allow work again. A child has none of its parent's threads."""
        ...


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_paused: list[Forkable] = []


def register_fork_safe(backend: Forkable) -> None:
    """Pause and resume the backend whenever this process forks. Holds only a weak reference."""
    _registered.add(backend)


def pause_all() -> None:
    for backend in list(_registered):
        backend.pause()
        _paused.append(backend)


def resume_all(*, in_child: bool) -> None:
    while _paused:
        _paused.pop().resume(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=pause_all,
        after_in_parent=lambda: resume_all(in_child=False),
        after_in_child=lambda: resume_all(in_child=True),
    )
