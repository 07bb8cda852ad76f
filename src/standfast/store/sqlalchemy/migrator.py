"""Create and migrate the tables of a server, even while other processes do the same."""

import asyncio
import hashlib
import random
import time
from functools import partial

import sqlalchemy
from sqlalchemy.exc import DBAPIError

from standfast.base.errors import StoreUnavailable
from standfast.store.sql import adoption, schema
from standfast.store.sql.connection import TableNames, are_left_to_owner, select_table_names
from standfast.store.sql.openai_agents_tables import ForeignTablesPolicy, OpenAIAgentsTables
from standfast.store.sqlalchemy import row_security
from standfast.store.sqlalchemy.connections import DEFAULT_TIMEOUT
from standfast.store.sqlalchemy.dialects import MigrationConnection, SqlConnection, TransactionRunner, is_conflict

_FOREIGN_ORDER = "created_at, id"  # by which SQLAlchemySession of openai-agents sorts the items of a session


class Migrator:
    """Migrates one store. All methods run inside ``run_sync``, on a connection of the store."""

    def __init__(
        self,
        transactions: TransactionRunner,
        requested_names: TableNames,
        location: str,
        *,
        may_enable_wal: bool,
        foreign_tables: ForeignTablesPolicy,
    ) -> None:
        self.transactions = transactions
        self.dialect = transactions.dialect
        self.location = location
        self.may_enable_wal = may_enable_wal
        self.requested_names = requested_names
        self.foreign_tables = foreign_tables

    @property
    def names(self) -> TableNames:
        return self.transactions.names

    def upgrade(self, raw: sqlalchemy.Connection) -> None:
        migrate = {"postgresql": self.migrate_postgresql, "mysql": self.migrate_mysql, "sqlite": self.migrate_sqlite}
        migrate[self.dialect.name](raw)

    def find_openai_agents(self, raw: sqlalchemy.Connection) -> OpenAIAgentsTables | None:
        """Return the tables of openai-agents if the backend has to use them as they are."""
        if self.foreign_tables == "adopt" or not are_left_to_owner(
            self.requested_names, partial(self.get_columns, raw)
        ):
            return None
        found = OpenAIAgentsTables(
            self.requested_names,
            location=self.location,
            order=_FOREIGN_ORDER,
            get_columns=lambda connection, table: self.get_columns(connection.raw, table),
        )
        return found if self.foreign_tables == "share" else found.refuse("a store")

    def get_installed_version(self, raw: sqlalchemy.Connection) -> int:
        """Return the schema version, 0 without tables. Decides under which names the tables are used."""
        if not self.has_schema_table(raw):
            self.transactions.use_table_names(select_table_names(self.names, partial(self.get_columns, raw)))
            if not self.has_schema_table(raw):
                return 0
        connection = self.transactions.wrap_connection(raw)
        adoption.check_table_names(connection, self.names, partial(self.get_columns, raw))
        return schema.get_version(connection, location=self.location)

    def has_schema_table(self, raw: sqlalchemy.Connection) -> bool:
        return bool(self.get_columns(raw, self.names.substitute("{_schema}")))

    def migrate_postgresql(self, raw: sqlalchemy.Connection) -> None:
        def migrate_exclusively(connection: SqlConnection) -> None:
            connection.fetch_one("SELECT pg_advisory_xact_lock(:key)", {"key": self.compute_lock_id()})
            is_protected = row_security.is_in_use(connection)
            self.migrate(raw)
            if is_protected:
                row_security.enable(connection)  # for tables that were added

        self.transactions.run_in_transaction(raw, migrate_exclusively)

    def migrate_mysql(self, raw: sqlalchemy.Connection) -> None:
        """Migrate under a named lock: MySQL commits after each DDL statement, so a transaction would not be a lock."""
        connection = self.transactions.wrap_connection(raw)
        lock = {"name": f"standfast {self.compute_lock_id()}", "timeout": int(DEFAULT_TIMEOUT)}
        granted = connection.fetch_one("SELECT GET_LOCK(:name, :timeout)", lock)
        if not granted or not granted[0]:
            raise StoreUnavailable(
                f"{self.location}: another process has held the migration lock for more than {DEFAULT_TIMEOUT} s"
            )
        try:
            self.migrate(raw)
        finally:
            connection.fetch_one("SELECT RELEASE_LOCK(:name)", lock)

    def migrate_sqlite(self, raw: sqlalchemy.Connection) -> None:
        if self.may_enable_wal:
            self.enable_wal(raw)
        self.transactions.run_in_transaction(raw, lambda connection: self.migrate(raw))

    def enable_wal(self, raw: sqlalchemy.Connection) -> None:
        """Switch to the write-ahead log.

        Retries while the file is locked, because SQLite ignores its busy timeout when it changes the journal mode.
        """
        deadline = time.monotonic() + DEFAULT_TIMEOUT
        while True:
            try:
                raw.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
            except DBAPIError as error:
                if not is_conflict(error) or time.monotonic() > deadline:
                    raise
                sqlalchemy.util.await_only(asyncio.sleep(random.uniform(0.001, 0.02)))

    def migrate(self, raw: sqlalchemy.Connection) -> None:
        connection = MigrationConnection(raw, self.dialect, self.transactions.statements)
        now = self.transactions.get_time(connection)

        def migrate() -> None:
            schema.migrate(
                connection, dialect=self.dialect.name, types=self.dialect.types, location=self.location, now=now
            )

        adoption.migrate_and_adopt(
            migrate,
            connection,
            self.names,
            partial(self.get_columns, raw),
            requested=self.requested_names,
            dialect=self.dialect.name,
            order=_FOREIGN_ORDER,
            now=now,
        )

    def get_columns(self, raw: sqlalchemy.Connection, table: str) -> list[str]:
        if self.dialect.columns_query is not None:
            return list(raw.execute(sqlalchemy.text(self.dialect.columns_query), {"table": table}).scalars())
        inspector = sqlalchemy.inspect(raw)
        return [column["name"] for column in inspector.get_columns(table)] if inspector.has_table(table) else []

    def compute_lock_id(self) -> int:
        digest = hashlib.sha256(f"standfast {self.names.prefix.lower()}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
