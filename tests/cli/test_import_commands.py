"""``standfast import`` and ``standfast export``: conversations from and for openai-agents."""

import asyncio
import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import agents
import pytest
from agents.extensions.memory.encrypt_session import EncryptedSession as TheirEncryptedSession

from standfast import EncryptedSession
from standfast.history.store import open_store

ITEMS = [{"role": "user", "content": "I am Ann."}, {"role": "assistant", "content": "Hello."}]
KEY = "your-secret-encryption-key"


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A file of openai-agents with a plain and an encrypted session."""
    plain, secret = (agents.SQLiteSession(name, tmp_path / "old.db") for name in ("ann", "sam"))
    asyncio.run(plain.add_items(ITEMS))  # type: ignore[arg-type]
    asyncio.run(TheirEncryptedSession("sam", secret, KEY).add_items(ITEMS))  # type: ignore[arg-type]
    plain.close()
    secret.close()
    return f"sqlite:///{tmp_path}/old.db"


def outcomes(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["id"], row["outcome"]) for row in rows]


def test_an_import_can_be_previewed_made_and_undone(run_json, standfast, old, monkeypatch):
    planned = run_json("import", "openai-agents", old, "--dry-run", code=1)
    assert outcomes(planned) == [("ann", "copied"), ("sam", "refused")]
    assert run_json("sessions", "list") == []
    monkeypatch.setenv("OLD_KEY", KEY)
    arguments = ("import", "openai-agents", old, "--key-env", "OLD_KEY")
    assert outcomes(run_json(*arguments)) == [("ann", "copied"), ("sam", "copied")]
    assert [item["content"] for item in run_json("sessions", "show", "ann")["items"]] == ["I am Ann.", "Hello."]
    shown = standfast(*arguments).stdout
    assert "2 sessions unchanged" in shown
    assert outcomes(run_json(*arguments, "--undo")) == [("ann", "removed"), ("sam", "removed")]
    assert run_json("sessions", "list") == []


def test_tables_are_adopted_and_given_back(run_json, standfast, old, monkeypatch):
    assert outcomes(run_json("adopt", old, "--dry-run")) == [("ann", "adopted"), ("sam", "adopted")]
    assert standfast("adopt", old, "--undo").exit_code == 2
    assert "2 sessions adopted" in standfast("adopt", old).stdout
    assert outcomes(run_json("adopt", old, "--undo")) == [("ann", "unchanged"), ("sam", "unchanged")]


def test_an_import_that_finds_another_conversation_is_a_conflict(run_json, stored_url, tmp_path):
    session = agents.SQLiteSession("user-7", tmp_path / "old.db")
    asyncio.run(session.add_items(ITEMS))  # type: ignore[arg-type]
    session.close()
    (row,) = run_json("import", "openai-agents", f"sqlite:///{tmp_path}/old.db", code=4)
    assert row["outcome"] == "differs"
    assert len(run_json("sessions", "show", "user-7")["items"]) == 4


def test_errors_say_what_to_do(standfast, old):
    assert "is not set" in standfast("import", "openai-agents", old, "--key-env", "NO_SUCH_KEY").stderr
    assert "two names" in standfast("import", "openai-agents", old, "--tables", "one").stderr
    assert standfast("import", "openai-agents", old.replace("old", "none")).exit_code == 5


def test_sessions_are_exported_for_openai_agents(run_json, standfast, stored_url, tmp_path, monkeypatch):
    async def add_encrypted() -> None:
        async with open_store(stored_url) as store:
            await EncryptedSession("sam", store.session("sam"), KEY).add_items(ITEMS)

    asyncio.run(add_encrypted())
    file = tmp_path / "for_them.db"
    assert "pass its key" in standfast("export", "openai-agents", str(file)).stderr
    monkeypatch.setenv("KEY", KEY)
    rows = run_json("export", "openai-agents", str(file), "--key-env", "KEY")
    assert {row["id"]: row["items"] for row in rows} == {"user-7": 4, "sam": 2}
    plain, secret = agents.SQLiteSession("user-7", file), agents.SQLiteSession("sam", file)
    assert asyncio.run(plain.get_items()) == run_json("sessions", "show", "user-7")["items"]
    assert asyncio.run(TheirEncryptedSession("sam", secret, KEY).get_items()) == ITEMS
    asyncio.run(plain.add_items(ITEMS))  # type: ignore[arg-type]
    plain.close()
    secret.close()
    assert standfast("export", "openai-agents", str(file), "user-7").exit_code == 4


def test_a_history_of_pydantic_ai_is_imported(run_json, tmp_path):
    golden = Path(__file__).parents[1] / "golden" / "pydantic_ai" / "messages_2.66.0.json"
    (row,) = run_json("import", "pydantic-ai", str(golden), "--as", "ann")
    assert (row["outcome"], row["items"]) == ("copied", 10)
    assert "thinking" in row["note"]
    assert len(run_json("sessions", "show", "ann")["items"]) == 10
    assert outcomes(run_json("import", "pydantic-ai", str(golden), "--as", "ann", "--undo")) == [("ann", "removed")]


@pytest.mark.parametrize(("framework", "items"), [("langgraph", {"ann": 8, "bob": 2}), ("adk", {"shop/ann/s1": 6})])
def test_other_frameworks_are_imported(run_json, tmp_path, framework, items):
    golden = max((Path(__file__).parents[1] / "golden" / framework).glob("*_*.json.gz"))
    made = json.loads(gzip.decompress(golden.read_bytes()))
    with closing(sqlite3.connect(tmp_path / "old.db")) as db:
        db.executescript("\n".join(made.get("sqlite", made)["sql"]))
    arguments = ("import", framework, f"sqlite:///{tmp_path}/old.db")
    assert {row["id"]: row["items"] for row in run_json(*arguments, "--dry-run") if row["items"]} == items
    assert run_json("sessions", "list") == []
    run_json(*arguments)
    assert {row["id"]: row["items"] for row in run_json("sessions", "list")} == items
    run_json(*arguments, "--undo")
    assert run_json("sessions", "list") == []
