"""Branches and usage of openai-agents in an SQLite file are used together with their owner until they are adopted."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agents
import pytest
from agents.extensions.memory import AdvancedSQLiteSession as TheirSession

from standfast import AdvancedSQLiteSession, Agent, Runner, SQLiteSession, Usage
from standfast.base.errors import HistoryMoved, InvalidInput, NotAdopted, StoreUnavailable
from standfast.history.imports.adoption import adopt, undo_adoption
from standfast.testing import ScriptedModel, assistant_message


def make_message(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


CALL = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
TURN = [make_message("pre", "system"), make_message("1"), CALL, OUTPUT, make_message("a1", "assistant")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "old.db"


@pytest.fixture
def theirs(path: Path) -> Iterator[TheirSession]:
    session = TheirSession(session_id="ann", db_path=path, create_tables=True)
    yield session
    session.close()


@pytest.fixture
def ours(path: Path, theirs: TheirSession) -> Iterator[AdvancedSQLiteSession]:
    session = AdvancedSQLiteSession(session_id="ann", db_path=path)
    yield session
    session.close()


def spend(tokens: int, *, library: Any = agents) -> Any:
    usage = library.Usage(requests=1, input_tokens=tokens, output_tokens=2, total_tokens=tokens + 2)
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))


async def describe(session: Any) -> dict[str, Any]:
    """Return everything that a session says, in both libraries."""
    branches = sorted(await session.list_branches(), key=lambda entry: entry["branch_id"])
    return {
        "branches": branches,
        "items": {entry["branch_id"]: await session.get_items(branch_id=entry["branch_id"]) for entry in branches},
        "turns": await session.get_conversation_turns(),
        "by turns": await session.get_conversation_by_turns(),
        "tools": await session.get_tool_usage(),
        "found": await session.find_turns_by_content("2"),
        "usage": [await session.get_session_usage(branch) for branch in (None, "main", "alt")],
        "turn usage": await session.get_turn_usage(),
    }


def read_tables(path: Path) -> dict[str, list[Any]]:
    columns = {
        "agent_messages": "id, session_id, message_data",
        "message_structure": "session_id, message_id, branch_id, message_type, sequence_number, user_turn_number,"
        " branch_turn_number, tool_name",
        "turn_usage": "session_id, branch_id, user_turn_number, requests, input_tokens, output_tokens, total_tokens",
        "branch_reservations": "session_id, branch_id",
        "session_clear_generations": "session_id, generation",
    }
    with closing(sqlite3.connect(path)) as file:
        found = {table: file.execute(f"SELECT {names} FROM {table}").fetchall() for table, names in columns.items()}
    messages = [(*row[:2], row[2].replace('": ', '":').replace(', "', ',"')) for row in found["agent_messages"]]
    return {**found, "agent_messages": messages}


Step = Callable[[Any, Any], Awaitable[Any]]
STEPS: list[Step] = [
    lambda s, library: s.add_items(TURN),
    lambda s, library: s.store_run_usage(spend(10, library=library)),
    lambda s, library: s.add_items([make_message("2"), make_message("a2", "assistant")]),
    lambda s, library: s.store_run_usage(spend(20, library=library)),
    lambda s, library: s.create_branch_from_turn(2, "alt"),
    lambda s, library: s.add_items([make_message("2b"), make_message("b2", "assistant")]),
    lambda s, library: s.store_run_usage(spend(30, library=library)),
    lambda s, library: s.pop_item(),
    lambda s, library: s.add_items([make_message("b2 again", "assistant")]),
    lambda s, library: s.create_branch_from_content("2b", "third"),
    lambda s, library: s.add_items([make_message("2c")]),
    lambda s, library: s.switch_to_branch("main"),
    lambda s, library: s.pop_item(),
    lambda s, library: s.pop_item(),
    lambda s, library: s.add_items([make_message("2d"), CALL]),
    lambda s, library: s.delete_branch("alt"),
]


async def test_the_tables_are_those_that_openai_agents_would_have_written(path: Path, tmp_path: Path) -> None:
    """Each step is done by openai-agents in one file and by standfast in another: the rows are the same after each."""
    other = tmp_path / "ours.db"
    for file in (path, other):
        TheirSession(session_id="ann", db_path=file, create_tables=True).close()
    theirs = TheirSession(session_id="ann", db_path=path)
    ours = AdvancedSQLiteSession(session_id="ann", db_path=other)
    for number, step in enumerate(STEPS):
        expected = await step(theirs, agents)
        assert await step(ours, SimpleNamespace(Usage=Usage)) == expected, number
        tables = read_tables(path)
        tables.pop("session_clear_generations")
        ours_tables = read_tables(other)
        ours_tables.pop("session_clear_generations")
        assert ours_tables == tables, number
    reader = TheirSession(session_id="ann", db_path=other)
    found = await describe(reader)
    assert found["items"] == (await describe(theirs))["items"]
    reader.close()
    theirs.close()
    ours.close()


async def test_both_programs_use_branches_in_turn(
    path: Path, theirs: TheirSession, ours: AdvancedSQLiteSession
) -> None:
    before = None
    for number, step in enumerate(STEPS):
        session, library = ((theirs, agents), (ours, SimpleNamespace(Usage=Usage)))[number % 2]
        if before is not None and session is not before:
            # The current branch is a property of an object.
            for name in ("alt", "third", "main"):
                if any(entry["branch_id"] == name and entry["is_current"] for entry in await before.list_branches()):
                    await session.switch_to_branch(name)
        await step(session, library)
        before = session
        other = ours if session is theirs else theirs
        for name in ("main", "alt", "third"):
            assert await other.get_items(branch_id=name) == await session.get_items(branch_id=name), (number, name)
    for session in (theirs, ours):
        await session.switch_to_branch("third")  # type: ignore[attr-defined]
    with closing(sqlite3.connect(path)) as raw, raw:  # a branch that was created a year later
        raw.execute("UPDATE message_structure SET created_at = '2027-11-18 22:42:13' WHERE branch_id = 'third'")
    assert await describe(ours) == await describe(theirs)
    await ours.clear_session()
    assert await theirs.get_items() == await ours.get_items() == []
    await theirs.add_items([make_message("again")])  # type: ignore[list-item]
    assert await ours.get_items() == [make_message("again")]


async def test_a_run_and_conditional_writes_use_the_current_branch(
    theirs: TheirSession, ours: AdvancedSQLiteSession
) -> None:
    await theirs.add_items([make_message("1"), make_message("a1", "assistant"), make_message("2")])  # type: ignore[list-item]
    await ours.create_branch_from_turn(2, "alt")
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("b2")]]))
    result = await Runner.run(agent, "2b", session=ours)
    await ours.store_run_usage(result)
    await theirs.switch_to_branch("alt")
    found = await theirs.get_items()
    assert [item.get("role") for item in found] == ["user", "assistant", "user", "assistant"]
    assert await theirs.get_session_usage("alt") == await ours.get_session_usage("alt")
    assert len(await theirs.get_items(branch_id="main")) == 3
    head = await ours.head()
    await theirs.add_items([make_message("3")])  # type: ignore[list-item]
    with pytest.raises(HistoryMoved):
        await ours.add_items([make_message("too late")], expected=head)
    await ours.splice_items(0, 4, [make_message("summary")])
    assert await theirs.get_items() == [make_message("summary"), make_message("3")]
    assert len(await theirs.get_items(branch_id="main")) == 3
    with pytest.raises(NotAdopted):
        await ours.fork()


async def test_names_and_turns_are_checked(theirs: TheirSession, ours: AdvancedSQLiteSession) -> None:
    await theirs.add_items([make_message("1"), make_message("2")])  # type: ignore[list-item]
    await theirs.create_branch_from_turn(2, "alt")
    with pytest.raises(InvalidInput, match="no turn 9"):
        await ours.create_branch_from_turn(9, "x")
    for name in ("alt", "main"):
        with pytest.raises(InvalidInput, match="exist"):
            await ours.create_branch_from_turn(2, name)
    for attempt in (ours.switch_to_branch("x"), ours.delete_branch("x")):
        with pytest.raises(InvalidInput, match="unknown branch 'x'"):
            await attempt
    chosen = await ours.create_branch_from_turn(2)
    assert await theirs.get_items(branch_id=chosen) == [make_message("1")]


async def test_messages_that_are_in_no_branch_stay(path: Path, theirs: TheirSession) -> None:
    """SQLiteSession of both libraries writes messages without a branch, which AdvancedSQLiteSession does not show."""
    plain = SQLiteSession("ann", path)
    await plain.add_items([make_message("without a branch")])
    ours = AdvancedSQLiteSession(session_id="ann", db_path=path)
    await ours.add_items([make_message("1"), make_message("2")])
    assert await ours.pop_item() == make_message("2")
    assert await ours.get_items() == await theirs.get_items() == [make_message("1")]
    assert await plain.get_items() == [make_message("without a branch"), make_message("1")]
    plain.close()
    ours.close()


async def test_writers_of_both_programs_at_once(theirs: TheirSession, ours: AdvancedSQLiteSession) -> None:
    async def write(session: Any, name: str) -> None:
        for number in range(25):
            await session.add_items(
                [make_message(f"{name} {number}"), make_message(f"{name} {number} again", "assistant")]
            )

    await theirs.add_items([make_message("start")])  # type: ignore[list-item]
    await asyncio.gather(write(theirs, "theirs"), write(ours, "ours"))
    found = await ours.get_items()
    assert found == await theirs.get_items()
    for name in ("theirs", "ours"):
        texts = [item["content"] for item in found if item["content"].startswith(name)]
        assert texts == [f"{name} {number}{again}" for number in range(25) for again in ("", " again")]
    assert [turn["turn"] for turn in await theirs.get_conversation_turns()] == list(range(1, 52))


async def test_adoption_takes_the_branches_over(path: Path, theirs: TheirSession, ours: AdvancedSQLiteSession) -> None:
    await theirs.add_items([make_message("1"), make_message("2")])  # type: ignore[list-item]
    await ours.create_branch_from_turn(2, "alt")
    await ours.add_items([make_message("2b")])
    await ours.store_run_usage(spend(5))
    await adopt(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match="open the session again"):
        await ours.get_items()
    adopted = AdvancedSQLiteSession(session_id="ann", db_path=path)
    assert await adopted.get_items(branch_id="alt") == [make_message("1"), make_message("2b")]
    assert (await adopted.get_session_usage("alt") or {})["input_tokens"] == 5
    adopted.close()
    await undo_adoption(f"sqlite:///{path}")
    again = AdvancedSQLiteSession(session_id="ann", db_path=path)
    assert (
        await again.get_items(branch_id="alt")
        == await theirs.get_items(branch_id="alt")
        == [make_message("1"), make_message("2b")]
    )
    again.close()
