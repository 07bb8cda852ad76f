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
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.base.clock import Clock
from holdfast.base.errors import InvalidInput, MissingExtra, SchemaTooOld

try:
    import sqlalchemy
    from sqlalchemy import URL
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine
except ImportError as missing:
    raise MissingExtra("sql", "a database server") from missing

from holdfast.store.contract import Found, Op, Outcome, Splice
from holdfast.store.relational import schema
from holdfast.store.relational.apply import apply
from holdfast.store.relational.connection import Names
from holdfast.store.relational.reading import RelationalReads
from holdfast.store.sql import errors as sql_errors
from holdfast.store.sql import postgres
from holdfast.store.sql.dialects import SqlConnection, dialect_named
from holdfast.store.sql.engines import PATIENCE, engine_for
from holdfast.store.sql.errors import NotSent, OutcomeUnknown
from holdfast.store.sql.loans import Loans, has_hung_up
from holdfast.store.sql.migrating import Migrating
from holdfast.store.sql.transactions import Transactions

T = TypeVar("T")

_TRIES = 12


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
        self.create_tables = create_tables
        self.owns_engine = owns_engine
        self.where = engine.url.render_as_string(hide_password=True)
        dialect = dialect_named(engine.dialect.name)
        self.transactions = Transactions(dialect, names or Names(), clock)
        self.loans = Loans(engine, self.where)
        self.indexes_words = dialect.name == "postgresql"
        self.server_side = server_side and dialect.name == "postgresql"
        self.opening = asyncio.Lock()
        self.is_open = False

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
        await self.loans.close(patience=PATIENCE)
        if self.owns_engine:
            await self.engine.dispose()

    async def open(self) -> None:
        """Create and migrate what is missing. Every call does this by itself when it comes first."""
        self.loans.check_open()
        if self.is_open:
            return
        async with self.opening:
            if not self.is_open:
                await self.loans.finish(self.bring_up_to_date())
                self.is_open = True

    async def bring_up_to_date(self) -> None:
        migrating = Migrating(self.transactions, self.where, may_turn_on_wal=self.owns_engine)
        found = await self.loans.on_connection(migrating.installed)
        if found == schema.NEWEST:
            return
        if not self.create_tables:
            raise SchemaTooOld(self.where, found=found, known=schema.NEWEST)
        await self.loans.on_connection(migrating.to_newest)

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[Outcome]:
        await self.open()
        await self.loans.caught_up()
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
        raise sql_errors.explained(problem, self.where) from problem

    async def write_by_call(self, ops: Sequence[Op]) -> list[Outcome]:
        try:
            call = postgres.Call(ops)
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{self.where} cannot hold this: {error}") from None
        params = {
            "ops": call.ops,
            "blobs": call.blobs,
            "now": self.transactions.clock() if self.transactions.clock else None,
        }

        def send(raw: sqlalchemy.Connection) -> str:
            if has_hung_up(raw):  # in the moment since it was borrowed
                raw.invalidate()
                raise NotSent(f"{self.where}: the connection is closed")
            answer: str = raw.execute(self.transactions.statements[postgres.CALL], params).scalar_one()
            return answer

        connection = await self.loans.borrow()
        try:
            answer = await self.loans.finish(self.loans.run_on(connection, send))
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
            return apply(connection, ops, self.transactions.now(connection))

        connection = await self.loans.borrow()
        try:
            return await self.loans.finish(
                self.loans.run_on(connection, lambda raw: self.transactions.in_transaction(raw, write))
            )
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidInput(f"{self.where} cannot hold this: {error}") from None
        except OSError as error:
            raise OutcomeUnknown(error) from error

    # --- reading --------------------------------------------------------------------------------

    async def time(self) -> float:
        return await self.see(self.transactions.now)

    async def see(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Read on a connection of its own, once more if that turns out to be broken."""
        await self.open()
        try:
            return await self.see_once(work, *args, **kwargs)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise sql_errors.explained(error, self.where) from error
        except (SQLAlchemyError, OSError) as error:
            raise sql_errors.explained(error, self.where) from error
        return await self.loans.on_connection(lambda raw: work(self.transactions.adapted(raw), *args, **kwargs))

    async def see_once(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        connection = await self.loans.borrow()
        reading = self.loans.run_on(connection, lambda raw: work(self.transactions.adapted(raw), *args, **kwargs))
        # A cancelled read costs its connection. For a database in memory that would be the database.
        return await (self.loans.finish(reading) if self.loans.is_sqlite else reading)

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        if not self.indexes_words or not terms:
            return None
        return await self.see(postgres.find, terms, session_id=session_id, owner=owner, limit=limit, skip=skip)
