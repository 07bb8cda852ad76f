"""The store in a server database, through SQLAlchemy's asyncio engine.

PostgreSQL is the reference: there a commit is one call of a function that a migration created, one round trip on
a connection that is already open. On every other database, and where ``server_side=False`` asks for it, a commit
is a transaction of several statements.

Nothing is kept in the state of a connection, so a pooler in transaction mode may stand in between. PgBouncer before
1.21 does not know prepared statements; with asyncpg they are turned off like this::

    SqlBackend.from_url(
        "postgresql+asyncpg://app@pooler/app?prepared_statement_cache_size=0",
        engine_kwargs={"connect_args": {"statement_cache_size": 0}, "poolclass": NullPool},
    )
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.base.clock import Clock
from holdfast.base.errors import Closed, HoldfastError, InvalidInput, MissingExtra, SchemaTooOld, StoreUnavailable

try:
    import sqlalchemy
    from sqlalchemy import URL, event
    from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, NoSuchModuleError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
    from sqlalchemy.pool import AsyncAdaptedQueuePool, StaticPool
except ImportError as missing:
    raise MissingExtra("sql", "a database server") from missing

from holdfast.store import postgres, sql_errors
from holdfast.store.contract import (
    ApprovalRecord,
    Cursor,
    Found,
    Generation,
    Lease,
    Logged,
    Op,
    Outcome,
    Page,
    Quarantined,
    RunRecord,
    SessionRecord,
    Splice,
)
from holdfast.store.relational import reads, schema
from holdfast.store.relational.apply import apply
from holdfast.store.relational.connection import Names
from holdfast.store.sql_dialects import MigratingConnection, SqlConnection, Statements, dialect_named

T = TypeVar("T")

_TRIES = 12
_PATIENCE = 30.0
_DRIVERS = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
}


class OutcomeUnknown(Exception):
    """The connection broke when the database may already have committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class SqlBackend:
    """A store in the tables of a database server.

    An engine that is handed in stays the caller's: it is configured by nobody here and never disposed, unless
    ``owns_engine``. Without a ``clock`` the server's own decides about leases.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        names: Names | None = None,
        create_tables: bool = True,
        owns_engine: bool = False,
        clock: Clock | None = None,
        server_side: bool = True,
    ) -> None:
        self.engine = engine
        self.names = names or Names()
        self.create_tables = create_tables
        self.owns_engine = owns_engine
        self.clock = clock
        self.dialect = dialect_named(engine.dialect.name)
        self.where = engine.url.render_as_string(hide_password=True)
        self.statements = Statements(self.names)
        self.autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.transactional = engine.execution_options(isolation_level=self.dialect.isolation)
        self.indexes_words = self.dialect.name == "postgresql"
        self.server_side = server_side and self.dialect.name == "postgresql"
        # A database in memory lives on one connection, which takes one caller at a time.
        self.turns = asyncio.Lock() if isinstance(engine.pool, StaticPool) else None
        self.under_way: set[asyncio.Task[Any]] = set()
        self.opening = asyncio.Lock()
        self.is_open = False
        self.closed = False

    @classmethod
    def from_url(
        cls,
        url: str | URL,
        *,
        names: Names | None = None,
        create_tables: bool = True,
        clock: Clock | None = None,
        engine_kwargs: Mapping[str, Any] | None = None,
    ) -> "SqlBackend":
        """A store with an engine of its own, disposed when the store is closed.

        A URL that names no driver gets the one holdfast is tested with; ``engine_kwargs`` go to
        ``create_async_engine``.
        """
        engine = engine_for(url, dict(engine_kwargs or {}))
        return cls(engine, names=names, create_tables=create_tables, owns_engine=True, clock=clock)

    async def close(self) -> None:
        """Finish the commits that are under way, and let go of an engine of our own."""
        self.closed = True
        if self.under_way:
            _, late = await asyncio.wait(self.under_way, timeout=_PATIENCE)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if self.owns_engine:
            await self.engine.dispose()

    # --- opening --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create and migrate what is missing. Every call does this by itself when it comes first."""
        if self.closed:
            raise Closed(f"the store {self.where} is closed")
        if self.is_open:
            return
        async with self.opening:
            if not self.is_open:
                await self.finish(self.bring_up_to_date())
                self.is_open = True

    async def bring_up_to_date(self) -> None:
        found = await self.on_connection(self.autocommit, self.installed)
        if found == schema.NEWEST:
            return
        if not self.create_tables:
            raise SchemaTooOld(self.where, found=found, known=schema.NEWEST)
        migrate = {"postgresql": self.migrate_postgresql, "mysql": self.migrate_mysql, "sqlite": self.migrate_sqlite}
        await self.on_connection(self.transactional, migrate[self.dialect.name])

    def installed(self, raw: sqlalchemy.Connection) -> int:
        """The version of the tables, 0 when there are none."""
        table = self.names.fill("{_schema}")
        if self.dialect.name == "postgresql":
            table = table.lower()  # as it does with every name that is not quoted
        if not sqlalchemy.inspect(raw).has_table(table):
            return 0
        raw.rollback()
        return schema.version(self.adapted(raw), where=self.where)

    def migrate_postgresql(self, raw: sqlalchemy.Connection) -> None:
        with raw.begin():
            raw.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": self.lock_number()})
            self.migrate(raw)

    def migrate_mysql(self, raw: sqlalchemy.Connection) -> None:
        """Definitions are not part of a transaction here, so the lock belongs to the connection."""
        lock = {"name": f"holdfast {self.lock_number()}", "patience": int(_PATIENCE)}
        if not raw.execute(sqlalchemy.text("SELECT GET_LOCK(:name, :patience)"), lock).scalar():
            raise StoreUnavailable(f"{self.where}: somebody else has been creating the tables for {_PATIENCE} s")
        try:
            self.migrate(raw)
            raw.commit()
        finally:
            raw.execute(sqlalchemy.text("SELECT RELEASE_LOCK(:name)"), lock)

    def migrate_sqlite(self, raw: sqlalchemy.Connection) -> None:
        if self.owns_engine:
            self.turn_on_wal(raw)
        transaction = self.dialect.begin(raw)
        try:
            self.migrate(raw)
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()

    def turn_on_wal(self, raw: sqlalchemy.Connection) -> None:
        """SQLite does not wait for others when it changes the journal mode, so this does."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                raw.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
            except DBAPIError as error:
                if not sql_errors.is_conflict(error) or time.monotonic() > deadline:
                    raise
                sqlalchemy.util.await_only(asyncio.sleep(random.uniform(0.001, 0.02)))

    def migrate(self, raw: sqlalchemy.Connection) -> None:
        connection = MigratingConnection(raw, self.dialect, self.statements)
        schema.migrate(
            connection,
            dialect=self.dialect.name,
            types=self.dialect.types,
            where=self.where,
            now=self.now(connection),
        )

    def lock_number(self) -> int:
        digest = hashlib.sha256(f"holdfast {self.names.stem.lower()}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    # --- connections ----------------------------------------------------------------------------

    async def borrow(self, engine: AsyncEngine) -> AsyncConnection:
        """A connection that is alive as far as the driver knows, which costs no round trip to ask."""
        if self.turns is not None:
            await self.turns.acquire()
        try:
            while True:
                connection = await engine.connect()
                if not has_hung_up(connection):
                    return connection
                await asyncio.shield(discard(connection))
        except BaseException as error:
            if self.turns is not None:
                self.turns.release()
            if isinstance(error, Exception):
                raise self.explained(error) from error
            raise

    async def give_back(self, connection: AsyncConnection) -> None:
        try:
            await connection.close()
        except (SQLAlchemyError, OSError):
            # It could not be made fit for the next one; the pool has dropped it.
            pass
        finally:
            if self.turns is not None:
                self.turns.release()

    async def on_connection(self, engine: AsyncEngine, work: Callable[[sqlalchemy.Connection], T]) -> T:
        connection = await self.borrow(engine)
        try:
            return await self.run_on(connection, work)
        except (SQLAlchemyError, OSError) as error:
            raise self.explained(error) from error

    async def run_on(self, connection: AsyncConnection, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Do the work and give the connection back, whatever happens."""
        try:
            return await connection.run_sync(work)
        finally:
            await asyncio.shield(self.give_back(connection))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Let what has begun come to its end, even if its caller is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return await asyncio.shield(task)

    def adapted(self, raw: sqlalchemy.Connection) -> SqlConnection:
        return SqlConnection(raw, self.dialect, self.statements)

    def explained(self, error: Exception) -> Exception:
        if isinstance(error, HoldfastError):
            return error
        if not isinstance(error, DBAPIError):
            return StoreUnavailable(f"{self.where}: {error or type(error).__name__}")
        if sql_errors.is_bad_value(error):
            return InvalidInput(f"{self.where} cannot hold this: {error.orig}")
        return StoreUnavailable(f"{self.where}: {error.orig}")

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[Outcome]:
        await self.open()
        # Nobody knows whether a commit arrived that broke off in its last moment. A key makes it safe to ask again.
        repeatable = all(isinstance(op, Splice) and op.key is not None for op in ops)
        write = self.write_by_call if self.server_side else self.write_by_statements
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2**attempt)))
            try:
                return await write(ops)
            except OutcomeUnknown as lost:
                problem = lost.error
                if not repeatable:
                    break
            except DBAPIError as error:
                problem = error
                if sql_errors.sqlstate(error) == sql_errors.UNTRANSLATABLE and write == self.write_by_call:
                    write = self.write_by_statements
                elif not sql_errors.is_conflict(error) and not error.connection_invalidated:
                    break
        raise self.explained(problem) from problem

    async def write_by_call(self, ops: Sequence[Op]) -> list[Outcome]:
        try:
            call = postgres.Call(ops)
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{self.where} cannot hold this: {error}") from None
        params = {"ops": call.ops, "blobs": call.blobs, "now": self.clock() if self.clock else None}
        connection = await self.borrow(self.autocommit)
        try:
            answer: str = await self.finish(
                self.run_on(connection, lambda raw: raw.execute(self.statements[postgres.CALL], params).scalar_one())
            )
        except DBAPIError as error:
            refusal = postgres.refusal(sql_errors.sqlstate(error), sql_errors.detail(error))
            if refusal is not None:
                raise refusal from None
            if error.connection_invalidated:
                raise OutcomeUnknown(error) from error
            raise
        except (SQLAlchemyError, OSError) as error:
            raise OutcomeUnknown(error) from error
        return postgres.outcomes(ops, answer)

    async def write_by_statements(self, ops: Sequence[Op]) -> list[Outcome]:
        connection = await self.borrow(self.transactional)
        try:
            return await self.finish(self.run_on(connection, lambda raw: self.transact(raw, ops)))
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidInput(f"{self.where} cannot hold this: {error}") from None
        except OSError as error:
            raise OutcomeUnknown(error) from error

    def transact(self, raw: sqlalchemy.Connection, ops: Sequence[Op]) -> list[Outcome]:
        transaction = self.dialect.begin(raw)
        try:
            connection = self.adapted(raw)
            outcomes = apply(connection, ops, self.now(connection))
        except BaseException:
            with suppress(SQLAlchemyError, OSError):  # then the pool does it, or the server does
                transaction.rollback()
            raise
        try:
            transaction.commit()
        except (SQLAlchemyError, OSError) as error:
            if isinstance(error, DBAPIError) and sql_errors.is_conflict(error):
                raise
            raise OutcomeUnknown(error) from error
        return outcomes

    def now(self, connection: SqlConnection) -> float:
        if self.clock is not None:
            return self.clock()
        row = connection.one(self.dialect.clock, {}) if self.dialect.clock else None
        return float(row[0]) if row else time.time()

    # --- reading --------------------------------------------------------------------------------

    async def see(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Read on a connection of its own, once more if that turns out to be broken."""
        await self.open()
        try:
            return await self.see_once(work, *args, **kwargs)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise self.explained(error) from error
        except (SQLAlchemyError, OSError) as error:
            raise self.explained(error) from error
        return await self.on_connection(self.autocommit, lambda raw: work(self.adapted(raw), *args, **kwargs))

    async def see_once(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        connection = await self.borrow(self.autocommit)
        reading = self.run_on(connection, lambda raw: work(self.adapted(raw), *args, **kwargs))
        # A cancelled read costs its connection. For a database in memory that would be the database.
        return await (self.finish(reading) if self.dialect.name == "sqlite" else reading)

    async def record(self, session_id: str) -> SessionRecord | None:
        return await self.see(reads.record, session_id)

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        return await self.see(reads.read, session_id, start=start, stop=stop, last=last, generation=generation)

    async def sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        return await self.see(reads.sessions, owner=owner, query=query, limit=limit, after=after)

    async def generations(self, session_id: str) -> list[Generation]:
        return await self.see(reads.generations, session_id)

    async def quarantined(self, session_id: str) -> list[Quarantined]:
        return await self.see(reads.quarantined, session_id)

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        if not self.indexes_words or not terms:
            return None
        return await self.see(postgres.find, terms, session_id=session_id, owner=owner, limit=limit, skip=skip)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self.see(reads.run, run_id)

    async def runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        return await self.see(reads.runs, status=status, session_id=session_id, limit=limit, after=after)

    async def journal(self, run_id: str, *, after: int) -> list[Logged]:
        return await self.see(reads.logged, "{_journal}", run_id, after=after, limit=reads.ALL)

    async def events(self, run_id: str, *, after: int, limit: int) -> list[Logged]:
        return await self.see(reads.logged, "{_events}", run_id, after=after, limit=limit)

    async def approval(self, approval_id: str) -> ApprovalRecord | None:
        return await self.see(reads.approval, approval_id)

    async def approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        return await self.see(
            reads.approvals, status=status, run_id=run_id, session_id=session_id, limit=limit, after=after
        )

    async def lease(self, name: str) -> Lease | None:
        return await self.see(reads.lease, name)


def has_hung_up(connection: AsyncConnection) -> bool:
    """Whether the driver already knows that the other side is gone. The drivers call it differently."""
    raw = connection.sync_connection
    driver: Any = raw.connection.driver_connection if raw is not None else None
    gone = getattr(driver, "is_closed", None) or getattr(driver, "closed", False)
    return bool(gone() if callable(gone) else gone)


async def discard(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()


def engine_for(url: str | URL, kwargs: dict[str, Any]) -> AsyncEngine:
    parsed = taken_apart(url)
    try:
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        if parsed.get_backend_name() != "sqlite":
            return create_async_engine(parsed, **kwargs)
        return sqlite_engine(parsed, kwargs)
    except ModuleNotFoundError as error:
        raise MissingExtra("sql", f"the driver {error.name}") from error
    except (ArgumentError, InvalidRequestError, NoSuchModuleError) as error:
        raise InvalidInput(f"not the URL of a database: {error}") from None


def taken_apart(url: str | URL) -> URL:
    try:
        return sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # what they say may quote the password
        raise InvalidInput(
            "not the URL of a database: special characters in its user name and password must be quoted,"
            " see urllib.parse.quote"
        ) from None


def sqlite_engine(url: URL, kwargs: dict[str, Any]) -> AsyncEngine:
    kwargs["connect_args"] = {"timeout": _PATIENCE, **kwargs.get("connect_args", {})}
    if url.database in (None, "", ":memory:"):
        kwargs = {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0, **kwargs}
    engine = create_async_engine(url, **kwargs)

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        # A hand-edited column may hold any bytes; they must not stop the rows beside them from being read.
        connection.driver_connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()

    return engine
