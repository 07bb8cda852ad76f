"""Conversations that openai-agents stored come along whole, and stay as they are for openai-agents."""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agents
import pytest
from agents.extensions.memory.advanced_sqlite_session import AdvancedSQLiteSession as TheirAdvancedSession
from agents.extensions.memory.encrypt_session import EncryptedSession as TheirEncryptedSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession as TheirSQLAlchemySession
from cryptography.fernet import Fernet
from sqlalchemy.ext.asyncio import create_async_engine

from standfast import AdvancedSQLiteSession, EncryptedSession, SQLAlchemySession, SQLiteSession
from standfast.base.errors import HistoryTampered, WrongKey
from standfast.history.imports.adoption import adopt

ITEMS = [
    {"role": "user", "content": "I am Ann. é"},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "7"},
]
KEYS = {"text": "your-secret-encryption-key", "fernet": Fernet.generate_key().decode()}


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [line for line in db.iterdump() if "standfast_" not in line]


# --- encrypted sessions ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
async def test_an_encrypted_session_in_a_file_is_taken_over(tmp_path: Path, key: str) -> None:
    path = tmp_path / "old.db"
    plain = agents.SQLiteSession("ann", path)
    theirs = TheirEncryptedSession("ann", plain, key)
    await theirs.add_items(ITEMS)  # type: ignore[arg-type]
    before = dump(path)
    await adopt(f"sqlite:///{path}")
    underlying = SQLiteSession("ann", path)
    session = EncryptedSession("ann", underlying, key)
    assert await session.get_items() == ITEMS
    await session.add_items([{"role": "user", "content": "more"}])
    assert (await session.check()).ok
    assert dump(path) == before
    assert await theirs.get_items() == ITEMS
    again = EncryptedSession("ann", SQLiteSession("ann", path), key)
    assert len(await again.get_items()) == 4
    assert [item["content"] for item in await again.get_items(1)] == ["more"]
    underlying.close()
    plain.close()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_an_encrypted_session_in_a_server_database_is_taken_over(
    kind: str, postgres_url: str, tmp_path: Path
) -> None:
    url = postgres_url if kind == "postgresql" else f"sqlite+aiosqlite:///{tmp_path}/old.db"
    engine = create_async_engine(url)
    theirs = TheirEncryptedSession(
        "ann", TheirSQLAlchemySession("ann", engine=engine, create_tables=True), KEYS["text"]
    )
    await theirs.add_items(ITEMS)  # type: ignore[arg-type]
    await adopt(url)
    session = EncryptedSession("ann", SQLAlchemySession("ann", engine=engine, create_tables=True), KEYS["text"])
    assert await session.pop_item() == ITEMS[-1]
    assert await theirs.get_items() == ITEMS
    await engine.dispose()


async def test_a_wrong_key_and_mixed_histories_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    plain = agents.SQLiteSession("ann", path)
    await TheirEncryptedSession("ann", plain, KEYS["text"]).add_items(ITEMS)  # type: ignore[arg-type]
    await adopt(f"sqlite:///{path}")
    underlying = SQLiteSession("ann", path)
    with pytest.raises(WrongKey, match="another key"):
        await EncryptedSession("ann", underlying, "x" * 20).get_items()
    assert await EncryptedSession("ann", underlying, ["x" * 20, KEYS["text"]]).get_items() == ITEMS
    mixed = SQLiteSession("bob", path)
    await mixed.add_items([*(await plain.get_items()), {"role": "user", "content": "forged"}])
    with pytest.raises(HistoryTampered):
        await EncryptedSession("bob", mixed, KEYS["text"]).get_items()
    for session in (underlying, mixed, plain):
        session.close()


# --- branches and usage ---------------------------------------------------------------------------


def make_messages(*texts: str) -> list[dict[str, str]]:
    """A user message and its answer for each text."""
    return [{"role": role, "content": text} for text in texts for role in ("user", "assistant")]


def used(tokens: int) -> Any:
    usage = agents.Usage(requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))


async def make_branches(path: Path) -> TheirAdvancedSession:
    theirs = TheirAdvancedSession(session_id="ann", db_path=path, create_tables=True)
    await theirs.add_items(make_messages("one"))  # type: ignore[arg-type]
    await theirs.store_run_usage(used(10))
    await theirs.add_items(make_messages("two"))  # type: ignore[arg-type]
    await theirs.store_run_usage(used(20))
    await theirs.create_branch_from_turn(2, "alt")
    await theirs.add_items(make_messages("two, otherwise", "three"))  # type: ignore[arg-type]
    await theirs.store_run_usage(used(30))
    await theirs.create_branch_from_turn(3, "deep")
    await theirs.add_items(make_messages("three, otherwise"))  # type: ignore[arg-type]
    await theirs.switch_to_branch("main")
    await theirs.add_items(make_messages("three, main"))  # type: ignore[arg-type]
    return theirs


async def describe(session: Any) -> dict[str, Any]:
    branches = {
        entry["branch_id"]: (entry["message_count"], entry["user_turns"]) for entry in await session.list_branches()
    }
    items = {name: await session.get_items(branch_id=name) for name in sorted(branches)}
    turns = {name: await session.get_turn_usage(branch_id=name) for name in items}
    kept = ("user_turn_number", "requests", "input_tokens", "output_tokens", "total_tokens")
    return {
        "branches": branches,
        "items": items,
        "turns": {name: [{key: turn[key] for key in kept} for turn in listed] for name, listed in turns.items()},
        "usage": await session.get_session_usage(),
        "usage of alt": await session.get_session_usage("alt"),
        "tools": await session.get_conversation_by_turns("deep"),
    }


async def test_branches_and_usage_come_along(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    theirs = await make_branches(path)
    expected, before = await describe(theirs), dump(path)
    await adopt(f"sqlite:///{path}")
    ours = AdvancedSQLiteSession(session_id="ann", db_path=path)
    assert await describe(ours) == expected
    assert dump(path) == before
    await ours.switch_to_branch("alt")
    await ours.add_items(make_messages("four"))
    assert await describe(theirs) == expected
    await ours.delete_branch("deep")
    ours.close()
    again = AdvancedSQLiteSession(session_id="ann", db_path=path)
    assert [entry["branch_id"] for entry in await again.list_branches()] == ["main", "alt"]
    again.close()
    theirs.close()
