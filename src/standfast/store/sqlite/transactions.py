"""Transactions on SQLite connections: group and inline commits, and safety across fork()."""

import asyncio
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

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
from standfast.store.sqlite.connections import (
    DECLINED,
    SlownessGuard,
    SqliteConnection,
    rollback_or_close,
)

T = TypeVar("T")

_MAX_INLINE_BYTES = 32_768  # per caller, of a commit on the caller's thread
_MAX_GROUP_BYTES = 8 * _MAX_INLINE_BYTES  # of all callers in one iteration of the event loop
_ROW_OVERHEAD = 64  # bytes that a row counts for in addition to its data
_CHECKPOINT_INTERVAL = 256  # of so many commits, two always go to the writer thread
_LOG_PAGES = 1000  # after which a commit copies the log into the database: the default of SQLite
_MAX_LOG_PAGES = 32_768  # the same while large content is written
_LARGE_BYTES = 4 << 20


CommitWork = Callable[[SqliteConnection], Any]


class InlineCommitter:
    """Makes small commits on the thread of the caller, if they need not wait for anything.

    Callers in the same iteration of an event loop share a commit. The committer never waits for a lock and never syncs
    the file: if it would have to, and for a while after a slow commit, it declines, and the caller uses the writer
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
        self.guard = SlownessGuard()
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
        if checkpoint_due or not self.guard.allows(started) or self.must_wait():
            return [DECLINED] * len(jobs)
        if not self.lock.acquire(blocking=False):
            return [DECLINED] * len(jobs)
        try:
            if self.closed:
                return [DECLINED] * len(jobs)
            if self.connection is None:
                self.connection = self.open_connection()
            results = commit_group(self.connection, jobs)
            self.guard.note(started, jobs=len(jobs))
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


class LargeWrites:
    """``async with backend.large_writes:`` is for a block that writes large content.

    Copying the log into the database waits for the disk. The writer thread would do it after every few megabytes, and
    the commits of all others would wait, too. With this a reader thread does it at the end of the block.
    """

    def __init__(self, copy_log: Callable[[], Awaitable[None]]) -> None:
        self._copy_log = copy_log
        self._block_count = self._size = 0

    async def __aenter__(self) -> None:
        self._block_count += 1

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._block_count -= 1
        if kind is None and not self._block_count and self._size > _LARGE_BYTES:
            self._size = 0
            await self._copy_log()

    def prepare(self, connection: SqliteConnection, size: float) -> None:
        """Let a transaction of this size copy the log only if it is too large."""
        if self._block_count and size < math.inf:
            self._size += int(size)
        limit = _MAX_LOG_PAGES if self._block_count else _LOG_PAGES
        if connection.log_limit not in (None, limit):
            connection.log_limit = limit
            connection.raw.execute(f"PRAGMA wal_autocheckpoint = {limit}")


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

    If this raises an exception, nothing was written. Jobs may be run twice: if one of several fails, which is rare, all
    are undone and run again with savepoints, which make every write slower.
    """
    try:
        return run_in_transaction(connection, jobs)
    except sqlite3.OperationalError:
        raise  # a failure of the database, which concerns all callers
    except (CannotBegin, BrokenConnection):
        raise
    except Exception:
        if len(jobs) == 1:
            raise
    return run_in_transaction(connection, [partial(run_in_savepoint, work=work) for work in jobs])


def run_in_transaction(connection: SqliteConnection, jobs: Sequence[CommitWork]) -> list[Any]:
    raw = connection.raw
    try:
        begin_immediate(connection)
        results = [work(connection) for work in jobs]
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


def estimate_size(ops: Sequence[Op]) -> float:
    """Estimate how many bytes the operations write; infinite if it depends on the stored data."""
    size = 0.0
    for op in ops:
        estimate = _SIZES.get(type(op))
        if estimate is not None:
            size += estimate(op)
    return size


def estimate_blobs(blobs: Iterable[bytes]) -> float:
    return sum([_ROW_OVERHEAD + len(blob) for blob in blobs])


def estimate_entries(entries: Iterable[tuple[str, bytes]]) -> float:
    return sum([_ROW_OVERHEAD + len(data) for _, data in entries])


def estimate_splice(op: Splice) -> float:
    closed = len(op.view_update.closed) if op.view_update else 0
    return estimate_blobs(op.add) + _ROW_OVERHEAD * closed


def estimate_data(op: SaveRun | SaveApproval | PutBlob | PutDocument) -> float:
    return _ROW_OVERHEAD + len(op.data)


_SIZES: dict[type, Callable[[Any], float]] = {
    Splice: estimate_splice,
    AppendJournal: lambda op: estimate_entries(op.entries),
    AppendEvents: lambda op: estimate_entries(op.events),
    AppendVersions: lambda op: estimate_blobs(op.versions),
    SaveRun: estimate_data,
    SaveApproval: estimate_data,
    SaveCheckpoint: lambda op: _ROW_OVERHEAD * (1 + len(op.blobs)) + len(op.data),
    PutBlob: estimate_data,
    PutDocument: estimate_data,
    Annotate: lambda op: math.inf if op.metadata else _ROW_OVERHEAD,
    **dict.fromkeys(
        (Erase, DeleteRun, RewriteRun, RewriteVersions, DropCheckpoint, DeleteWorkspace, SweepBlobs),
        lambda op: math.inf,
    ),
}
"""How many bytes an operation writes about. The others write little."""


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
