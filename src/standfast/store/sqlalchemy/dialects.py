"""How the databases behind SQLAlchemy differ, as data, and the connection that the relational code sees."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy
from sqlalchemy import TextClause
from sqlalchemy.exc import DBAPIError

from holdfast.base.errors import Unsupported
from holdfast.store.relational import schema
from holdfast.store.relational.connection import TableNames
from holdfast.store.sql import postgres


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What holdfast has to know of a database."""

    name: str
    types: schema.ColumnTypes
    begin_statements: tuple[str, ...]
    """Where rows are locked, each statement sees what was committed before it; what must hold still is locked."""
    lock_clause: str = " FOR UPDATE"
    words_expression: str = ""
    clock_query: str | None = None
    """Asks for the server's time in seconds, so that leases do not depend on how well clients keep theirs."""
    already_exists_codes: tuple[int, ...] = ()
    """Codes of "that exists already", ignored in migrations where they cannot be rolled back."""


# A writer from its first moment: it waits for others when it begins, not halfway.
SQLITE = Dialect(name="sqlite", types=schema.SQLITE_TYPES, begin_statements=("BEGIN IMMEDIATE",), lock_clause="")
POSTGRESQL = Dialect(
    name="postgresql",
    types=schema.POSTGRESQL_TYPES,
    begin_statements=("BEGIN ISOLATION LEVEL READ COMMITTED",),
    words_expression=postgres.WORDS_EXPRESSION,
    clock_query="SELECT EXTRACT(EPOCH FROM clock_timestamp())",
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
        raise Unsupported(f"holdfast keeps its tables in {', '.join(DIALECTS)}; {name} is not among them") from None


class Statements:
    """Statements with their table names filled in, prepared once for all connections of a store."""

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self.cache: dict[str, TextClause] = {}

    def __getitem__(self, sql: str) -> TextClause:
        statement = self.cache.get(sql)
        if statement is None:
            statement = self.cache[sql] = sqlalchemy.text(self.names.substitute(sql))
        return statement


class SqlConnection:
    """An SQLAlchemy connection, inside ``run_sync``, that speaks the relational code's language."""

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
    """For statements that define things: they have no parameters, and some were done before an interruption."""

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
