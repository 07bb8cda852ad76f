"""Statements for asyncpg itself, on connections of SQLAlchemy's pool.

What SQLAlchemy does for a statement takes several times as long as what the driver does, and nearly every commit and
read of a store on PostgreSQL is one short statement.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import await_only, greenlet_spawn

from standfast.base.log import get_logger
from standfast.store.sql.connection import DatabaseConnection, TableNames
from standfast.store.sqlalchemy.connections import BorrowedConnections
from standfast.store.sqlalchemy.dialects import POSTGRESQL, StatementNotSent, TransactionRunner, translate_error

T = TypeVar("T")
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_log = get_logger(__name__)
_REFUSED = "cannot switch to state"
"""With this asyncpg refuses a statement, and does not send it: the server has ended the connection, which asyncpg has
not noticed to its end."""
_BREAKING = (TimeoutError, asyncpg.InternalClientError, StatementNotSent)
"""After these the state of a connection is not known."""
_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class PositionalStatements(dict[str, tuple[str, tuple[str, ...]]]):
    """By statement: the same with the names of the tables and with ``$1`` for a parameter, and its parameters."""

    def __init__(self, names: TableNames) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, sql: str) -> tuple[str, tuple[str, ...]]:
        numbers: dict[str, str] = {}
        text = _PARAMETER.sub(
            lambda match: numbers.setdefault(match[1], f"${len(numbers) + 1}"), self.names.substitute(sql)
        )
        self[sql] = statement = text, tuple(numbers)
        return statement

    def bind(self, sql: str, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the statement and its arguments as asyncpg takes them."""
        text, names = self[sql]
        return text, *(params[name] for name in names)


class AsyncpgConnection:
    """A connection of asyncpg as a :class:`~standfast.store.sql.connection.DatabaseConnection`, in a greenlet."""

    lock_clause = POSTGRESQL.lock_clause
    words_expression = POSTGRESQL.words_expression

    def __init__(self, driver: Any, statements: PositionalStatements) -> None:
        self.driver, self.statements = driver, statements

    def fetch_one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None:
        row: Sequence[Any] | None = await_only(self.driver.fetchrow(*self.statements.bind(sql, params)))
        return row

    def fetch_all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        rows: Sequence[Sequence[Any]] = await_only(self.driver.fetch(*self.statements.bind(sql, params)))
        return rows

    def execute(self, sql: str, params: Mapping[str, Any]) -> None:
        await_only(self.driver.execute(*self.statements.bind(sql, params)))

    def execute_many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None:
        for one in params:
            self.execute(sql, one)


class AsyncpgStatements:
    """Sends the statements of one store. Each is a transaction of its own. Errors are those that SQLAlchemy raises."""

    def __init__(self, connections: BorrowedConnections, transactions: TransactionRunner) -> None:
        self._connections, self._transactions = connections, transactions
        self._statements = PositionalStatements(transactions.names)

    def _get_statements(self) -> PositionalStatements:
        if self._statements.names is not self._transactions.names:
            self._statements = PositionalStatements(self._transactions.names)
        return self._statements

    async def fetch_value(self, sql: str, params: Mapping[str, Any]) -> Any:
        """Return the value of a statement that changes data. It is executed even if the caller is cancelled then."""
        statement = self._get_statements().bind(sql, params)

        async def send(driver: Any) -> Any:
            if driver.is_closed():  # since it was acquired
                raise StatementNotSent(f"{self._connections.location}: the connection is closed")
            try:
                return await driver.fetchval(*statement)
            except asyncpg.InternalClientError as error:
                if not str(error).startswith(_REFUSED):
                    raise
                raise StatementNotSent(f"{self._connections.location}: {error}") from error

        pooled = await self._acquire()
        return await self._connections.run_shielded(self._use_and_release(pooled, send))

    async def run_query(self, function: Callable[[DatabaseConnection], T]) -> T:
        """Run a read on its own connection. If the caller is cancelled, the read is too."""
        statements = self._get_statements()

        async def run(driver: Any) -> T:
            result: T = await greenlet_spawn(function, AsyncpgConnection(driver, statements))
            return result

        async def acquire_and_run() -> T:
            return await self._use_and_release(await self._acquire(), run)

        return await self._connections.run_detached(acquire_and_run())

    async def _acquire(self) -> PoolProxiedConnection:
        await self._connections.acquire_slot()
        try:
            return await self._connect()
        except BaseException as error:
            self._connections.release_slot()
            if isinstance(error, Exception):
                raise translate_error(error, self._connections.location) from error
            raise

    async def _connect(self) -> PoolProxiedConnection:
        while True:
            pooled = await self._connections.engine.raw_connection()
            if not _get_driver(pooled).is_closed():
                return pooled
            await asyncio.shield(greenlet_spawn(pooled.invalidate))

    async def _use_and_release(self, pooled: PoolProxiedConnection, work: Callable[[Any], Awaitable[T]]) -> T:
        driver = _get_driver(pooled)
        try:
            result = await work(driver)
        except BaseException as problem:
            is_broken = driver.is_closed() or isinstance(problem, _BREAKING) or not isinstance(problem, Exception)
            await asyncio.shield(self._release(pooled.invalidate if is_broken else pooled.close))
            if isinstance(problem, _ERRORS):
                raise DBAPIError(None, None, problem, connection_invalidated=is_broken) from problem
            raise
        await self._release(pooled.close)
        return result

    async def _release(self, how: Callable[[], None]) -> None:
        try:
            await greenlet_spawn(how)
        except Exception as error:  # noqa: BLE001 - drivers raise anything; the work itself is done
            _log.debug("%s: could not release a connection: %s", self._connections.location, type(error).__name__)
        finally:
            self._connections.release_slot()


def _get_driver(pooled: PoolProxiedConnection) -> Any:
    return pooled.driver_connection
