"""The differences between databases and their drivers; connections and transactions inside ``run_sync``."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy
from sqlalchemy import TextClause
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from standfast.base.errors import InvalidInput, StandfastError, StoreRefused, StoreUnavailable, Unsupported
from standfast.base.time import Clock
from standfast.store.sql import schema
from standfast.store.sql.connection import TableNames
from standfast.store.sqlalchemy import postgres
from standfast.store.sqlite import erasure

# Serialisation failure, deadlock, and a row that another transaction inserted first.
_POSTGRESQL_CONFLICTS = frozenset(["40001", "40P01", "23505"])
# Violated constraints and views with a check, exceeded limits, and what a trigger raises.
_POSTGRESQL_REFUSALS = ("23", "44", "54", "P0001")
_MYSQL_CONFLICTS = frozenset([1062, 1205, 1213])
_SQLITE_CONFLICTS = frozenset([5, 6])
UNTRANSLATABLE_CHARACTER = "22P05"
"""PostgreSQL's JSON functions do not support the NUL character."""


class CommitOutcomeUnknown(Exception):
    """The connection was lost when the database may already have committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class StatementNotSent(Exception):
    """The connection was lost before the statement was sent."""


def get_sqlstate(error: DBAPIError) -> str | None:
    code = getattr(error.orig, "sqlstate", None)
    return code if isinstance(code, str) else None


def get_detail(error: DBAPIError) -> str | None:
    """Return the DETAIL of a PostgreSQL error from asyncpg, SQLAlchemy's wrapper of it, or psycopg."""
    original = error.orig
    for source in (original, getattr(original, "__cause__", None)):
        detail = getattr(source, "detail", None)
        if isinstance(detail, str):
            return detail
    detail = getattr(getattr(original, "diag", None), "message_detail", None)
    return detail if isinstance(detail, str) else None


def get_driver_code(error: DBAPIError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None


def is_conflict(error: DBAPIError) -> bool:
    """Return whether the transaction failed because of a concurrent one and can be retried."""
    return (
        get_sqlstate(error) in _POSTGRESQL_CONFLICTS
        or get_driver_code(error) in _MYSQL_CONFLICTS
        or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_CONFLICTS
    )


def is_bad_value(error: DBAPIError) -> bool:
    """Return whether the database cannot store a value, such as a name with a NUL character."""
    state = get_sqlstate(error)
    if state is not None:
        return state.startswith("22")
    return any(isinstance(one, ValueError) for one in (error.orig, error.orig and error.orig.__cause__))


def is_refusal(error: DBAPIError) -> bool:
    """Return whether the database does not accept what was sent, so that sending it again has no other result."""
    return (get_sqlstate(error) or "").startswith(_POSTGRESQL_REFUSALS) or isinstance(
        error, (DataError, IntegrityError)
    )


def translate_error(error: Exception, location: str) -> Exception:
    """Return the error that callers of the store see."""
    if isinstance(error, StandfastError):
        return error
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(f"{location}: {error or type(error).__name__}")
    if is_bad_value(error):
        return InvalidInput(f"{location} cannot store this value: {error.orig}")
    return (StoreRefused if is_refusal(error) else StoreUnavailable)(f"{location}: {error.orig}")


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of one kind of database."""

    name: str
    types: schema.ColumnTypes
    begin_statements: tuple[str, ...]
    """The statements that begin a transaction.

    Databases that lock rows use READ COMMITTED, because rows that must not change are read with ``lock_clause``.
    """
    lock_clause: str = " FOR UPDATE"
    words_expression: str = ""
    clock_query: str | None = None
    """Returns the time of the server in seconds, so that leases do not depend on the clocks of clients."""
    columns_query: str | None = None
    """Returns the columns of a table, none if it does not exist. SQLAlchemy's inspector takes many times as long."""
    already_exists_codes: tuple[int, ...] = ()
    """Error codes for objects that exist already, ignored on databases that cannot roll back DDL statements."""


SQLITE = Dialect(
    name="sqlite",
    types=schema.SQLITE_TYPES,
    # The pragma with each transaction, because an engine of the caller makes connections as it likes. BEGIN IMMEDIATE
    # waits for other writers at the start of the transaction, not in the middle.
    begin_statements=(f"PRAGMA {erasure.SECURE_DELETE}", "BEGIN IMMEDIATE"),
    lock_clause="",
    columns_query="SELECT name FROM pragma_table_info(:table)",
)
POSTGRESQL = Dialect(
    name="postgresql",
    types=schema.POSTGRESQL_TYPES,
    begin_statements=("BEGIN ISOLATION LEVEL READ COMMITTED",),
    words_expression=postgres.WORDS_EXPRESSION,
    clock_query="SELECT EXTRACT(EPOCH FROM clock_timestamp())",
    columns_query="SELECT attname FROM pg_attribute"
    " WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
)
MYSQL = Dialect(
    name="mysql",
    types=schema.MYSQL_TYPES,
    begin_statements=("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"),
    clock_query="SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000e0",
    already_exists_codes=(1050, 1060, 1061),
)
DIALECTS = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL}


def get_dialect(name: str) -> Dialect:
    try:
        return DIALECTS[name]
    except KeyError:
        raise Unsupported(f"unsupported database {name!r}; supported are {', '.join(DIALECTS)}") from None


class Statements:
    """A cache of statements with table names substituted, shared by all connections of a store."""

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self.cache: dict[str, TextClause] = {}

    def __getitem__(self, sql: str) -> TextClause:
        statement = self.cache.get(sql)
        if statement is None:
            statement = self.cache[sql] = sqlalchemy.text(self.names.substitute(sql))
        return statement


class SqlConnection:
    """An SQLAlchemy connection as a :class:`~standfast.store.sql.connection.DatabaseConnection`."""

    def __init__(self, raw: sqlalchemy.Connection, dialect: Dialect, statements: Statements) -> None:
        self.raw = raw
        self.dialect = dialect
        self.lock_clause = dialect.lock_clause
        self.words_expression = dialect.words_expression
        self.statements = statements

    def fetch_one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None:
        return self.raw.execute(self.statements[sql], params).fetchone()

    def fetch_all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self.raw.execute(self.statements[sql], params).fetchall()

    def execute(self, sql: str, params: Mapping[str, Any]) -> None:
        self.raw.execute(self.statements[sql], params)

    def execute_many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None:
        if params:
            self.raw.execute(self.statements[sql], params)


class MigrationConnection(SqlConnection):
    """A connection for DDL statements. An object that an interrupted migration has already created is not an error."""

    def execute(self, sql: str, params: Mapping[str, Any]) -> None:
        if params:
            super().execute(sql, params)
            return
        try:
            self.raw.exec_driver_sql(self.statements.names.substitute(sql))
        except DBAPIError as error:
            code = error.orig.args[0] if error.orig and error.orig.args else None
            if code not in self.dialect.already_exists_codes:
                raise


T = TypeVar("T")


class TransactionRunner:
    """Runs the transactions of one store."""

    def __init__(self, dialect: Dialect, names: TableNames, clock: Clock | None) -> None:
        self.dialect = dialect
        self.clock = clock
        self.use_table_names(names)

    def use_table_names(self, names: TableNames) -> None:
        self.names = names
        self.statements = Statements(names)

    def wrap_connection(self, raw: sqlalchemy.Connection) -> SqlConnection:
        return SqlConnection(raw, self.dialect, self.statements)

    def run_in_transaction(self, raw: sqlalchemy.Connection, work: Callable[[SqlConnection], T]) -> T:
        try:
            for statement in self.dialect.begin_statements:
                raw.exec_driver_sql(statement)
            result = work(self.wrap_connection(raw))
        except BaseException:
            self.rollback(raw)
            raise
        try:
            raw.exec_driver_sql("COMMIT")
        except BaseException as error:
            self.rollback(raw)
            if isinstance(error, DBAPIError) and is_conflict(error):
                raise
            if isinstance(error, Exception):
                raise CommitOutcomeUnknown(error) from error
            raise
        return result

    def rollback(self, raw: sqlalchemy.Connection) -> None:
        """Roll back an open transaction; invalidate the connection if that fails."""
        if raw.invalidated:
            return
        try:
            if self.dialect.name == "sqlite":
                raw.connection.rollback()  # unlike the statement, this does not fail without a transaction
            else:
                raw.exec_driver_sql("ROLLBACK")
        except Exception:  # noqa: BLE001 - the caller raises the original error
            raw.invalidate()
        except BaseException:
            raw.invalidate()
            raise

    def get_time(self, connection: SqlConnection) -> float:
        if self.clock is not None:
            return self.clock()
        row = connection.fetch_one(self.dialect.clock_query, {}) if self.dialect.clock_query else None
        return float(row[0]) if row else time.time()
