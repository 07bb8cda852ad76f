"""The embedded store: one SQLite file through the standard library.

A commit to the write-ahead log takes less time than waking another thread twice, so a small one is made where it
is asked for (:class:`InPlace`). Whatever may take longer goes to the one thread per file that writes, which commits
together what many callers ask for at the same time. Other threads read, and never wait for a writer.
"""

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from holdfast.base.clock import Clock, system_clock
from holdfast.base.errors import Closed, InvalidInput, StoreUnavailable
from holdfast.lifecycle.threads import Job, OneThread
from holdfast.store.contract import Found, Op, Outcome
from holdfast.store.relational import adopting, schema
from holdfast.store.relational.apply import apply
from holdfast.store.relational.connection import Names
from holdfast.store.relational.reading import RelationalReads
from holdfast.store.sqlite import search as sqlite_search
from holdfast.store.sqlite.commits import (
    DECLINED,
    BrokenConnection,
    CannotBegin,
    Failure,
    InPlace,
    SqliteConnection,
    begin,
    commit_together,
    left_transaction,
    weight,
)
from holdfast.store.sqlite.forks import survives_forks

T = TypeVar("T")
MEMORY = ":memory:"
_MOST_READERS = 4
_MOST_SHARED = 128
_ASKS_AFTER = 3  # milliseconds after which the writer asks again for a lock that somebody else has
_TURN_OF_OTHERS = 0.003  # seconds in which other processes may write, after each part of the index
_LONGEST_LOG = 16 * 2**20  # bytes to which the log is cut when a slow reader had let it grow


class Reader:
    """A thread with a connection of its own, for one read at a time."""

    def __init__(self, name: str, connect: Callable[[], SqliteConnection]) -> None:
        self.thread = OneThread(name)
        self.connect = connect
        self.connection: SqliteConnection | None = None
        self.busy = threading.Lock()
        self.waiting = 0

    async def read(self, work: Callable[[SqliteConnection], T]) -> T:
        self.waiting += 1
        try:
            return await self.thread.run(self.in_snapshot, work)
        finally:
            self.waiting -= 1

    def in_snapshot(self, work: Callable[[SqliteConnection], T]) -> T:
        with self.busy:
            if self.connection is None:
                self.connection = self.connect()
            raw = self.connection.raw
            try:
                raw.execute("BEGIN")
                result = work(self.connection)
                raw.execute("ROLLBACK")
            except BaseException:
                if not left_transaction(raw):
                    self.connection = None
                raise
            return result

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.raw.close()
            self.connection = None

    def close(self) -> None:
        self.thread.close_now()
        self.disconnect()


class SqliteBackend(RelationalReads):
    """A store in one file. It survives a kill at any moment; with ``synchronous="FULL"`` also a power cut."""

    indexes_words = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        names: Names | None = None,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        busy_timeout: float = 30.0,
        clock: Clock = system_clock,
        in_place: bool = True,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise InvalidInput(f"synchronous is NORMAL or FULL, not {synchronous!r}")
        self.path = MEMORY if str(path) == MEMORY else str(Path(path).absolute())
        self.names = names or Names()
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self.clock = clock
        self.driver = connect
        self.closed = False
        self.searchable: bool | None = None
        self.connection: SqliteConnection | None = None  # the writer's
        self.writing = threading.Lock()  # held by the writer while it uses its connection
        self.writer = self.writing_thread()
        self.readers: list[Reader] = []
        self.choosing = threading.Lock()  # guards the list of readers
        # A synchronous=FULL commit waits for the disk, and a database in memory has just one connection.
        suits = in_place and synchronous == "NORMAL" and self.path != MEMORY
        self.in_place = InPlace(self.connect_in_place) if suits else None
        self.opened = False
        self.file: tuple[int, int] | None = None  # which file it was that the writer opened
        survives_forks(self)

    def writing_thread(self) -> OneThread:
        return OneThread(f"holdfast writes {Path(self.path).name}", handle=self.write_together)

    async def open(self) -> None:
        """Create and migrate what is missing. Every call does this by itself when it comes first."""
        await self.write(lambda _: None)
        self.opened = True

    async def close(self) -> None:
        if self.in_place is not None:
            self.in_place.serve(asyncio.get_running_loop())
            await asyncio.sleep(0)  # those whom it declined ask the writing thread now
        # The writing thread may be waiting for another process, and closing the file syncs it.
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Finish what the threads were asked for and let go of the file. For those who have no event loop at hand."""
        with self.choosing:
            self.closed = True
            readers, self.readers = self.readers, []
        self.writer.close_now()
        for reader in readers:
            reader.close()
        if self.in_place is not None:
            self.in_place.close()
        self.disconnect()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.raw.close()
            self.connection = None

    def pause(self) -> None:
        """Before a fork: let go of the file for a moment. A database in memory is the child's own copy anyway."""
        self.choosing.acquire()
        self.writing.acquire()
        if self.path != MEMORY:
            self.disconnect()
        for reader in self.readers:
            reader.busy.acquire()
            reader.disconnect()
        if self.in_place is not None:
            self.in_place.busy.acquire()
            self.in_place.disconnect()

    def resume(self, *, in_child: bool) -> None:
        if self.in_place is not None:
            self.in_place.busy.release()
        for reader in self.readers:
            reader.busy.release()
        if in_child:
            self.readers = []
            self.writer = self.writing_thread()
            if self.in_place is not None:
                self.in_place.waiting = {}
        self.writing.release()
        self.choosing.release()

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.path} is closed")

    # --- connections ----------------------------------------------------------------------------

    def connect(self, *settings: str, patience: float | None = None) -> SqliteConnection:
        timeout = self.busy_timeout if patience is None else patience
        raw = self.driver(
            self.path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # A hand-edited column may hold any bytes; they must not stop the rows beside them from being read.
        raw.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        with closed_on_error(raw):
            for setting in (f"synchronous = {self.synchronous}", *settings):
                raw.execute(f"PRAGMA {setting}")
        return SqliteConnection(raw, self.names)

    def connect_reader(self) -> SqliteConnection:
        return self.connect("query_only = 1")

    def connect_in_place(self) -> SqliteConnection:
        return self.connect("wal_autocheckpoint = 0", patience=0)

    def connect_writer(self) -> SqliteConnection:
        connection = self.connect()
        with closed_on_error(connection.raw):
            if self.path != MEMORY:
                self.turn_on_wal(connection.raw)
                connection.raw.execute(f"PRAGMA journal_size_limit = {_LONGEST_LOG}")
            connection.patience = self.busy_timeout
            connection.raw.execute(f"PRAGMA busy_timeout = {min(int(self.busy_timeout * 1000), _ASKS_AFTER)}")
            begin(connection)
            try:
                self.migrate(connection)
            except BaseException:
                connection.raw.execute("ROLLBACK")
                raise
            connection.raw.execute("COMMIT")
            self.file = identity(self.path)
        return connection

    def migrate(self, connection: SqliteConnection) -> None:
        def columns_of(table: str) -> list[str]:
            return [row[1] for row in connection.all(f"PRAGMA table_info({table})", {})]

        now = self.clock()

        def migrate() -> None:
            schema.migrate(connection, dialect="sqlite", types=schema.SQLITE, where=self.path, now=now)

        adopting.around(migrate, connection, self.names, columns_of, now=now)

    def turn_on_wal(self, raw: sqlite3.Connection) -> None:
        """SQLite does not wait for others when it changes the journal mode, so this does."""
        deadline = time.monotonic() + self.busy_timeout
        while True:
            try:
                raw.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.02))

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[Outcome]:
        now = self.clock()
        self.check_open()

        def work(connection: SqliteConnection) -> list[Outcome]:
            return apply(connection, ops, now)

        if self.in_place is not None and self.opened:
            try:
                outcomes = await self.in_place.commit(work, weight(ops))
            except (sqlite3.Error, BrokenConnection) as error:
                raise self.explained(error) from error
            if outcomes is not DECLINED:
                return cast("list[Outcome]", outcomes)
        outcomes = await self.write(work)
        self.opened = True
        return cast("list[Outcome]", outcomes)

    async def write(self, work: Callable[[SqliteConnection], T]) -> T:
        self.check_open()
        return await self.writer.run(cast("Callable[[], T]", work))  # the thread hands it its connection

    def write_together(self, jobs: list[Job]) -> None:
        for start in range(0, len(jobs), _MOST_SHARED):
            group = jobs[start : start + _MOST_SHARED]
            try:
                with self.writing:
                    if self.connection is None:
                        self.connection = self.connect_writer()
                    results = commit_together(self.connection, [job.function for job in group])
            except Exception as error:  # noqa: BLE001 - it belongs to the callers
                if isinstance(error, BrokenConnection):
                    self.connection = None
                results = [Failure(error)] * len(group)
            for job, result in zip(group, results, strict=True):
                if isinstance(result, Failure):
                    job.set_exception(self.explained(result.error))
                else:
                    job.set_result(result)

    def explained(self, error: Exception) -> Exception:
        """The error as callers should see it: what the driver says, and about which file."""
        if isinstance(error, (CannotBegin, BrokenConnection)) and isinstance(error.__cause__, Exception):
            return self.explained(error.__cause__)
        if not isinstance(error, sqlite3.Error):
            return error
        reason = cannot_open(Path(self.path)) if "unable to open" in str(error) else str(error)
        problem = StoreUnavailable(f"{self.path}: {reason}")
        problem.__cause__ = error
        return problem

    # --- reading --------------------------------------------------------------------------------

    async def time(self) -> float:
        return self.clock()

    async def see(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a read on a connection that waits for no writer."""
        if self.path == MEMORY:
            return await self.write(lambda connection: work(connection, *args, **kwargs))
        self.check_open()
        if not self.opened:
            await self.open()
        try:
            return await self.idle_reader().read(lambda connection: work(connection, *args, **kwargs))
        except sqlite3.Error as error:
            raise self.explained(error) from error

    def idle_reader(self) -> Reader:
        with self.choosing:
            self.check_open()
            best = min(self.readers, key=lambda reader: reader.waiting, default=None)
            if best is None or (best.waiting and len(self.readers) < _MOST_READERS):
                best = Reader(f"holdfast reads {Path(self.path).name}", self.connect_reader)
                self.readers.append(best)
            return best

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        if self.searchable is None:
            self.searchable = await self.write(sqlite_search.available)
            if self.searchable:
                await self.write(sqlite_search.prepare)
        if not self.searchable:
            return None
        tapes = await self.see(sqlite_search.behind, session_id)
        while tapes:
            tapes = await self.write(partial(sqlite_search.catch_up, tapes=tapes))
            await asyncio.sleep(_TURN_OF_OTHERS if tapes else 0)
        return await self.see(sqlite_search.find, terms, session_id=session_id, owner=owner, limit=limit, skip=skip)


class SharedSqliteBackend(SqliteBackend):
    """A backend with several users; the last one to close it closes the file."""

    users = 0

    def close_now(self) -> None:
        with _sharing:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, backend in _shared.items() if backend is self]:
                del _shared[key]
        super().close_now()


_shared: dict[tuple[Any, ...], SharedSqliteBackend] = {}
_sharing = threading.RLock()


def share(path: str | os.PathLike[str], **options: Any) -> SharedSqliteBackend:
    """This process's backend for a file, so that one thread writes it. In-memory databases are not shared."""
    backend = SharedSqliteBackend(path, **options)
    if backend.path == MEMORY:
        backend.users = 1
        return backend
    key = (os.path.realpath(backend.path), *sorted(options.items(), key=lambda option: option[0]))
    with _sharing:
        known = _shared.get(key)
        # Who still has a file that was deleted or replaced keeps it; whoever comes now wants the one that is there.
        if known is None or known.file not in (None, identity(known.path)):
            known = _shared[key] = backend
        known.users += 1
        return known


@contextmanager
def closed_on_error(raw: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        raw.close()
        raise


def identity(path: str) -> tuple[int, int] | None:
    """What tells a file from another that took its name."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def cannot_open(path: Path) -> str:
    """Why there is no opening a file; SQLite itself only says that it cannot."""
    if path.is_dir():
        return "this is a folder, not a database"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}: make it first"
    return "it may not be opened or created here: look at the permissions of the file and its folder"
