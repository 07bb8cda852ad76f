"""The store contract on the backends that need no server."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from damage import damage_memory, damage_sqlite
from standfast.store.memory import MemoryBackend
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, SqliteFaults, StoreContract, closing_backend
from standfast.testing.store.atomicity import LifetimeClauses
from standfast.testing.store.concurrency import ConcurrencyClauses
from standfast.testing.store.contract import RandomCommitClauses


class TestMemory(StoreContract):
    durable = False
    examples = 1  # it is the reference itself

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: closing_backend(MemoryBackend(clock=clock))

    @pytest.fixture
    def corrupt(self):
        return damage_memory

    @pytest.fixture
    def list_items(self):
        async def list_items(backend: MemoryBackend) -> dict[tuple[int, int], bytes | None]:
            return dict(backend.tables.tapes)

        return list_items


class SqliteFileFixtures:
    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock, faults: SqliteFaults):
        return lambda: closing_backend(SqliteBackend(tmp_path / "store.db", clock=clock, connect=faults.connect))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.fail_after

    @pytest.fixture
    def corrupt(self):
        return damage_sqlite

    @pytest.fixture
    def list_items(self, tmp_path: Path):
        async def list_items(backend: SqliteBackend) -> dict[tuple[int, int], bytes | None]:
            with closing(sqlite3.connect(tmp_path / "store.db")) as raw:
                found = raw.execute("SELECT tape, seq, data FROM standfast_items").fetchall()
            return {(tape, seq): data for tape, seq, data in found}

        return list_items


class TestSqliteFile(SqliteFileFixtures, StoreContract):
    examples = 3


@pytest.mark.soak
class TestRandomCommitsOnSqlite(SqliteFileFixtures, RandomCommitClauses):
    examples = 200


class TestSqliteInMemory(ConcurrencyClauses, LifetimeClauses, RandomCommitClauses):
    """Only tests that depend on connections, and random ones: the statements are those of TestSqliteFile."""

    durable = False
    examples = 3

    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, clock: FakeClock, faults: SqliteFaults):
        return lambda: closing_backend(SqliteBackend(":memory:", clock=clock, connect=faults.connect))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.fail_after
