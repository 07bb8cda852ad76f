"""The session contract, applied to sessions over the backends that need no server."""

import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from damage import damage_memory, damage_sqlite
from standfast.history.session import Session, SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.memory import MemoryBackend
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, PlainSessionContract, SessionContract, SqliteFaults, closing_backend


class TestOverMemory(SessionContract):
    durable = False

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: closing_backend(MemoryBackend(clock=clock))

    @pytest.fixture
    def corrupt(self):
        return damage_memory

    @pytest.fixture
    def count_rows(self):
        async def count_rows(place: MemoryBackend) -> int:
            return len(place.tables.tapes)

        return count_rows


class TestOverSqlite(SessionContract):
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
        async def count_rows(place: SqliteBackend) -> int:
            with closing(sqlite3.connect(path)) as raw:
                return raw.execute(f"SELECT COUNT(*) FROM {self.names.items}").fetchone()[0]

        return count_rows


class TestOverSqliteWithOtherNames(TestOverSqlite):
    names = TableNames(sessions="chat_sessions", items="messages")
    examples = 5

    async def test_only_the_configured_names_are_used(self, place: SqliteBackend, path: Path) -> None:
        session = self.open_session(place, "s")
        await session.add_items([{"role": "user", "content": "word"}])
        await session.search("word")
        with closing(sqlite3.connect(path)) as raw:
            tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert {"chat_sessions", "messages"} <= tables
        assert not [name for name in tables if "standfast" in name]


class TestOverSqliteInMemory(SessionContract):
    durable = False

    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, clock: FakeClock, faults: SqliteFaults):
        return lambda: closing_backend(SqliteBackend(":memory:", clock=clock, connect=faults.connect))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.fail_after


class FourMethods:
    """A session as a third party would write it."""

    def __init__(self, inner: Session, settings: SessionSettings | None) -> None:
        self.inner = inner
        self.session_id = inner.session_id
        self.session_settings = settings

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return await self.inner.get_items(limit)

    async def add_items(self, items: list[Any]) -> None:
        await self.inner.add_items(items)

    async def pop_item(self) -> Any:
        return await self.inner.pop_item()

    async def clear_session(self) -> None:
        await self.inner.clear_session()


class TestOfAThirdParty(PlainSessionContract):
    durable = False

    @pytest.fixture
    def reopen(self):
        @asynccontextmanager
        async def reopen():
            yield MemoryBackend()

        return reopen

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> FourMethods:
        return FourMethods(StoredSession(session_id, place, settings=settings), settings)
