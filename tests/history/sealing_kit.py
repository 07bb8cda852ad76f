"""What the tests of encrypted histories have in common."""

import hashlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from standfast.history.encryption.session import EncryptedSession
from standfast.history.stored_session import StoredSession
from standfast.store.contract import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.sqlite.backend import SqliteBackend

KEY = "a key of good length, number one"


OTHER = "a key of good length, number two"


Item = dict[str, Any]


def said(text: str, role: str = "user") -> Item:
    return {"role": role, "content": text}


def numbered(count: int, start: int = 0) -> list[Item]:
    return [said(f"item {index}") for index in range(start, start + count)]


def call(name: str) -> Item:
    return {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}


def output(name: str) -> Item:
    return {"type": "function_call_output", "call_id": name, "output": f"seen {name}"}


REASONING: Item = {"type": "reasoning", "id": "rs_1", "summary": []}


def sealed(backend: Backend, session_id: str = "s", key: Any = KEY, **options: Any) -> EncryptedSession:
    return EncryptedSession(session_id, StoredSession(session_id, backend), key, **options)


@pytest.fixture(params=["memory", "sqlite"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made: Any = MemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "h.db")
    yield made
    await made.close()


class File:
    """A database file, and someone who edits it without having the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = SqliteBackend(path)

    def session(self, session_id: str = "s", key: Any = KEY, **options: Any) -> EncryptedSession:
        return sealed(self.backend, session_id, key, **options)

    def edit(self, sql: str, *params: Any) -> None:
        with sqlite3.connect(self.path, timeout=10) as connection:
            connection.execute(sql, params)
        connection.close()

    def ask(self, sql: str, *params: Any) -> list[Any]:
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            return connection.execute(sql, params).fetchall()
        finally:
            connection.close()

    def record(self, seq: int, session_id: str = "s") -> bytes:
        found: bytes = self.ask(
            "SELECT data FROM standfast_items WHERE seq = ? AND tape ="
            " (SELECT tape FROM standfast_sessions WHERE session_id = ?)",
            seq,
            session_id,
        )[0][0]
        return found

    def put(self, seq: int, data: bytes, session_id: str = "s") -> None:
        self.edit(
            "INSERT OR REPLACE INTO standfast_items (tape, seq, data)"
            " SELECT tape, ?, ? FROM standfast_sessions WHERE session_id = ?",
            seq,
            data,
            session_id,
        )

    async def bytes(self) -> str:
        """A fingerprint of the whole file, once it is closed and the log is gone."""
        await self.backend.close()
        self.backend = SqliteBackend(self.path)
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[File]:
    made = File(tmp_path / "h.db")
    yield made
    await made.backend.close()
