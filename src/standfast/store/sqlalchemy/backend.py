"""The backend for SQL servers, through SQLAlchemy's asyncio engine.

On PostgreSQL a commit is one call of a function that a migration created, which takes one round trip. On every other
database, and with ``server_side=False``, a commit is a transaction of several statements.

No state is kept in a connection, so a pooler in transaction mode can be used. PgBouncer before 1.21 does not support
prepared statements; with asyncpg they are disabled as follows::

    SqlBackend.from_url(
        "postgresql+asyncpg://app@pooler/app?prepared_statement_cache_size=0",
        engine_kwargs={"connect_args": {"statement_cache_size": 0}, "poolclass": NullPool},
    )
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from standfast.base.errors import InvalidInput, MissingExtra, SchemaTooOld, StoreUnavailable, Unsupported
from standfast.base.ids import new_id, validate_name
from standfast.base.log import get_logger
from standfast.base.time import Clock

try:
    import sqlalchemy
    from sqlalchemy import URL
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine
except ImportError as missing:
    raise MissingExtra("sql", "a database server") from missing

from standfast.store.links import Link, LinkListener, LinkUnavailable
from standfast.store.operations import AcquireLease, LeaseHeld, Op, OpResult, Splice
from standfast.store.records import SearchCandidate
from standfast.store.sql import schema
from standfast.store.sql.commit import apply
from standfast.store.sql.connection import TableNames
from standfast.store.sql.openai_agents_tables import AdoptedMeanwhile, ForeignTablesPolicy, OpenAIAgentsTables
from standfast.store.sql.queries import RelationalQueries
from standfast.store.sqlalchemy import dialects, postgres, row_security
from standfast.store.sqlalchemy.connections import (
    DEFAULT_TIMEOUT,
    BorrowedConnections,
    create_engine,
    create_private_database,
    is_disconnected,
)
from standfast.store.sqlalchemy.dialects import (
    CommitOutcomeUnknown,
    SqlConnection,
    StatementNotSent,
    TransactionRunner,
    get_dialect,
)
from standfast.store.sqlalchemy.migrator import Migrator
from standfast.store.sqlalchemy.row_security import ScopedBackend
from standfast.store.sqlite import erasure

T = TypeVar("T")

_MAX_ATTEMPTS = 12
LINK_LEASE = "link"
LINK_LEASE_TTL = 100 * 365 * 86400.0


_log = get_logger(__name__)


class SqlBackend(RelationalQueries):
    """A store in the tables of an SQL server.

    The engine belongs to the caller, who configures and disposes it, unless ``owns_engine``. Without a ``clock``,
    leases expire by the clock of the server.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        names: TableNames | None = None,
        create_tables: bool = True,
        owns_engine: bool = False,
        clock: Clock | None = None,
        server_side: bool = True,
        foreign_tables: ForeignTablesPolicy = "refuse",
    ) -> None:
        self.engine = engine
        self.foreign_tables = foreign_tables
        self.openai_agents: OpenAIAgentsTables | None = None  # set by open() if it uses those of openai-agents
        self.create_tables = create_tables
        self.owns_engine = owns_engine
        address = engine.url.render_as_string(hide_password=True)
        is_in_memory = engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")
        self.location = f"{new_id('memory') if is_in_memory else address} {names or TableNames()}"
        dialect = get_dialect(engine.dialect.name)
        self.requested_names = names or TableNames()
        self.transactions = TransactionRunner(dialect, self.requested_names, clock)
        self.connections = BorrowedConnections(engine, address)
        self.indexes_words = dialect.name == "postgresql"
        self.server_side = server_side and dialect.name == "postgresql"
        self.statements = None
        # On an engine of the caller every statement goes through SQLAlchemy, whose events the caller may listen to.
        if owns_engine and not engine.echo and engine.dialect.driver == "asyncpg":
            from standfast.store.sqlalchemy.asyncpg_statements import AsyncpgStatements

            self.statements = AsyncpgStatements(self.connections, self.transactions)
        self.open_lock = asyncio.Lock()
        self.is_open = False

    @classmethod
    def from_url(
        cls,
        url: str | URL,
        *,
        names: TableNames | None = None,
        create_tables: bool = True,
        clock: Clock | None = None,
        engine_kwargs: Mapping[str, Any] | None = None,
        foreign_tables: ForeignTablesPolicy = "refuse",
    ) -> "SqlBackend":
        """Create a backend with its own engine, which is disposed when the backend is closed.

        A URL without a driver gets the driver that standfast is tested with. ``engine_kwargs`` are passed to
        ``create_async_engine``.
        """
        engine = create_engine(url, {"isolation_level": "AUTOCOMMIT", **(engine_kwargs or {})})
        return cls(
            engine,
            names=names,
            create_tables=create_tables,
            owns_engine=True,
            clock=clock,
            foreign_tables=foreign_tables,
        )

    async def close(self) -> None:
        """Wait for running work, and dispose an engine that the backend owns."""
        await self.connections.close(timeout=DEFAULT_TIMEOUT)
        if self.owns_engine:
            await self.engine.dispose()

    async def open(self) -> None:
        """Create and migrate the tables. The first call of any other method does this too."""
        self.connections.check_open()
        if self.is_open:
            return
        async with self.open_lock:
            if not self.is_open:
                await self.connections.run_shielded(self.migrate())
                self.is_open = True

    async def migrate(self) -> None:
        create_private_database(self.engine.url)
        migrator = self.make_migrator()
        self.openai_agents = await self.connections.acquire_and_run(migrator.find_openai_agents)
        if self.openai_agents is not None:
            return
        version = await self.connections.acquire_and_run(migrator.get_installed_version)
        if version == schema.LATEST_VERSION:
            return
        if not self.create_tables:
            raise SchemaTooOld(self.location, found=version, supported=schema.LATEST_VERSION)
        await self.connections.acquire_and_run(migrator.upgrade)

    def make_migrator(self) -> Migrator:
        return Migrator(
            self.transactions,
            self.requested_names,
            self.location,
            may_enable_wal=self.owns_engine,
            foreign_tables=self.foreign_tables,
        )

    # --- owners ---------------------------------------------------------------------------------

    def for_owner(self, owner: str) -> ScopedBackend:
        """Return a backend that sees and changes what this owner has, and nothing else. PostgreSQL enforces it."""
        self.require_postgresql()
        return ScopedBackend(self, validate_name("owner", owner))

    async def has_row_security(self) -> bool:
        """Return whether the tables are protected, so that :meth:`for_owner` can be used."""
        await self.open()
        return self.indexes_words and await self.run_query(row_security.is_enabled)

    async def enable_row_security(self) -> None:
        """Protect the tables, also those that were added since. Waits until no transaction uses them.

        Raise :class:`Unsupported` with what an administrator has to do if this user may not create roles.
        """
        await self.change_row_security(row_security.enable)

    async def disable_row_security(self) -> None:
        """Undo :meth:`enable_row_security`. Backends of one owner fail from then on."""
        await self.change_row_security(row_security.disable)

    async def change_row_security(self, change: Callable[[SqlConnection], None]) -> None:
        self.require_postgresql()
        await self.open()
        await self.connections.acquire_and_run(lambda raw: self.transactions.run_in_transaction(raw, change))

    def require_postgresql(self) -> None:
        if self.engine.dialect.name != "postgresql":
            raise Unsupported("only PostgreSQL can keep the rows of owners apart")

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Apply all operations or none; see :meth:`~standfast.store.backend.Backend.commit`.

        Retries after a conflict with another transaction, and after a connection that was lost before the commit was
        sent. If the connection is lost later, only splices with an idempotency key are repeated; otherwise
        :class:`StoreUnavailable` is raised, and it is unknown whether the commit was applied.
        """
        try:
            results = await self.commit_with_retry(ops)
        except AdoptedMeanwhile:
            self.is_open = False
            results = await self.commit_with_retry(ops)
        if self.connections.is_sqlite and erasure.is_erasing(ops):
            try:
                await self.remove_traces()
            except StoreUnavailable as problem:  # The erasure itself is committed.
                _log.warning("traces of erased data stay in the file until the next erasure: %s", problem)
        return results

    async def remove_traces(self) -> None:
        """Remove what the search index and the log of an SQLite file keep of erased data."""

        def merge(raw: sqlalchemy.Connection) -> bool:
            return self.transactions.run_in_transaction(raw, erasure.merge_index)

        while await self.connections.acquire_and_run(merge):
            pass
        await self.connections.acquire_and_run(lambda raw: raw.exec_driver_sql(erasure.TRUNCATE_LOG).fetchall())

    async def commit_with_retry(self, ops: Sequence[Op]) -> list[OpResult]:
        await self.open()
        await self.connections.wait_for_abandoned()
        # After a lost connection it is unknown whether the commit was applied. With keys it can be repeated safely.
        foreign = self.openai_agents is not None
        repeatable = not foreign and all(isinstance(op, Splice) and op.key is not None for op in ops)
        write = self.commit_with_function if self.server_side and not foreign else self.commit_with_statements
        problem: Exception
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2**attempt)))
            try:
                return await write(ops)
            except StatementNotSent as error:
                problem = error
            except CommitOutcomeUnknown as lost:
                problem = lost.error
                if not repeatable:
                    break
            except DBAPIError as error:
                problem = error
                if (
                    dialects.get_sqlstate(error) == dialects.UNTRANSLATABLE_CHARACTER
                    and write == self.commit_with_function
                ):
                    write = self.commit_with_statements
                elif not dialects.is_conflict(error) and not error.connection_invalidated:
                    break
        raise dialects.translate_error(problem, self.location) from problem

    async def commit_with_function(self, ops: Sequence[Op]) -> list[OpResult]:
        try:
            payload = postgres.CommitPayload(ops)
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{self.location} cannot store this value: {error}") from None
        params = {
            "ops": payload.ops,
            "blobs": payload.blobs,
            "now": self.transactions.clock() if self.transactions.clock else None,
        }
        send = self.send_with_sqlalchemy if self.statements is None else self.statements.fetch_value
        try:
            answer = await send(postgres.COMMIT_QUERY, params)
        except DBAPIError as error:
            refusal = postgres.error_from_sqlstate(dialects.get_sqlstate(error), dialects.get_detail(error))
            if refusal is not None:
                raise refusal from None
            if error.connection_invalidated:
                raise CommitOutcomeUnknown(error) from error
            raise
        except (SQLAlchemyError, OSError) as error:
            raise CommitOutcomeUnknown(error) from error
        return postgres.parse_results(ops, answer)

    async def send_with_sqlalchemy(self, sql: str, params: Mapping[str, Any]) -> str:
        def send(raw: sqlalchemy.Connection) -> str:
            if is_disconnected(raw):  # since it was acquired
                raw.invalidate()
                raise StatementNotSent(f"{self.location}: the connection is closed")
            answer: str = raw.execute(self.transactions.statements[sql], params).scalar_one()
            return answer

        connection = await self.connections.acquire()
        return await self.connections.run_shielded(self.connections.run_and_release(connection, send))

    async def commit_with_statements(self, ops: Sequence[Op]) -> list[OpResult]:
        def write(connection: SqlConnection) -> list[OpResult]:
            if self.openai_agents is not None:
                return self.openai_agents.apply(connection, ops)
            if self.connections.is_sqlite and erasure.is_erasing(ops):
                erasure.prepare_index(connection)
            return apply(connection, ops, self.transactions.get_time(connection))

        connection = await self.connections.acquire()
        try:
            return await self.connections.run_shielded(
                self.connections.run_and_release(
                    connection, lambda raw: self.transactions.run_in_transaction(raw, write)
                )
            )
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidInput(f"{self.location} cannot store this value: {error}") from None
        except OSError as error:
            raise CommitOutcomeUnknown(error) from error

    # --- links ----------------------------------------------------------------------------------

    async def open_link(self, name: str, listener: LinkListener) -> Link:
        url = self.engine.url
        if self.connections.is_sqlite and url.database not in (None, "", ":memory:"):
            from standfast.store.sqlite.socket_link import SocketLink

            return await SocketLink.open(url.database, name, listener)
        if self.engine.dialect.name != "postgresql":
            raise LinkUnavailable(f"a store in {self.engine.dialect.name} has none")
        from standfast.store.sqlalchemy.notify_link import NotifyLink, make_secret

        return await NotifyLink.open(self.engine, await self.agree_on_link_secret(make_secret()), name, listener)

    async def agree_on_link_secret(self, proposal: str) -> str:
        """Return the secret of the store's channels: the owner of a lease that is never released."""
        lease = await self.get_lease(LINK_LEASE)
        if lease is None:
            with suppress(LeaseHeld):
                await self.commit(AcquireLease(name=LINK_LEASE, owner=proposal, ttl=LINK_LEASE_TTL))
            lease = await self.get_lease(LINK_LEASE)
        if lease is None:
            raise LinkUnavailable("the name of its channels cannot be stored")
        return lease.owner

    # --- reading --------------------------------------------------------------------------------

    async def get_time(self) -> float:
        return await self.run_query(self.transactions.get_time)

    async def run_query(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a read on its own connection, and once more if that connection was lost or the tables were adopted."""
        await self.open()
        query = function if self.openai_agents is None else self.openai_agents.get_query(function)
        try:
            return await self.run_query_once(query, *args, **kwargs)
        except AdoptedMeanwhile:
            self.is_open = False
            return await self.run_query(function, *args, **kwargs)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise dialects.translate_error(error, self.location) from error
        except (SQLAlchemyError, OSError) as error:
            raise dialects.translate_error(error, self.location) from error
        return await self.connections.acquire_and_run(
            lambda raw: query(self.transactions.wrap_connection(raw), *args, **kwargs)
        )

    async def run_query_once(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self.statements is not None and self.openai_agents is None:
            return await self.statements.run_query(lambda connection: function(connection, *args, **kwargs))
        return await self.connections.read(
            lambda raw: function(self.transactions.wrap_connection(raw), *args, **kwargs)
        )

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        await self.open()
        if not self.indexes_words or not terms or self.openai_agents is not None:
            return None
        return await self.run_query(postgres.find, terms, session_id=session_id, owner=owner, limit=limit, skip=skip)
