"""Creating the tables and bringing them up to date, while others may be doing the same."""

import asyncio
import hashlib
import random
import time
from functools import partial

import sqlalchemy
from sqlalchemy.exc import DBAPIError

from holdfast.base.errors import StoreUnavailable
from holdfast.store.relational import adopting, schema
from holdfast.store.sql.dialects import MigratingConnection, SqlConnection
from holdfast.store.sql.engines import PATIENCE
from holdfast.store.sql.errors import is_conflict
from holdfast.store.sql.transactions import Transactions


class Migrating:
    """All of it inside ``run_sync``, on a connection of the store."""

    def __init__(self, transactions: Transactions, where: str, *, may_turn_on_wal: bool) -> None:
        self.transactions = transactions
        self.names, self.dialect = transactions.names, transactions.dialect
        self.where = where
        self.may_turn_on_wal = may_turn_on_wal

    def to_newest(self, raw: sqlalchemy.Connection) -> None:
        migrate = {"postgresql": self.migrate_postgresql, "mysql": self.migrate_mysql, "sqlite": self.migrate_sqlite}
        migrate[self.dialect.name](raw)

    def installed(self, raw: sqlalchemy.Connection) -> int:
        """The version of the tables, 0 when there are none."""
        table = self.as_stored(self.names.fill("{_schema}"))
        if not sqlalchemy.inspect(raw).has_table(table):
            return 0
        connection = self.transactions.adapted(raw)
        adopting.check_names(connection, self.names, partial(self.columns_of, raw))
        return schema.version(connection, where=self.where)

    def migrate_postgresql(self, raw: sqlalchemy.Connection) -> None:
        def alone(connection: SqlConnection) -> None:
            connection.one("SELECT pg_advisory_xact_lock(:key)", {"key": self.lock_number()})
            self.migrate(raw)

        self.transactions.in_transaction(raw, alone)

    def migrate_mysql(self, raw: sqlalchemy.Connection) -> None:
        """Definitions are not part of a transaction here, so the lock belongs to the connection."""
        connection = self.transactions.adapted(raw)
        lock = {"name": f"holdfast {self.lock_number()}", "patience": int(PATIENCE)}
        granted = connection.one("SELECT GET_LOCK(:name, :patience)", lock)
        if not granted or not granted[0]:
            raise StoreUnavailable(f"{self.where}: somebody else has been creating the tables for {PATIENCE} s")
        try:
            self.migrate(raw)
        finally:
            connection.one("SELECT RELEASE_LOCK(:name)", lock)

    def migrate_sqlite(self, raw: sqlalchemy.Connection) -> None:
        if self.may_turn_on_wal:
            self.turn_on_wal(raw)
        self.transactions.in_transaction(raw, lambda connection: self.migrate(raw))

    def turn_on_wal(self, raw: sqlalchemy.Connection) -> None:
        """SQLite does not wait for others when it changes the journal mode, so this does."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                raw.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
            except DBAPIError as error:
                if not is_conflict(error) or time.monotonic() > deadline:
                    raise
                sqlalchemy.util.await_only(asyncio.sleep(random.uniform(0.001, 0.02)))

    def migrate(self, raw: sqlalchemy.Connection) -> None:
        connection = MigratingConnection(raw, self.dialect, self.transactions.statements)
        now = self.transactions.now(connection)

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
