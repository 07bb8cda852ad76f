"""AdvancedSQLiteSession: branches, turns and usage, with runs and in two processes."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import standfast
from factories.history import OPENAI_AGENTS_TABLES, catch_value_error, make_run_result
from factories.items import assistant_message, function_call, user_message
from standfast import AdvancedSQLiteSession, Agent, Closed, InvalidInput, NotFound, Runner, function_tool, open_store
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, ScriptedModel, closing_backend
from standfast.testing.sessions.fixtures import InterferingBackend

SRC = str(Path(standfast.__file__).parent.parent)


# --- with runs ----------------------------------------------------------------------------------


@function_tool
def weather(city: str) -> str:
    """How the weather is."""
    return f"sunny in {city}"


async def test_runs_in_branches(tmp_path: Path) -> None:
    model = ScriptedModel(
        [
            [assistant_message("Paris.")],
            [function_call("weather", "c1", city="Paris")],
            [assistant_message("Sunny.")],
            [assistant_message("The tower.")],
        ]
    )
    agent = Agent(name="guide", model=model, tools=[weather])
    session = AdvancedSQLiteSession(session_id="trip", db_path=tmp_path / "trip.db", create_tables=True)

    async def ask(text: str) -> None:
        await session.store_run_usage(await Runner.run(agent, text, session=session))

    await ask("What is the capital of France?")
    await ask("How is the weather there?")
    branch = await session.create_branch_from_turn(2)
    await ask("What is there to see?")
    assert model.calls[-1].input[0]["content"] == "What is the capital of France?"
    assert "weather" not in json.dumps(model.calls[-1].input)
    assert [turn["content"] for turn in await session.get_conversation_turns()] == [
        "What is the capital of France?",
        "What is there to see?",
    ]
    assert await session.get_tool_usage("main") == [("weather", 1, 2)]
    counted = await session.get_turn_usage(branch_id="main")
    assert [turn["requests"] for turn in counted] == [1, 2]
    assert (await session.get_session_usage() or {})["requests"] == 4
    assert (await session.get_session_usage(branch) or {})["requests"] == 1
    session.close()


# --- differences from openai-agents --------------------------------------------------------------


async def test_an_empty_branch_is_listed_and_can_be_deleted(open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("one")])
    await session.create_branch_from_turn(1, "empty")
    await session.switch_to_branch("main")
    assert [(it["branch_id"], it["message_count"]) for it in await session.list_branches()] == [
        ("main", 1),
        ("empty", 0),
    ]
    await session.switch_to_branch("empty")
    await session.delete_branch("empty", force=True)
    assert await session.create_branch_from_turn(1, "empty") == "empty"


async def test_a_branch_without_a_name_gets_a_unique_one(open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("one")])
    names = set()
    for _ in range(3):
        await session.switch_to_branch("main")
        names.add(await session.create_branch_from_turn(1))
    assert len(names) == 3
    assert all(name.startswith("branch_from_turn_1_") for name in names)


async def test_a_branch_deleted_by_another_object_is_not_found_and_not_created_again(open_advanced: Any) -> None:
    one, two = (open_advanced() for _ in range(2))
    await one.add_items([user_message("one"), user_message("two")])
    await one.create_branch_from_turn(2, "b")
    await two.switch_to_branch("b")
    await one.delete_branch("b", force=True)
    for use in (two.get_items(), two.add_items([user_message("lost")]), two.pop_item(), two.head()):
        with pytest.raises(NotFound, match="branch 'b'"):
            await use
    assert [it["branch_id"] for it in await two.list_branches()] == ["main"]
    await two.switch_to_branch("main")
    assert await two.get_items() == [user_message("one"), user_message("two")]


async def test_an_append_does_not_recreate_a_branch_that_is_deleted_meanwhile(open_advanced: Any) -> None:
    one, two = open_advanced(), open_advanced()
    await one.add_items([user_message("one"), user_message("two")])
    await one.create_branch_from_turn(2, "b")
    branch = one.inner
    branch.backend = InterferingBackend(
        branch.backend, after_method="get_session", interfere=lambda: two.delete_branch("b")
    )
    with pytest.raises(NotFound, match="branch 'b'"):
        await one.add_items([user_message("lost")])
    assert await two.inner.backend.get_session(branch.session_id) is None


async def test_clear_deletes_a_branch_that_is_created_meanwhile(open_advanced: Any) -> None:
    one, two = open_advanced(), open_advanced()
    await one.add_items([user_message("one"), user_message("two")])
    main = one.inner
    main.backend = InterferingBackend(
        main.backend, after_method="get_session", interfere=lambda: two.create_branch_from_turn(2, "b")
    )
    await one.clear_session()
    assert [it["branch_id"] for it in await two.list_branches()] == ["main"]
    assert await two.inner.backend.get_session(two.inner.session_id) is None


async def test_clear_leaves_no_branches_and_no_usage(tmp_path: Path, open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("secret"), user_message("two")])
    await session.create_branch_from_turn(2, "b")
    await session.add_items([user_message("more")])
    await session.store_run_usage(make_run_result(3))
    await session.clear_session()
    backend = SqliteBackend(tmp_path / "a.db", names=OPENAI_AGENTS_TABLES)
    async with closing_backend(backend):
        remaining = await backend.list_sessions(owner=None, query=None, limit=10, after=None)
    assert [(record.session_id, record.length, record.metadata) for record in remaining] == [("s", 0, {})]
    assert [it["branch_id"] for it in await session.list_branches()] == ["main"]


async def test_each_object_has_its_own_current_branch_and_limit(open_advanced: Any) -> None:
    one = open_advanced(session_settings={"limit": 1})
    two = open_advanced()
    await one.add_items([user_message("one"), user_message("two"), user_message("three")])
    await one.create_branch_from_turn(3, "b")
    assert await one.get_items() == [user_message("two")]
    assert len(await one.get_items(5)) == 2
    assert len(await two.get_items()) == 3


async def test_turns_have_the_time_of_writing(open_advanced: Any) -> None:
    session = open_advanced()
    session.inner.backend.clock = clock = FakeClock(1_000_000_000)
    await session.add_items([user_message("one"), assistant_message("one")])
    clock.advance(60)
    await session.add_items([user_message("two"), assistant_message("two")])
    await session.create_branch_from_turn(2, "b")
    await session.add_items([user_message("three")])
    assert [turn["timestamp"] for turn in await session.get_conversation_turns("main")] == [
        "2001-09-09 01:46:40",
        "2001-09-09 01:47:40",
    ]
    assert [turn["timestamp"] for turn in await session.get_conversation_turns()] == [
        "2001-09-09 01:46:40",
        "2001-09-09 01:47:40",
    ]


async def test_a_closed_session_raises_closed(open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("one"), user_message("two")])
    await session.create_branch_from_turn(2)
    session.close()
    session.close()
    for use in (session.get_items, session.list_branches, session.get_session_usage, session.pop_item):
        with pytest.raises(Closed):
            await use()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda session: session.create_branch_from_turn("1"),
        lambda session: session.create_branch_from_turn(None),
        lambda session: session.create_branch_from_turn(1, 5),
        lambda session: session.create_branch_from_turn(1, "  "),
        lambda session: session.find_turns_by_content(5),
        lambda session: session.store_run_usage(None),
        lambda session: session.get_items(-1),
    ],
)
async def test_invalid_arguments_change_nothing(mistake: Any, open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("one")])
    with pytest.raises(InvalidInput):
        await mistake(session)
    assert [it["branch_id"] for it in await session.list_branches()] == ["main"]
    assert await session.get_items() == [user_message("one")]


# --- concurrency --------------------------------------------------------------------------------


async def test_of_concurrent_branches_with_one_name_one_is_created(open_advanced: Any) -> None:
    sessions = [open_advanced() for _ in range(6)]
    await sessions[0].add_items([user_message("one"), user_message("two")])
    made = await asyncio.gather(*(catch_value_error(it.create_branch_from_turn(2, "b")) for it in sessions))
    assert sorted(map(str, made)) == sorted(["b", *[str(ValueError)] * 5])
    others = await asyncio.gather(*(it.create_branch_from_turn(1, f"b{n}") for n, it in enumerate(sessions)))
    assert {it["branch_id"] for it in await sessions[0].list_branches()} == {"main", "b", *others}


CHILD_PROGRAM = """
import asyncio, sys
from types import SimpleNamespace
from standfast import AdvancedSQLiteSession, Usage

async def main(path, name):
    session = AdvancedSQLiteSession(session_id="s", db_path=path)
    result = SimpleNamespace(context_wrapper=SimpleNamespace(usage=Usage(requests=1, total_tokens=1)))
    for number in range(8):
        await session.switch_to_branch("main")
        await session.create_branch_from_turn(2, f"{name}-{number}")
        await session.add_items([{"role": "user", "content": f"{name} {number}"}])
        await session.store_run_usage(result)
        await session.switch_to_branch("shared")
        await session.add_items([{"role": "user", "content": f"{name} {number}"}])
        if number % 2:
            await session.delete_branch(f"{name}-{number}")
    session.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_lose_nothing_of_each_other(tmp_path: Path, open_advanced: Any) -> None:
    path = tmp_path / "a.db"
    session = open_advanced()
    await session.add_items([user_message("one"), user_message("two")])
    await session.create_branch_from_turn(2, "shared")
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD_PROGRAM, str(path), name, env={"PYTHONPATH": SRC}
        )
        for name in ("ann", "bob")
    ]
    assert [await child.wait() for child in children] == [0, 0]
    branches = {it["branch_id"]: it["message_count"] for it in await session.list_branches()}
    expected = {f"{name}-{number}": 2 for name in ("ann", "bob") for number in range(0, 8, 2)}
    assert branches == {"main": 2, "shared": 17, **expected}
    texts = [item["content"] for item in await session.get_items()]
    assert [text for text in texts if text.startswith("ann")] == [f"ann {n}" for n in range(8)]
    assert (await session.get_session_usage() or {})["requests"] == 8
    session.close()


def test_a_process_killed_while_branching_leaves_all_or_nothing(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom standfast import AdvancedSQLiteSession\n"
        "async def main():\n"
        "    session = AdvancedSQLiteSession(session_id='s', db_path=sys.argv[1])\n"
        "    await session.add_items([{'role': 'user', 'content': 'one'}] * 2)\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        await session.switch_to_branch('main')\n"
        "        name = await session.create_branch_from_turn(2)\n"
        "        await session.delete_branch(name, force=True)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "a.db"

    async def check() -> None:
        async with open_store(f"sqlite:///{path}", names=OPENAI_AGENTS_TABLES) as store:
            listed = (await store.describe("s")).metadata.get("holdfast.branches", {})
            stored = {info.session_id for info in await store.sessions() if "branch_of" in info.metadata}
            assert set(listed.values()) == stored

    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", script, path], env={"PYTHONPATH": SRC}, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
        asyncio.run(check())


async def test_the_turn_log_is_not_listed_and_is_deleted_with_its_session(tmp_path: Path) -> None:
    session = AdvancedSQLiteSession(session_id="s", db_path=tmp_path / "a.db")
    await session.add_items([{"role": "user", "content": "one"}])
    async with open_store(f"sqlite:///{tmp_path / 'a.db'}", names=OPENAI_AGENTS_TABLES) as store:
        lookalike = f"log_{'0' * 32}"
        await store.session(lookalike).add_items([{"role": "user", "content": "mine"}])
        await store.session("t").add_items([{"role": "user", "content": "two"}])
        await session.add_items([{"role": "user", "content": "three"}])
        listed = await store.sessions()
        assert {info.session_id for info in listed} == {"s", "t", lookalike}
        paged = [await store.sessions(limit=1)]
        while paged[-1]:
            paged.append(await store.sessions(limit=1, after=paged[-1][-1].cursor))
        assert [info for page in paged for info in page] == listed
        await store.delete("s")
        remaining = await store.backend.list_sessions(owner=None, query=None, limit=9, after=None)
        assert {record.session_id for record in remaining} == {"t", lookalike}
    session.close()


# --- random programs ----------------------------------------------------------------------------


TEXTS = st.sampled_from(["alpha", "beta", "gamma alpha"])


class Program(RuleBasedStateMachine):
    """Random programs on a session with branches, compared with one list per branch."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.session = AdvancedSQLiteSession(session_id="s")
        self.branches: dict[str, list[dict[str, Any]]] = {"main": []}
        self.current = "main"
        self.made = 0

    def teardown(self) -> None:
        self.session.close()
        self.loop.close()

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(catch_value_error(awaitable))

    def turns(self, branch: str) -> list[int]:
        return [at for at, item in enumerate(self.branches[branch]) if item.get("role") == "user"]

    @rule(items=st.lists(st.one_of(TEXTS.map(user_message), TEXTS.map(assistant_message)), max_size=4))
    def add(self, items: list[dict[str, Any]]) -> None:
        self.do(self.session.add_items(items))
        self.branches[self.current] += items

    @rule()
    def pop(self) -> None:
        items = self.branches[self.current]
        assert self.do(self.session.pop_item()) == (items.pop() if items else None)

    @rule(to=st.integers(0, 3))
    def rewind(self, to: int) -> None:
        to = min(to, len(self.branches[self.current]))
        self.do(self.session.rewind(to))
        del self.branches[self.current][to:]

    @rule(turn=st.integers(0, 4))
    def branch(self, turn: int) -> None:
        self.made += 1
        name, starts = f"b{self.made}", self.turns(self.current)
        made = self.do(self.session.create_branch_from_turn(turn, name))
        if not 0 < turn <= len(starts):
            assert made is ValueError
            return
        self.branches[name] = self.branches[self.current][: starts[turn - 1]]
        self.current = name

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        self.current = data.draw(st.sampled_from(sorted(self.branches)))
        self.do(self.session.switch_to_branch(self.current))

    @rule(data=st.data(), force=st.booleans())
    def delete(self, data: st.DataObject, force: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.branches)))
        gone = self.do(self.session.delete_branch(name, force))
        if name == "main" or (name == self.current and not force):
            assert gone is ValueError
            return
        del self.branches[name]
        self.current = "main" if name == self.current else self.current

    @precondition(lambda self: self.made > 3)
    @rule()
    def clear(self) -> None:
        self.do(self.session.clear_session())
        self.branches, self.current = {"main": []}, "main"

    @invariant()
    def everything_is_as_expected(self) -> None:
        listed = {it["branch_id"]: it for it in self.do(self.session.list_branches())}
        assert set(listed) == set(self.branches)
        assert [name for name, it in listed.items() if it["is_current"]] == [self.current]
        assert self.do(self.session.get_items()) == self.branches[self.current]
        for name, items in self.branches.items():
            assert self.do(self.session.get_items(branch_id=name)) == items
            assert listed[name]["user_turns"] == len(self.turns(name))
            turns = [turn["turn"] for turn in self.do(self.session.find_turns_by_content("ALPHA", name))]
            texts = [items[at]["content"] for at in self.turns(name)]
            assert turns == [number for number, text in enumerate(texts, start=1) if "alpha" in text]


def test_random_programs() -> None:
    run_state_machine_as_test(
        Program,
        settings=settings(
            max_examples=10, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
