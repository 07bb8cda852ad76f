"""The backend for one SQLite file, through the standard library.

A small commit to the write-ahead log is faster than two thread switches, so it is made on the thread of the caller
(:class:`~standfast.store.sqlite.transactions.InlineCommitter`). All other commits go to the one writer thread of the
file, which commits the operations of concurrent callers together. Reader threads never block on a writer; one record
is read on the thread of the caller (:class:`~standfast.store.sqlite.connections.InlineReader`).
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from standfast.base.errors import Closed, InvalidInput, StoreRefused, StoreUnavailable
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.base.time import Clock, system_clock
from standfast.lifecycle.threads import Job, SingleThreadExecutor
from standfast.store.links import LinkListener, LinkUnavailable
from standfast.store.operations import Op, OpResult
from standfast.store.records import SearchCandidate
from standfast.store.sql import documents, run_queries
from standfast.store.sql.commit import apply
from standfast.store.sql.connection import DEFAULT_NAMES, TableNames
from standfast.store.sql.openai_agents_tables import AdoptedMeanwhile, ForeignTablesPolicy, OpenAIAgentsTables
from standfast.store.sql.queries import RelationalQueries, get_session, get_session_turn
from standfast.store.sqlite import erasure, migrator
from standfast.store.sqlite import search as sqlite_search
from standfast.store.sqlite.connections import DECLINED, InlineReader, ReaderThread, SqliteConnection
from standfast.store.sqlite.files import create_private_file, explain_open_failure, get_file_id
from standfast.store.sqlite.socket_link import SocketLink
from standfast.store.sqlite.transactions import (
    BrokenConnection,
    CannotBegin,
    Failure,
    InlineCommitter,
    LargeWrites,
    begin_immediate,
    commit_group,
    estimate_size,
    register_fork_safe,
)

T = TypeVar("T")
MEMORY = ":memory:"
_MAX_READERS = 4
_MAX_GROUP_SIZE = 128
_LOCK_POLL_MS = 3  # between two attempts of the writer to get a lock of another process
_INLINE_QUERIES = frozenset(
    {
        get_session,
        get_session_turn,
        run_queries.get_run,
        run_queries.get_approval,
        run_queries.get_lease,
        documents.get_document,
    }
)
"""Reads of few records by their names."""
_log = get_logger(__name__)
_INDEX_PAUSE = 0.003  # seconds between two batches of indexing, so that other processes can write
_MAX_WAL_BYTES = 16 * 2**20  # size to which the log is truncated after a slow reader has let it grow


class SqliteBackend(RelationalQueries):
    """A store in one file. Commits survive a killed process, and with ``synchronous="FULL"`` also a power failure."""

    indexes_words = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        names: TableNames | None = None,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        busy_timeout: float = 30.0,
        clock: Clock = system_clock,
        inline_commits: bool = True,
        foreign_tables: ForeignTablesPolicy = "refuse",
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise InvalidInput(f"synchronous must be NORMAL or FULL, not {synchronous!r}")
        self.path = MEMORY if str(path) == MEMORY else str(Path(path).absolute())
        self.requested_names = names or DEFAULT_NAMES
        self.names = self.requested_names  # decided when the writer connects
        self.foreign_tables = foreign_tables
        self.openai_agents: OpenAIAgentsTables | None = None  # set by the writer if it uses those of openai-agents
        self.location = f"{new_id('memory') if self.path == MEMORY else self.path} {self.requested_names}"
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self.clock = clock
        self.connect_driver = connect
        self.closed = False
        self.fts_available: bool | None = None
        self.connection: SqliteConnection | None = None  # of the writer thread
        self.write_lock = threading.Lock()  # held by the writer thread while it uses its connection
        self.writer_thread = self.make_writer_thread()
        self.readers: list[ReaderThread] = []
        self.readers_lock = threading.Lock()  # guards the list of readers
        # A commit with synchronous=FULL waits for the disk, and an in-memory database has only one connection.
        inline = inline_commits and synchronous == "NORMAL" and self.path != MEMORY
        self.inline_committer = InlineCommitter(self.connect_inline, must_wait=self.is_writing) if inline else None
        self.inline_reader = InlineReader(self.connect_inline_reader) if inline else None
        self.large_writes = LargeWrites(self.copy_log)
        self.pending_writes = 0  # of the writer thread, also of callers that were cancelled
        self.pending_lock = threading.Lock()
        self.initialized = False
        self.has_traces = False  # of erased data, in the index or in the log
        self.file_id: tuple[int, int] | None = None  # of the file that the writer opened
        register_fork_safe(self)

    def make_writer_thread(self) -> SingleThreadExecutor:
        return SingleThreadExecutor(f"standfast writes {Path(self.path).name}", handle=self.commit_jobs)

    async def open(self) -> None:
        """Create and migrate the tables. The first call of any other method does this too."""
        await self.write(lambda _: None)
        self.initialized = True

    async def close(self) -> None:
        if self.has_traces and not self.closed:
            with suppress(StoreUnavailable):  # it is closed in any case
                await self.remove_traces()
        if self.inline_committer is not None:
            self.inline_committer.flush(asyncio.get_running_loop())
            await asyncio.sleep(0)  # declined callers now submit to the writer thread
        # In a thread: the writer may be waiting for another process, and closing the file syncs it.
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """Finish the submitted work and close the file, without an event loop."""
        with self.readers_lock:
            self.closed = True
            readers, self.readers = self.readers, []
        self.writer_thread.close_sync()
        for reader in readers:
            reader.close()
        for inline in (self.inline_committer, self.inline_reader):
            if inline is not None:
                inline.close()
        self.disconnect()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.raw.close()
            self.connection = None

    def pause(self) -> None:
        """Close all connections before a fork. An in-memory database stays open: the child has its own copy."""
        self.readers_lock.acquire()
        self.write_lock.acquire()
        if self.path != MEMORY:
            self.disconnect()
        for reader in self.readers:
            reader.lock.acquire()
            reader.disconnect()
        for inline in (self.inline_committer, self.inline_reader):
            if inline is not None:
                inline.lock.acquire()
                inline.disconnect()

    def resume(self, *, in_child: bool) -> None:
        for inline in (self.inline_committer, self.inline_reader):
            if inline is not None:
                inline.lock.release()
        for reader in self.readers:
            reader.lock.release()
        if in_child:
            self.readers = []
            self.pending_writes = 0
            self.pending_lock = threading.Lock()
            self.writer_thread = self.make_writer_thread()
            if self.inline_committer is not None:
                self.inline_committer.pending = {}
        self.write_lock.release()
        self.readers_lock.release()

    def reconnect(self) -> None:
        """Close all connections, so that the tables are looked at anew."""
        self.pause()
        self.initialized = False
        self.resume(in_child=False)

    async def open_link(self, name: str, listener: LinkListener) -> SocketLink:
        if self.path == MEMORY:
            raise LinkUnavailable("a database in memory has no other users")
        return await SocketLink.open(self.path, name, listener)

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.path} is closed")

    # --- connections ----------------------------------------------------------------------------

    def connect(self, *settings: str, lock_timeout: float | None = None) -> SqliteConnection:
        timeout = self.busy_timeout if lock_timeout is None else lock_timeout
        raw = self.connect_driver(
            self.path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # A hand-edited column may contain any bytes; they must not prevent reading the other rows.
        raw.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        with close_on_error(raw):
            for setting in (f"synchronous = {self.synchronous}", erasure.SECURE_DELETE, *settings):
                raw.execute(f"PRAGMA {setting}")
        return SqliteConnection(raw, self.names)

    def connect_reader(self) -> SqliteConnection:
        return self.connect("query_only = 1")

    def connect_inline_reader(self) -> SqliteConnection:
        return self.connect("query_only = 1", lock_timeout=0)

    def connect_inline(self) -> SqliteConnection:
        return self.connect("wal_autocheckpoint = 0", lock_timeout=0)

    def connect_writer(self) -> SqliteConnection:
        if self.path != MEMORY:
            create_private_file(self.path)
        connection = self.connect()
        with close_on_error(connection.raw):
            if self.path != MEMORY and not self.find_openai_agents(connection):
                migrator.enable_wal(connection.raw, timeout=self.busy_timeout)
                connection.raw.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
            connection.lock_timeout, connection.log_limit = self.busy_timeout, 0
            connection.raw.execute(f"PRAGMA busy_timeout = {min(int(self.busy_timeout * 1000), _LOCK_POLL_MS)}")
            begin_immediate(connection)
            try:
                self.migrate(connection)
            except BaseException:
                connection.raw.execute("ROLLBACK")
                raise
            connection.raw.execute("COMMIT")
            self.file_id = get_file_id(self.path)
        return connection

    def find_openai_agents(self, connection: SqliteConnection) -> OpenAIAgentsTables | None:
        return migrator.find_openai_agents(
            connection, self.requested_names, location=self.path, policy=self.foreign_tables
        )

    def migrate(self, connection: SqliteConnection) -> None:
        self.openai_agents = self.find_openai_agents(connection)
        if self.openai_agents is None:
            self.names = migrator.migrate(connection, self.requested_names, location=self.path, now=self.clock())

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[OpResult]:
        try:
            return await self.commit_once(ops)
        except AdoptedMeanwhile:
            self.reconnect()
            return await self.commit_once(ops)

    async def commit_once(self, ops: Sequence[Op]) -> list[OpResult]:
        now = self.clock()
        self.check_open()

        erasing, size = erasure.is_erasing(ops), estimate_size(ops)

        def work(connection: SqliteConnection) -> list[OpResult]:
            if erasing:
                self.has_traces = True
            self.large_writes.prepare(connection, size)
            if self.openai_agents is not None:
                return self.openai_agents.apply(connection, ops)
            if erasing:
                erasure.prepare_index(connection)
            return apply(connection, ops, now)

        inline = self.initialized and not erasing and self.openai_agents is None
        if self.inline_committer is not None and inline:
            try:
                outcomes = await self.inline_committer.commit(work, size)
            except (sqlite3.Error, BrokenConnection) as error:
                raise self.translate_error(error) from error
            if outcomes is not DECLINED:
                return cast("list[OpResult]", outcomes)
        outcomes = await self.write(work)
        self.initialized = True
        if erasing:
            try:
                await self.remove_traces()
            except StoreUnavailable as problem:  # The erasure itself is committed.
                _log.warning("traces of erased data stay until the next erasure or closing: %s", problem)
        return cast("list[OpResult]", outcomes)

    async def remove_traces(self) -> None:
        """Remove what the index and the log keep of erased data. Done again on closing if it was interrupted."""
        more = True
        while more:
            more = await self.write(erasure.merge_index)
            await asyncio.sleep(_INDEX_PAUSE if more else 0)
        if self.path != MEMORY:
            await asyncio.to_thread(self.truncate_log)

    def truncate_log(self) -> None:
        with self.write_lock:
            if self.connection is not None:
                self.has_traces = not erasure.truncate_log(self.connection.raw)

    async def write(self, work: Callable[[SqliteConnection], T]) -> T:
        self.check_open()
        self.count_pending(1)
        try:
            submitted = self.writer_thread.run(cast("Callable[[], T]", work))  # the thread passes its connection
            return await submitted
        except Closed:
            self.count_pending(-1)
            raise

    def is_writing(self) -> bool:
        """Return whether the writer thread has work."""
        return self.pending_writes > 0

    async def copy_log(self) -> None:
        with suppress(Closed):  # closing the file copies it
            await self.pick_reader().copy_log()

    def count_pending(self, change: int) -> None:
        with self.pending_lock:
            self.pending_writes += change

    def commit_jobs(self, jobs: list[Job]) -> None:
        for start in range(0, len(jobs), _MAX_GROUP_SIZE):
            group = jobs[start : start + _MAX_GROUP_SIZE]
            try:
                with self.write_lock:
                    if self.connection is None:
                        self.connection = self.connect_writer()
                    results = commit_group(self.connection, [job.function for job in group])
            except Exception as error:  # noqa: BLE001 - it belongs to the callers
                if isinstance(error, BrokenConnection):
                    self.connection = None
                results = [Failure(error)] * len(group)
            self.count_pending(-len(group))
            for job, result in zip(group, results, strict=True):
                if isinstance(result, Failure):
                    job.set_exception(self.translate_error(result.error))
                else:
                    job.set_result(result)

    def translate_error(self, error: Exception) -> Exception:
        """Return the error that callers see: the message of the driver and the file."""
        if isinstance(error, (CannotBegin, BrokenConnection)) and isinstance(error.__cause__, Exception):
            return self.translate_error(error.__cause__)
        if not isinstance(error, sqlite3.Error):
            return error
        reason = explain_open_failure(Path(self.path)) if "unable to open" in str(error) else str(error)
        is_refusal = isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError))
        problem = (StoreRefused if is_refusal else StoreUnavailable)(f"{self.path}: {reason}")
        problem.__cause__ = error
        return problem

    # --- reading --------------------------------------------------------------------------------

    async def get_time(self) -> float:
        return self.clock()

    async def run_query(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a read on a connection that never blocks on a writer."""
        if self.path == MEMORY:
            return await self.write(lambda connection: function(connection, *args, **kwargs))
        try:
            return await self.run_query_once(function, *args, **kwargs)
        except AdoptedMeanwhile:
            self.reconnect()
            return await self.run_query_once(function, *args, **kwargs)

    async def run_query_once(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self.check_open()
        if not self.initialized:
            await self.open()
        if self.openai_agents is not None:
            function = self.openai_agents.get_query(function)

        def work(connection: SqliteConnection) -> T:
            return function(connection, *args, **kwargs)

        try:
            if self.inline_reader is not None and is_small_read(function, kwargs):
                result = self.inline_reader.try_read(work)
                if result is not DECLINED:
                    await asyncio.sleep(0)  # as if a thread had been asked: others get their turn
                    return cast("T", result)
            return await self.pick_reader().read(work)
        except sqlite3.Error as error:
            raise self.translate_error(error) from error

    def pick_reader(self) -> ReaderThread:
        with self.readers_lock:
            self.check_open()
            best = min(self.readers, key=lambda reader: reader.pending_reads, default=None)
            if best is None or (best.pending_reads and len(self.readers) < _MAX_READERS):
                best = ReaderThread(f"standfast reads {Path(self.path).name}", self.connect_reader)
                self.readers.append(best)
            return best

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        if not self.initialized:
            await self.open()
        if self.openai_agents is not None:
            return None
        if self.fts_available is None:
            self.fts_available = await self.write(sqlite_search.is_available)
            if self.fts_available:
                await self.write(sqlite_search.create_index)
        if not self.fts_available:
            return None
        tapes = await self.run_query(sqlite_search.find_unindexed_tapes, session_id)
        while tapes:
            tapes = await self.write(partial(sqlite_search.index_tapes, tapes=tapes))
            await asyncio.sleep(_INDEX_PAUSE if tapes else 0)
        return await self.run_query(
            sqlite_search.find, terms, session_id=session_id, owner=owner, limit=limit, skip=skip
        )


def is_small_read(function: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Return whether the read is of one record, by its name or by an index."""
    return function in _INLINE_QUERIES or (function is run_queries.list_runs and options.get("limit") == 1)


@contextmanager
def close_on_error(raw: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        raw.close()
        raise
