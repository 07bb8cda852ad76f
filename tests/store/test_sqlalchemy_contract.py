"""The store contract on each database behind SQLAlchemy."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from damage import damage_sql
from factories.migrations import list_undo_statements
from standfast.store.operations import Erase
from standfast.store.sql import schema
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.testing import FakeClock, SqliteFaults, StoreContract, closing_backend
from standfast.testing.faults import Reopen
from standfast.testing.store.atomicity import LifetimeClauses
from standfast.testing.store.concurrency import ConcurrencyClauses
from standfast.testing.store.contract import RandomCommitClauses
from standfast.testing.store.fixtures import ListStoredItems, append, make_fork, make_rewind, read_data


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
    if faults.should_fail(late=late):
        raise sqlite3.OperationalError("disk I/O error (injected)")


def faulty_connections(faults: SqliteFaults) -> type[sqlite3.Connection]:
    class FaultyConnection(sqlite3.Connection):
        def cursor(self, factory: Any = FaultyCursor) -> Any:
            return super().cursor(factory)

    FaultyConnection.faults = faults
    return FaultyConnection


async def list_stored_items(backend: SqlBackend) -> dict[tuple[int, int], bytes | None]:
    await backend.open()
    async with backend.engine.connect() as connection:
        found = await connection.execute(sqlalchemy.text("SELECT tape, seq, data FROM standfast_items"))
        return {(tape, seq): bytes(data) for tape, seq, data in found}


class SqlFixtures:
    examples = 3

    @pytest.fixture
    def corrupt(self):
        return damage_sql

    @pytest.fixture
    def list_items(self):
        return list_stored_items


class SqlContract(SqlFixtures, StoreContract):
    @pytest.mark.parametrize("held", [None, "junk", "[1]"])
    async def test_a_link_without_readable_ranges_keeps_all_items_its_fork_may_contain(
        self, backend: SqlBackend, list_items: ListStoredItems, held: str | None
    ) -> None:
        await append(backend, "parent", b"a", b"removed", tape=1)
        await backend.commit(await make_rewind(backend, "parent", 1, b"b", b"c"))
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        async with backend.engine.begin() as connection:
            await connection.execute(sqlalchemy.text("UPDATE standfast_links SET held = :held"), {"held": held})
        await backend.commit(Erase(session_id="parent", forget=True))
        assert await read_data(backend, "child") == [b"a", b"b"]
        assert await list_items(backend) == {(1, 0): b"a", (1, 1): b"removed", (1, 2): b"b"}

    async def test_forks_of_an_earlier_version_keep_their_items(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as old:
            await append(old, "parent", b"a", b"removed", tape=1)
            await old.commit(await make_rewind(old, "parent", 1, b"b"))
            await old.commit(await make_fork(old, "parent", "before", 1))
            async with old.engine.begin() as connection:
                for statement in list_undo_statements(schema.LINK_HELD_RANGES, old.engine.dialect.name):
                    await connection.execute(sqlalchemy.text(statement))
        async with reopen_durable() as new:
            await new.commit(await make_fork(new, "parent", "since", 2))
            await new.commit(Erase(session_id="parent", forget=True))
            assert await read_data(new, "before") == [b"a"]
            assert await list_stored_items(new) == {(1, 0): b"a", (1, 2): b"b"}


class SqliteFileFixtures(SqlFixtures):
    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, sqlite_tables: Path, clock: FakeClock, faults: SqliteFaults):
        return lambda: closing_backend(
            SqlBackend.from_url(
                f"sqlite:///{sqlite_tables}",
                clock=clock,
                engine_kwargs={"connect_args": {"factory": faulty_connections(faults)}},
            )
        )

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.fail_after


class TestSqliteFile(SqliteFileFixtures, SqlContract):
    examples = 1


@pytest.mark.soak
class TestRandomCommitsOnSqlite(SqliteFileFixtures, RandomCommitClauses):
    examples = 100


class SqliteInMemoryFixtures(SqlFixtures):
    durable = False

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: closing_backend(SqlBackend.from_url("sqlite://", clock=clock))


class TestSqliteInMemory(SqliteInMemoryFixtures, ConcurrencyClauses, LifetimeClauses):
    """Only tests that depend on connections: the statements are those of TestSqliteFile."""


@pytest.mark.soak
class TestRandomCommitsInMemory(SqliteInMemoryFixtures, RandomCommitClauses):
    examples = 100


class TestSqliteInMemoryOnExistingEngine(TestSqliteInMemory):
    """The same with the connection pool of SQLAlchemy's default."""

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: closing_backend(
            SqlBackend(create_async_engine("sqlite+aiosqlite://"), clock=clock, owns_engine=True)
        )


class PostgresFixtures(SqlFixtures):
    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: closing_backend(SqlBackend.from_url(postgres_tables_url, clock=clock))


class TestPostgres(PostgresFixtures, SqlContract):
    examples = 1


class PostgresStatementFixtures(SqlFixtures):
    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: closing_backend(
            SqlBackend(create_async_engine(postgres_tables_url), owns_engine=True, clock=clock, server_side=False)
        )


class TestPostgresWithStatements(PostgresStatementFixtures, SqlContract):
    examples = 1


@pytest.mark.soak
class TestRandomCommitsOnPostgres(PostgresFixtures, RandomCommitClauses):
    examples = 60


@pytest.mark.soak
class TestRandomCommitsOnPostgresWithStatements(PostgresStatementFixtures, RandomCommitClauses):
    examples = 60


class TestPostgresThroughPooler(SqlFixtures, ConcurrencyClauses, LifetimeClauses):
    """With the settings for PgBouncer in transaction mode: no statement depends on an earlier transaction.

    Only tests that depend on connections; each statement opens one, which is slow.
    """

    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: closing_backend(
            SqlBackend.from_url(
                f"{postgres_tables_url}&prepared_statement_cache_size=0",
                clock=clock,
                engine_kwargs={"connect_args": {"statement_cache_size": 0}, "poolclass": sqlalchemy.pool.NullPool},
            )
        )
