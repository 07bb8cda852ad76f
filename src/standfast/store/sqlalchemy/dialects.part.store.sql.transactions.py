"""Transactions of several statements, on a connection that is inside ``run_sync``."""

import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy
from sqlalchemy.exc import DBAPIError

from holdfast.base.clock import Clock
from holdfast.store.relational.connection import TableNames
from holdfast.store.sql.dialects import Dialect, SqlConnection, Statements
from holdfast.store.sql.errors import CommitOutcomeUnknown, is_conflict

T = TypeVar("T")


class TransactionRunner:
    """How one store talks to its database."""

    def __init__(self, dialect: Dialect, names: TableNames, clock: Clock | None) -> None:
        self.dialect = dialect
        self.names = names
        self.statements = Statements(names)
        self.clock = clock

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

    def get_time(self, connection: SqlConnection) -> float:
        if self.clock is not None:
            return self.clock()
        row = connection.fetch_one(self.dialect.clock_query, {}) if self.dialect.clock_query else None
        return float(row[0]) if row else time.time()
