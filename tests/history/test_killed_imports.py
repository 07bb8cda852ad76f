"""An import that is killed at any commit is completed by running it again, and can be undone."""

import asyncio
import os
import signal
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agents
import pytest
from agents.extensions.memory import AdvancedSQLiteSession as TheirSession

from standfast.history.compat.advanced_sqlite import AdvancedSQLiteSession
from standfast.history.imports.copies import CopiedSession, copy_sessions, remove_copies
from standfast.history.imports.openai_agents import read_openai_agents
from standfast.history.store import Store, open_store
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend


def make_message(text: str) -> Any:
    return {"role": "user", "content": text}


async def make_source(path: Path) -> None:
    plain = agents.SQLiteSession("plain", path)
    await plain.add_items([make_message("p1"), make_message("p2")])
    plain.close()
    branched = TheirSession(session_id="branched", db_path=path, create_tables=True)
    await branched.add_items([make_message("1"), make_message("2")])
    usage = agents.Usage(requests=1, input_tokens=7, output_tokens=2, total_tokens=9)
    await branched.store_run_usage(SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage)))  # type: ignore[arg-type]
    for name in ("alt", "third"):
        await branched.switch_to_branch("main")
        await branched.create_branch_from_turn(2, name)
        await branched.add_items([make_message(f"{name} 2"), make_message(f"{name} 3")])
    branched.close()


async def copy(source: Path, target: Path) -> list[CopiedSession]:
    async with open_store(f"sqlite:///{target}?tables=agent_sessions,agent_messages") as store:
        return await copy_sessions(read_openai_agents(f"sqlite:///{source}"), store, framework="openai-agents")


async def describe(target: Path) -> dict[str, Any]:
    found = {}
    for name in ("plain", "branched"):
        session = AdvancedSQLiteSession(session_id=name, db_path=target)
        branches = sorted(entry["branch_id"] for entry in await session.list_branches())
        found[name] = {branch: await session.get_items(branch_id=branch) for branch in branches}
        found[f"usage of {name}"] = await session.get_session_usage()  # type: ignore[assignment]
        session.close()
    return found


def copy_until_killed(source: Path, target: Path, transactions: int) -> bool:
    """Copy in another process that is killed at the beginning of a transaction. Return whether it got to its end."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code == 0
    left = transactions

    def trace(statement: str) -> None:
        nonlocal left
        left -= statement == "BEGIN IMMEDIATE"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(*args, **options)
        connection.set_trace_callback(trace)
        return connection

    async def copy_traced() -> None:
        names = TableNames("agent_sessions", "agent_messages")
        store = Store(SqliteBackend(str(target), names=names, connect=connect_traced))
        await copy_sessions(read_openai_agents(f"sqlite:///{source}"), store, framework="openai-agents")

    code = 1
    try:
        asyncio.run(copy_traced())
        code = 0
    finally:
        os._exit(code)


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    await make_source(tmp_path / "old.db")
    return tmp_path / "old.db"


def test_an_import_that_was_killed_is_completed_and_undone(tmp_path: Path) -> None:
    source = tmp_path / "old.db"
    asyncio.run(make_source(source))
    asyncio.run(copy(source, tmp_path / "whole.db"))
    expected = asyncio.run(describe(tmp_path / "whole.db"))
    assert len(expected["branched"]) == 3
    transactions, ended = 1, False
    while not ended:
        target = tmp_path / f"{transactions}.db"
        ended = copy_until_killed(source, target, transactions)
        asyncio.run(check_copy(source, target, expected, transactions))
        transactions += 1
    assert transactions > 6


async def check_copy(source: Path, target: Path, expected: dict[str, Any], transactions: int) -> None:
    await copy(source, target)
    assert await describe(target) == expected, transactions
    assert {entry.outcome for entry in await copy(source, target)} == {"unchanged"}
    async with open_store(f"sqlite:///{target}?tables=agent_sessions,agent_messages") as store:
        removed = await remove_copies(store, framework="openai-agents")
        assert [(entry.session_id, entry.outcome) for entry in removed] == [
            ("branched", "removed"),
            ("plain", "removed"),
        ], transactions
        assert await store.sessions() == []


async def test_branches_that_were_added_since_are_copied_and_deleted_ones_stay_deleted(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new.db"
    await copy(source, target)
    ours = AdvancedSQLiteSession(session_id="branched", db_path=target)
    await ours.delete_branch("third")
    theirs = TheirSession(session_id="branched", db_path=source)
    await theirs.create_branch_from_turn(2, "new")
    await theirs.add_items([make_message("new 2")])
    await theirs.switch_to_branch("alt")
    await theirs.add_items([make_message("alt 4")])
    [branched] = [entry for entry in await copy(source, target) if entry.session_id == "branched"]
    assert (branched.outcome, branched.branches) == ("extended", 2)
    assert sorted(entry["branch_id"] for entry in await ours.list_branches()) == ["alt", "main", "new"]
    for name in ("alt", "new"):
        assert await ours.get_items(branch_id=name) == await theirs.get_items(branch_id=name)
    await ours.switch_to_branch("alt")
    await ours.add_items([make_message("continued here")])
    await theirs.add_items([make_message("alt 5")])
    [branched] = [entry for entry in await copy(source, target) if entry.session_id == "branched"]
    assert branched.outcome == "differs"
    assert "alt" in branched.note
    ours.close()
    theirs.close()
