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
from functools import partial
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

from holdfast.store.contract import (
    Found,
    Op,
    Outcome,
    Splice,
)
from holdfast.store.relational import adopting, schema
from holdfast.store.relational.apply import apply
from holdfast.store.relational.connection import Names
from holdfast.store.relational.reading import RelationalReads
from holdfast.store.sql import errors as sql_errors
from holdfast.store.sql import postgres
from holdfast.store.sql.dialects import MigratingConnection, SqlConnection, Statements, dialect_named

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


class NotSent(Exception):
    """The connection was gone before anything went over it."""


class SqlBackend(RelationalReads):
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
        # Transactions are begun and ended by statements, so that a commit may also be one statement without any.
        self.autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.indexes_words = self.dialect.name == "postgresql"
        self.server_side = server_side and self.dialect.name == "postgresql"
        # A database in memory lives on one connection, which takes one caller at a time.
        self.turns = asyncio.Lock() if isinstance(engine.pool, StaticPool) else None
        self.loans = 0
        self.all_back = asyncio.Event()
        self.all_back.set()
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
        engine = engine_for(url, {"isolation_level": "AUTOCOMMIT", **(engine_kwargs or {})})
        return cls(engine, names=names, create_tables=create_tables, owns_engine=True, clock=clock)

    async def close(self) -> None:
        """Finish what is under way, and let go of an engine of our own."""
        self.closed = True
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.all_back.wait()
                if self.under_way:
                    await asyncio.wait(self.under_way)
        except TimeoutError:
            for task in self.under_way:
                task.cancel()
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
        found = await self.on_connection(self.installed)
        if found == schema.NEWEST:
            return
        if not self.create_tables:
            raise SchemaTooOld(self.where, found=found, known=schema.NEWEST)
        migrate = {"postgresql": self.migrate_postgresql, "mysql": self.migrate_mysql, "sqlite": self.migrate_sqlite}
        await self.on_connection(migrate[self.dialect.name])

    def installed(self, raw: sqlalchemy.Connection) -> int:
        """The version of the tables, 0 when there are none."""
        table = self.as_stored(self.names.fill("{_schema}"))
        if not sqlalchemy.inspect(raw).has_table(table):
            return 0
        connection = self.adapted(raw)
        adopting.check_names(connection, self.names, partial(self.columns_of, raw))
        return schema.version(connection, where=self.where)

    def migrate_postgresql(self, raw: sqlalchemy.Connection) -> None:
        def alone(connection: SqlConnection) -> None:
            connection.one("SELECT pg_advisory_xact_lock(:key)", {"key": self.lock_number()})
            self.migrate(raw)

        self.in_transaction(raw, alone)

    def migrate_mysql(self, raw: sqlalchemy.Connection) -> None:
        """Definitions are not part of a transaction here, so the lock belongs to the connection."""
        connection = self.adapted(raw)
        lock = {"name": f"holdfast {self.lock_number()}", "patience": int(_PATIENCE)}
        granted = connection.one("SELECT GET_LOCK(:name, :patience)", lock)
        if not granted or not granted[0]:
            raise StoreUnavailable(f"{self.where}: somebody else has been creating the tables for {_PATIENCE} s")
        try:
            self.migrate(raw)
        finally:
            connection.one("SELECT RELEASE_LOCK(:name)", lock)

    def migrate_sqlite(self, raw: sqlalchemy.Connection) -> None:
        if self.owns_engine:
            self.turn_on_wal(raw)
        self.in_transaction(raw, lambda connection: self.migrate(raw))

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
        now = self.now(connection)

        def migrate() -> None:
            schema.migrate(connection, dialect=self.dialect.name, types=self.dialect.types, where=self.where, now=now)

        adopting.around(migrate, connection, self.names, partial(self.columns_of, raw), now=now)

    def columns_of(self, raw: sqlalchemy.Connection, table: str) -> list[str]:
        inspector, name = sqlalchemy.inspect(raw), self.as_stored(table)
        return [column["name"] for column in inspector.get_columns(name)] if inspector.has_table(name) else []

    def as_stored(self, table: str) -> str:
        """A table's name as the catalogue has it: PostgreSQL lowers every name that is not quoted."""
        return table.lower() if self.dialect.name == "postgresql" else table

    def lock_number(self) -> int:
        digest = hashlib.sha256(f"holdfast {self.names.stem.lower()}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    # --- connections ----------------------------------------------------------------------------

    async def borrow(self) -> AsyncConnection:
        """A connection that is alive as far as the driver knows, which costs no round trip to ask."""
        if self.turns is not None:
            await self.turns.acquire()
        self.loans += 1
        self.all_back.clear()
        if self.closed:
            self.end_loan()
            raise Closed(f"the store {self.where} is closed")
        connecting = asyncio.ensure_future(self.connect()) if self.dialect.name == "sqlite" else self.connect()
        try:
            # A SQLite driver that is cancelled while it connects leaves its thread behind, so it is not told.
            return await (asyncio.shield(connecting) if isinstance(connecting, asyncio.Task) else connecting)
        except asyncio.CancelledError:
            if isinstance(connecting, asyncio.Task):
                self.track(asyncio.ensure_future(self.give_back_unused(connecting)))
            else:
                self.end_loan()
            raise
        except Exception as error:
            self.end_loan()
            raise self.explained(error) from error

    async def connect(self) -> AsyncConnection:
        while True:
            connection = await self.autocommit.connect()
            if not has_hung_up(connection.sync_connection):
                return connection
            await asyncio.shield(discard(connection))

    async def give_back(self, connection: AsyncConnection) -> None:
        try:
            await connection.close()
        except Exception:  # noqa: BLE001, S110 - whatever a driver raises, it changes nothing about what was done
            pass
        finally:
            self.end_loan()

    async def give_back_unused(self, connecting: asyncio.Task[AsyncConnection]) -> None:
        try:
            connection = await connecting
        except Exception:  # noqa: BLE001 - nobody waits for it any more
            self.end_loan()
        else:
            await self.give_back(connection)

    def end_loan(self) -> None:
        if self.turns is not None:
            self.turns.release()
        self.loans -= 1
        if not self.loans:
            self.all_back.set()

    async def on_connection(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        connection = await self.borrow()
        try:
            return await self.run_on(connection, work)
        except OutcomeUnknown as lost:
            raise self.explained(lost.error) from lost.error
        except (SQLAlchemyError, OSError) as error:
            raise self.explained(error) from error

    async def run_on(self, connection: AsyncConnection, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Do the work and give the connection back, whatever happens."""
        try:
            result = await connection.run_sync(work)
        except BaseException:
            await asyncio.shield(self.give_back(connection))
            raise
        await self.give_back(connection)
        return result

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Let what has begun come to its end, even if its caller is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self.track(task)
        return await asyncio.shield(task)

    def track(self, task: asyncio.Task[Any]) -> None:
        self.under_way.add(task)
        task.add_done_callback(self.untrack)

    def untrack(self, task: asyncio.Task[Any]) -> None:
        self.under_way.discard(task)
        if not task.cancelled():
            task.exception()  # when its caller was cancelled, nobody else looks at it

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
        problem: Exception
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2**attempt)))
            try:
                return await write(ops)
            except NotSent as error:
                problem = error
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

        def send(raw: sqlalchemy.Connection) -> str:
            if has_hung_up(raw):  # in the moment since it was borrowed
                raw.invalidate()
                raise NotSent(f"{self.where}: the connection is closed")
            answer: str = raw.execute(self.statements[postgres.CALL], params).scalar_one()
            return answer

        connection = await self.borrow()
        try:
            answer = await self.finish(self.run_on(connection, send))
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
        def write(connection: SqlConnection) -> list[Outcome]:
            return apply(connection, ops, self.now(connection))

        connection = await self.borrow()
        try:
            return await self.finish(self.run_on(connection, lambda raw: self.in_transaction(raw, write)))
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidInput(f"{self.where} cannot hold this: {error}") from None
        except OSError as error:
            raise OutcomeUnknown(error) from error

    def in_transaction(self, raw: sqlalchemy.Connection, work: Callable[[SqlConnection], T]) -> T:
        try:
            for statement in self.dialect.begin:
                raw.exec_driver_sql(statement)
            result = work(self.adapted(raw))
        except BaseException:
            self.roll_back(raw)
            raise
        try:
            raw.exec_driver_sql("COMMIT")
        except BaseException as error:
            self.roll_back(raw)
            if isinstance(error, DBAPIError) and sql_errors.is_conflict(error):
                raise
            if isinstance(error, Exception):
                raise OutcomeUnknown(error) from error
            raise
        return result

    def roll_back(self, raw: sqlalchemy.Connection) -> None:
        """Leave the transaction if there is one, and the connection if it will not let go."""
        if raw.invalidated:
            return
        try:
            if self.dialect.name == "sqlite":
                raw.connection.rollback()  # unlike the statement, this does not mind if there is none
            else:
                raw.exec_driver_sql("ROLLBACK")
        except Exception:  # noqa: BLE001 - what made it necessary is what the caller must hear of
            raw.invalidate()
        except BaseException:
            raw.invalidate()
            raise

    def now(self, connection: SqlConnection) -> float:
        if self.clock is not None:
            return self.clock()
        row = connection.one(self.dialect.clock, {}) if self.dialect.clock else None
        return float(row[0]) if row else time.time()

    # --- reading --------------------------------------------------------------------------------

    async def time(self) -> float:
        return await self.see(self.now)

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
        return await self.on_connection(lambda raw: work(self.adapted(raw), *args, **kwargs))

    async def see_once(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        connection = await self.borrow()
        reading = self.run_on(connection, lambda raw: work(self.adapted(raw), *args, **kwargs))
        # A cancelled read costs its connection. For a database in memory that would be the database.
        return await (self.finish(reading) if self.dialect.name == "sqlite" else reading)

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        if not self.indexes_words or not terms:
            return None
        return await self.see(postgres.find, terms, session_id=session_id, owner=owner, limit=limit, skip=skip)


def has_hung_up(raw: sqlalchemy.Connection | None) -> bool:
    """Whether the driver already knows that the other side is gone. The drivers call it differently."""
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
