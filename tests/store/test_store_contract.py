"""The store contract, applied to the backends that need no server."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.memory import MemoryBackend
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.testing import FakeClock, SqliteFaults, StoreContract, owned


class TestMemory(StoreContract):
    durable = False

    @pytest.fixture
    def reopen(self, clock: FakeClock):
        return lambda: owned(MemoryBackend(clock=clock))

    @pytest.fixture
    def corrupt(self):
        async def corrupt(backend: MemoryBackend, session_id: str, position: int, data: bytes | None) -> None:
            page = await backend.read(session_id, start=position, stop=position + 1)
            backend.tables.tapes[page.rows[0].tape, page.rows[0].seq] = data

        return corrupt


class TestSqliteFile(StoreContract):
    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @pytest.fixture
    def reopen(self, path: Path, clock: FakeClock, faults: SqliteFaults):
        return lambda: owned(SqliteBackend(path, clock=clock, connect=faults.connect))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.after

    @pytest.fixture
    def corrupt(self, path: Path) -> Callable[..., object]:
        async def corrupt(backend: SqliteBackend, session_id: str, position: int, data: bytes | None) -> None:
            page = await backend.read(session_id, start=position, stop=position + 1)
            place = (page.rows[0].tape, page.rows[0].seq)
            with closing(sqlite3.connect(path)) as raw, raw:
                if data is None:
                    raw.execute("DELETE FROM holdfast_items WHERE tape = ? AND seq = ?", place)
                else:
                    raw.execute("UPDATE holdfast_items SET data = ? WHERE tape = ? AND seq = ?", (data, *place))

        return corrupt


class TestSqliteInMemory(StoreContract):
    durable = False

    @pytest.fixture
    def faults(self) -> SqliteFaults:
        return SqliteFaults()

    @pytest.fixture
    def reopen(self, clock: FakeClock, faults: SqliteFaults):
        return lambda: owned(SqliteBackend(":memory:", clock=clock, connect=faults.connect))

    @pytest.fixture
    def failing_after(self, faults: SqliteFaults):
        return faults.after
