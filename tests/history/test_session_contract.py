"""The session contract over the backends that need no server."""

import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from damage import damage_memory, damage_sqlite
from factories.history import FourMethodSession
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.memory import MemoryBackend
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, PlainSessionContract, SessionContract, SqliteFaults, closing_backend
from standfast.testing.sessions.changes import ChangeClauses
from standfast.testing.sessions.contract import StateMachineClauses
from standfast.testing.sessions.damage import DamageClauses
from standfast.testing.sessions.plain import ResilienceClauses
from standfast.testing.sessions.search import SearchClauses


class TestOverMemory(SessionContract):
    durable = False
    examples = 4

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: closing_backend(MemoryBackend(clock=clock))

    @pytest.fixture
    def corrupt(self):
        return damage_memory

    @pytest.fixture
    def count_rows(self):
        async def count_rows(storage: MemoryBackend) -> int:
            return len(storage.tables.tapes)

        return count_rows


class SqliteFixtures:
    names = TableNames()

    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @pytest.fixture
    def reopen(self, path: Path, clock: FakeClock, faults: SqliteFaults):
        return lambda: closing_backend(SqliteBackend(path, clock=clock, connect=faults.connect, names=self.names))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.fail_after

    @pytest.fixture
    def corrupt(self):
        return damage_sqlite

    @pytest.fixture
    def count_rows(self, path: Path):
        async def count_rows(storage: SqliteBackend) -> int:
            with closing(sqlite3.connect(path)) as raw:
                return raw.execute(f"SELECT COUNT(*) FROM {self.names.items}").fetchone()[0]

        return count_rows


class TestOverSqlite(SqliteFixtures, SessionContract):
    examples = 4


class OtherTableNames(SqliteFixtures):
    names = TableNames(sessions="chat_sessions", items="messages")
    examples = 2


class TestOverSqliteWithOtherTableNames(OtherTableNames, DamageClauses, SearchClauses, StateMachineClauses):
    """Only tests that use every table: the statements are those of TestOverSqlite."""

    async def test_only_the_configured_names_are_used(self, storage: SqliteBackend, path: Path) -> None:
        session = self.open_session(storage, "s")
        await session.add_items([{"role": "user", "content": "word"}])
        await session.search("word")
        with closing(sqlite3.connect(path)) as raw:
            tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert {"chat_sessions", "messages"} <= tables
        assert not [name for name in tables if "standfast" in name]


@pytest.mark.soak
class TestWholeContractWithOtherTableNames(OtherTableNames, SessionContract):
    pass


@pytest.mark.soak
class TestManyProgramsOverSqlite(SqliteFixtures, StateMachineClauses):
    examples = 100


class SqliteInMemoryFixtures:
    durable = False
    examples = 2

    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, clock: FakeClock, faults: SqliteFaults):
        return lambda: closing_backend(SqliteBackend(":memory:", clock=clock, connect=faults.connect))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.fail_after


class TestOverSqliteInMemory(SqliteInMemoryFixtures, ResilienceClauses, ChangeClauses, StateMachineClauses):
    """Only tests that depend on connections: the statements are those of TestOverSqlite."""


@pytest.mark.soak
class TestWholeContractInMemory(SqliteInMemoryFixtures, SessionContract):
    pass


class TestThirdPartySession(PlainSessionContract):
    durable = False

    @pytest.fixture
    def reopen(self):
        @asynccontextmanager
        async def reopen():
            yield MemoryBackend()

        return reopen

    def open_session(
        self, storage: Any, session_id: str, *, settings: SessionSettings | None = None
    ) -> FourMethodSession:
        return FourMethodSession(StoredSession(session_id, storage, settings=settings))
