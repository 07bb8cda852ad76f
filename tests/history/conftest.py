from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factories.history import EncryptedFile
from openai_server import OpenAIServer
from standfast import AdvancedSQLiteSession
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.sqlite.backend import SqliteBackend


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer.running() as running:
        yield running


@pytest.fixture(params=["memory", "sqlite"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    opened: Any = MemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "h.db")
    yield opened
    await opened.close()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[EncryptedFile]:
    opened = EncryptedFile(tmp_path / "h.db")
    yield opened
    await opened.backend.close()


@pytest.fixture
def open_advanced(tmp_path: Path) -> Iterator[Callable[..., AdvancedSQLiteSession]]:
    """Opens the session ``s`` in the same file each time."""
    sessions: list[AdvancedSQLiteSession] = []

    def open_advanced(**options: Any) -> AdvancedSQLiteSession:
        sessions.append(AdvancedSQLiteSession(session_id="s", **{"db_path": tmp_path / "a.db", **options}))
        return sessions[-1]

    yield open_advanced
    for session in sessions:
        session.close()
