"""The contract on each database behind SQLAlchemy."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.store.sql.backend import SqlBackend
from holdfast.testing import FakeClock, SqliteFaults, StoreContract, owned


class FaultyCursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> sqlite3.Cursor:
        faults: SqliteFaults = self.connection.faults
        fail_if(faults, late=False)
        super().execute(*args)
        fail_if(faults, late=True)
        return self

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        faults: SqliteFaults = self.connection.faults
        fail_if(faults, late=False)
        super().executemany(*args)
        fail_if(faults, late=True)
        return self


def fail_if(faults: SqliteFaults, *, late: bool) -> None:
    if faults.due(late=late):
        raise sqlite3.OperationalError("disk I/O error (injected)")


def faulty_connections(faults: SqliteFaults) -> type[sqlite3.Connection]:
    class FaultyConnection(sqlite3.Connection):
        def cursor(self, factory: Any = FaultyCursor) -> Any:
            return super().cursor(factory)

    FaultyConnection.faults = faults
    return FaultyConnection


async def damage(backend: SqlBackend, session_id: str, position: int, data: bytes | None) -> None:
    page = await backend.read(session_id, start=position, stop=position + 1)
    place = {"tape": page.rows[0].tape, "seq": page.rows[0].seq}
    async with backend.engine.begin() as connection:
        if data is None:
            await connection.execute(
                sqlalchemy.text("DELETE FROM holdfast_items WHERE tape = :tape AND seq = :seq"), place
            )
        else:
            await connection.execute(
                sqlalchemy.text("UPDATE holdfast_items SET data = :data WHERE tape = :tape AND seq = :seq"),
                {**place, "data": data},
            )


class SqlContract(StoreContract):
    @pytest.fixture
    def corrupt(self):
        return damage


class TestSqliteFile(SqlContract):
    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock, faults: SqliteFaults):
        return lambda: owned(
            SqlBackend.from_url(
                f"sqlite:///{tmp_path / 'store.db'}",
                clock=clock,
                engine_kwargs={"connect_args": {"factory": faulty_connections(faults)}},
            )
        )

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.after


class TestSqliteInMemory(SqlContract):
    durable = False

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: owned(SqlBackend.from_url("sqlite://", clock=clock))


class TestSqliteInMemoryOnAnEngineHandedIn(SqlContract):
    durable = False

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: owned(SqlBackend(create_async_engine("sqlite+aiosqlite://"), clock=clock, owns_engine=True))


class TestPostgres(SqlContract):
    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: owned(SqlBackend.from_url(postgres_tables_url, clock=clock))


class TestPostgresByStatements(SqlContract):
    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: owned(
            SqlBackend(create_async_engine(postgres_tables_url), owns_engine=True, clock=clock, server_side=False)
        )


class TestPostgresThroughAPooler(SqlContract):
    """With the settings for PgBouncer in transaction mode: no statement outlives its transaction."""

    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: owned(
            SqlBackend.from_url(
                f"{postgres_tables_url}&prepared_statement_cache_size=0",
                clock=clock,
                engine_kwargs={"connect_args": {"statement_cache_size": 0}, "poolclass": sqlalchemy.pool.NullPool},
            )
        )
