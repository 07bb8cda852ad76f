"""What the tests of branches have in common."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from standfast import AdvancedSQLiteSession, Usage
from standfast.store.sql.connection import TableNames

NAMES = TableNames("agent_sessions", "agent_messages")


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(name: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}", **more}


def result(tokens: int, usage: type = Usage) -> Any:
    spent = usage(requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=spent))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens the session ``s`` in one file, as often as wanted."""
    sessions: list[AdvancedSQLiteSession] = []

    def open_one(**options: Any) -> AdvancedSQLiteSession:
        sessions.append(AdvancedSQLiteSession(session_id="s", **{"db_path": tmp_path / "a.db", **options}))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


async def outcome(awaitable: Any) -> Any:
    try:
        return await awaitable
    except ValueError:
        return ValueError
