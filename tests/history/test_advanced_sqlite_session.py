"""Branches, turns and usage of a history: alone, beside openai-agents' session, and in two processes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents.extensions.memory import AdvancedSQLiteSession as PeerSession
from agents.usage import Usage as PeerUsage
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

import holdfast
from holdfast import (
    AdvancedSQLiteSession,
    Agent,
    Closed,
    InvalidInput,
    NotFound,
    Runner,
    Usage,
    function_tool,
    open_store,
)
from holdfast.history.contract import SessionSettings
from holdfast.store.relational.connection import Names
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.testing import (
    FakeClock,
    PlainSessionContract,
    ScriptedModel,
    SessionContract,
    assistant_message,
    function_call,
    owned,
)
from holdfast.testing.session_fixtures import Meddled

NAMES = Names("agent_sessions", "agent_messages")
SRC = str(Path(holdfast.__file__).parent.parent)


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


# --- the contract -------------------------------------------------------------------------------


class InAFile:
    """Sessions in one file, which are closed with their place."""

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        @asynccontextmanager
        async def reopen():
            async with owned(SqliteBackend(tmp_path / "store.db", names=NAMES)) as backend:
                place = SimpleNamespace(backend=backend, sessions=[], clock=clock)
                yield place
                for session in place.sessions:
                    session.close()

        return reopen

    def backend_of(self, place: Any) -> SqliteBackend:
        return place.backend

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        session = AdvancedSQLiteSession(session_id=session_id, db_path=place.backend.path, session_settings=settings)
        session.inner.backend.clock = place.clock
        place.sessions.append(session)
        return session


class TestMain(InAFile, SessionContract):
    """The branch that every session begins with."""

    examples = 3


class OnABranch:
    """A session that goes to a branch of its own before anything is done with it."""

    def __init__(self, session: AdvancedSQLiteSession) -> None:
        self.session, self.session_id = session, session.session_id

    @property
    def session_settings(self) -> SessionSettings | None:
        return self.session.session_settings

    async def there(self) -> AdvancedSQLiteSession:
        try:
            await self.session.head()
        except NotFound:  # somebody else cleared the session
            await self.session.switch_to_branch("main")
        while self.session.inner.name == "main":
            try:
                await self.session.switch_to_branch("other")
            except InvalidInput:
                await self.session.add_items([user("in main")])
                try:
                    await self.session.create_branch_from_turn(1, "other")
                except InvalidInput:
                    continue  # somebody else was faster
        return self.session

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return await (await self.there()).get_items(limit)

    async def add_items(self, items: list[Any]) -> None:
        await (await self.there()).add_items(items)

    async def pop_item(self) -> Any:
        return await (await self.there()).pop_item()

    async def clear_session(self) -> None:
        await self.session.clear_session()


class TestAnotherBranch(InAFile, PlainSessionContract):
    """What is current behaves as any session does, also when several write at once."""

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return OnABranch(super().open_session(place, session_id, settings=settings))


# --- beside openai-agents -----------------------------------------------------------------------


LONG = "Hello Weather " + "x" * 200
ITEMS: list[Any] = [
    {"role": "assistant", "content": "greeting"},
    user(LONG),
    call("w"),
    call("a"),
    call("w"),
    {"type": "function_call_output", "call_id": "c", "output": "ok"},
    answer("fine"),
    user([{"type": "input_text", "text": "again 100% weather"}, {"type": "input_image", "image_url": "x"}]),
    {"type": "reasoning", "id": "r", "summary": []},
    call("ns", namespace="N"),
    {"type": "custom_tool_call", "name": "ct", "call_id": "9"},
    {"type": "mcp_call", "id": "m", "name": "mm", "server_label": "srv"},
    {"type": "mcp_list_tools", "server_label": "srv"},
    *({"type": f"{kind}_call"} for kind in ("web_search", "file_search", "computer", "code_interpreter", "shell")),
    {"type": "apply_patch_call"},
    {"type": "tool_search_call"},
    {"role": "system", "content": "sys"},
    {"type": "message", "role": "developer", "content": "dev"},
    {"type": "weird"},
    {"no": "type"},
    user(""),
    answer("last"),
    {"type": "message", "role": "user", "content": "typed"},
]


class Both:
    """One program, done with both sessions; what they answer must be the same."""

    def __init__(self, ours: AdvancedSQLiteSession, peer: PeerSession) -> None:
        self.ours, self.peer = ours, peer

    async def store_run_usage(self, tokens: int) -> None:
        await self.ours.store_run_usage(result(tokens))
        await self.peer.store_run_usage(result(tokens, PeerUsage))

    def __getattr__(self, name: str) -> Any:
        async def same(*args: Any, **kwargs: Any) -> Any:
            mine = await outcome(getattr(self.ours, name)(*args, **kwargs))
            theirs = await outcome(getattr(self.peer, name)(*args, **kwargs))
            assert comparable(mine) == comparable(theirs), f"{name}{args}"
            return mine

        return same


async def outcome(awaitable: Any) -> Any:
    try:
        return await awaitable
    except ValueError:
        return ValueError


def comparable(value: Any) -> Any:
    """Without the second in which it happened, the order of branches of one second, and details that only one has."""
    if isinstance(value, dict):
        return {
            name: bool(part)
            if name in ("timestamp", "created_at")
            else {key: count for key, count in part.items() if key in ("cached_tokens", "reasoning_tokens")}
            if str(name).endswith("_details")
            else comparable(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        parts = [comparable(part) for part in value]
        return sorted(parts, key=lambda part: part["branch_id"]) if parts and "branch_id" in parts[0] else parts
    return value


async def look(both: Both, *branches: str | None) -> None:
    await both.list_branches()
    for branch in (None, "main", "nowhere", *branches):
        for ask in ("get_conversation_turns", "get_conversation_by_turns", "get_tool_usage", "get_session_usage"):
            await getattr(both, ask)(branch)
        await both.get_items(None, branch)
        await both.get_items(2, branch)
        await both.get_turn_usage(None, branch)
        for turn in (0, 1, 2, 9):
            await both.get_turn_usage(turn, branch)
        for term in ("weather", "WEATHER", "100%", "fine", "input_text", "zzz", ""):
            await both.find_turns_by_content(term, branch)


@pytest.fixture
def both(opened: Any, tmp_path: Path) -> Iterator[Both]:
    with closing(PeerSession(session_id="s", db_path=tmp_path / "peer.db", create_tables=True)) as peer:
        yield Both(opened(create_tables=True), peer)


async def test_it_answers_as_openai_agents_does(both: Both) -> None:
    await both.get_conversation_turns()
    await both.get_session_usage()
    await both.store_run_usage(5)
    await both.get_session_usage()
    await both.add_items(ITEMS[:7])
    await both.store_run_usage(10)
    await both.add_items(ITEMS[7:])
    await both.store_run_usage(20)
    await both.store_run_usage(30)
    await look(both)
    for refused in (
        both.create_branch_from_turn(9),
        both.create_branch_from_turn(0),
        both.create_branch_from_content("zzz"),
        both.create_branch_from_turn(2, "main"),
        both.create_branch_from_turn(2, ""),
        both.switch_to_branch("nowhere"),
        both.delete_branch("main", True),
        both.delete_branch("nowhere"),
        both.delete_branch(""),
    ):
        assert await refused is ValueError
    assert await both.create_branch_from_turn(2, "x") == "x"
    await look(both, "x")
    await both.add_items([user("in x"), call("w"), answer("yes")])
    await both.store_run_usage(100)
    await look(both, "x")
    assert await both.create_branch_from_turn(2, "x") is ValueError
    assert await both.create_branch_from_content("in X", "y") == "y"
    await both.add_items([user("in y"), answer("no"), user("again")])
    await look(both, "x", "y")
    assert await both.delete_branch("y") is ValueError
    await both.switch_to_branch("main")
    await both.create_branch_from_content("weather", "z")
    await both.delete_branch("z", force=True)
    await look(both, "x", "y", "z")
    for _ in range(3):
        await both.pop_item()
        await look(both, "x", "y")
    await both.add_items([user("said again")])
    await look(both, "x", "y")
    await both.switch_to_branch("x")
    for _ in range(4):
        await both.pop_item()
        await look(both, "x", "y")
    await both.clear_session()
    assert await both.ours.get_items() == await both.peer.get_items() == []
    await both.add_items([user("new")])
    await look(both, "x")


async def test_it_works_inside_of_openai_agents_with_its_usage(opened: Any) -> None:
    session = opened()
    await session.add_items([user("hi")])
    await session.store_run_usage(result(7, PeerUsage))
    assert (await session.get_session_usage() or {})["input_tokens"] == 7


# --- with runs ----------------------------------------------------------------------------------


@function_tool
def weather(city: str) -> str:
    """How the weather is."""
    return f"sunny in {city}"


async def test_runs_in_branches(tmp_path: Path) -> None:
    model = ScriptedModel(
        [
            [assistant_message("Paris.")],
            [function_call("weather", {"city": "Paris"}, call_id="c1")],
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


# --- what openai-agents does otherwise ----------------------------------------------------------


async def test_an_empty_branch_is_a_branch(opened: Any) -> None:
    session = opened()
    await session.add_items([user("one")])
    await session.create_branch_from_turn(1, "empty")
    await session.switch_to_branch("main")
    assert [(it["branch_id"], it["message_count"]) for it in await session.list_branches()] == [
        ("main", 1),
        ("empty", 0),
    ]
    await session.switch_to_branch("empty")
    await session.delete_branch("empty", force=True)
    assert await session.create_branch_from_turn(1, "empty") == "empty"


async def test_a_name_is_made_when_none_is_given(opened: Any) -> None:
    session = opened()
    await session.add_items([user("one")])
    names = set()
    for _ in range(3):
        await session.switch_to_branch("main")
        names.add(await session.create_branch_from_turn(1))
    assert len(names) == 3
    assert all(name.startswith("branch_from_turn_1_") for name in names)


async def test_a_branch_that_somebody_deleted_is_missed_and_does_not_come_back(opened: Any) -> None:
    one, two = (opened() for _ in range(2))
    await one.add_items([user("one"), user("two")])
    await one.create_branch_from_turn(2, "b")
    await two.switch_to_branch("b")
    await one.delete_branch("b", force=True)
    for use in (two.get_items(), two.add_items([user("lost")]), two.pop_item(), two.head()):
        with pytest.raises(NotFound, match="branch 'b'"):
            await use
    assert [it["branch_id"] for it in await two.list_branches()] == ["main"]
    await two.switch_to_branch("main")
    assert await two.get_items() == [user("one"), user("two")]


async def test_an_append_does_not_bring_a_branch_back_that_is_deleted_meanwhile(opened: Any) -> None:
    one, two = opened(), opened()
    await one.add_items([user("one"), user("two")])
    await one.create_branch_from_turn(2, "b")
    branch = one.inner
    branch.backend = Meddled(branch.backend, after="record", meddle=lambda: two.delete_branch("b"))
    with pytest.raises(NotFound, match="branch 'b'"):
        await one.add_items([user("lost")])
    assert await two.inner.backend.record(branch.session_id) is None


async def test_clearing_reaches_a_branch_that_is_made_meanwhile(opened: Any) -> None:
    one, two = opened(), opened()
    await one.add_items([user("one"), user("two")])
    main = one.inner
    main.backend = Meddled(main.backend, after="record", meddle=lambda: two.create_branch_from_turn(2, "b"))
    await one.clear_session()
    assert [it["branch_id"] for it in await two.list_branches()] == ["main"]
    assert await two.inner.backend.record(two.inner.session_id) is None


async def test_deleting_and_clearing_leave_nothing_behind(tmp_path: Path, opened: Any) -> None:
    session = opened()
    await session.add_items([user("secret"), user("two")])
    await session.create_branch_from_turn(2, "b")
    await session.add_items([user("more")])
    await session.store_run_usage(result(3))
    await session.clear_session()
    backend = SqliteBackend(tmp_path / "a.db", names=NAMES)
    async with owned(backend):
        left = await backend.sessions(owner=None, query=None, limit=10, after=None)
    assert [(record.session_id, record.length, record.metadata) for record in left] == [("s", 0, {})]
    assert [it["branch_id"] for it in await session.list_branches()] == ["main"]


async def test_each_object_has_a_branch_of_its_own_and_the_limit_of_the_session(opened: Any) -> None:
    one = opened(session_settings={"limit": 1})
    two = opened()
    await one.add_items([user("one"), user("two"), user("three")])
    await one.create_branch_from_turn(3, "b")
    assert await one.get_items() == [user("two")]
    assert len(await one.get_items(5)) == 2
    assert len(await two.get_items()) == 3


async def test_turns_know_when_they_were_written(monkeypatch: pytest.MonkeyPatch, opened: Any) -> None:
    session = opened()
    for at, text in ((1_000_000_000, "one"), (1_000_000_060, "two")):
        monkeypatch.setattr("holdfast.history.branches.system_clock", lambda at=at: at)
        await session.add_items([user(text), answer(text)])
    await session.create_branch_from_turn(2, "b")
    await session.add_items([user("three")])
    assert [turn["timestamp"] for turn in await session.get_conversation_turns("main")] == [
        "2001-09-09 01:46:40",
        "2001-09-09 01:47:40",
    ]
    assert [turn["timestamp"] for turn in await session.get_conversation_turns()] == [
        "2001-09-09 01:46:40",
        "2001-09-09 01:47:40",
    ]


async def test_a_closed_session_says_so(opened: Any) -> None:
    session = opened()
    await session.add_items([user("one"), user("two")])
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
async def test_mistakes_change_nothing(mistake: Any, opened: Any) -> None:
    session = opened()
    await session.add_items([user("one")])
    with pytest.raises(InvalidInput):
        await mistake(session)
    assert [it["branch_id"] for it in await session.list_branches()] == ["main"]
    assert await session.get_items() == [user("one")]


# --- several at once ----------------------------------------------------------------------------


async def test_of_many_branches_of_one_name_there_is_one(opened: Any) -> None:
    sessions = [opened() for _ in range(6)]
    await sessions[0].add_items([user("one"), user("two")])
    made = await asyncio.gather(*(outcome(it.create_branch_from_turn(2, "b")) for it in sessions))
    assert sorted(map(str, made)) == sorted(["b", *[str(ValueError)] * 5])
    others = await asyncio.gather(*(it.create_branch_from_turn(1, f"b{n}") for n, it in enumerate(sessions)))
    assert {it["branch_id"] for it in await sessions[0].list_branches()} == {"main", "b", *others}


CHILD = """
import asyncio, sys
from types import SimpleNamespace
from holdfast import AdvancedSQLiteSession, Usage

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


async def test_two_processes_lose_nothing_of_each_other(tmp_path: Path, opened: Any) -> None:
    path = tmp_path / "a.db"
    session = opened()
    await session.add_items([user("one"), user("two")])
    await session.create_branch_from_turn(2, "shared")
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, str(path), name, env={"PYTHONPATH": SRC})
        for name in ("ann", "bob")
    ]
    assert [await child.wait() for child in children] == [0, 0]
    branches = {it["branch_id"]: it["message_count"] for it in await session.list_branches()}
    kept = {f"{name}-{number}": 2 for name in ("ann", "bob") for number in range(0, 8, 2)}
    assert branches == {"main": 2, "shared": 17, **kept}
    said = [item["content"] for item in await session.get_items()]
    assert [text for text in said if text.startswith("ann")] == [f"ann {n}" for n in range(8)]
    assert (await session.get_session_usage() or {})["requests"] == 8
    session.close()


def test_a_process_killed_while_branching_leaves_all_or_nothing(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom holdfast import AdvancedSQLiteSession\n"
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
        async with open_store(f"sqlite:///{path}", names=NAMES) as store:
            noted = (await store.describe("s")).metadata.get("holdfast.branches", {})
            stored = {info.session_id for info in await store.sessions() if "branch_of" in info.metadata}
            assert set(noted.values()) == stored

    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", script, path], env={"PYTHONPATH": SRC}, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
        asyncio.run(check())


async def test_what_is_noted_about_a_session_is_not_listed_as_one_and_goes_with_it(tmp_path: Path) -> None:
    session = AdvancedSQLiteSession(session_id="s", db_path=tmp_path / "a.db")
    await session.add_items([{"role": "user", "content": "one"}])
    async with open_store(f"sqlite:///{tmp_path / 'a.db'}", names=NAMES) as store:
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
        left = await store.backend.sessions(owner=None, query=None, limit=9, after=None)
        assert {record.session_id for record in left} == {"t", lookalike}
    session.close()


# --- random programs ----------------------------------------------------------------------------


TEXTS = st.sampled_from(["alpha", "beta", "gamma alpha"])


class Program(RuleBasedStateMachine):
    """Branches are lists that are copied; a session must not be told from that."""

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
        return self.loop.run_until_complete(outcome(awaitable))

    def turns(self, branch: str) -> list[int]:
        return [at for at, item in enumerate(self.branches[branch]) if item.get("role") == "user"]

    @rule(said=st.lists(st.one_of(TEXTS.map(user), TEXTS.map(answer)), max_size=4))
    def add(self, said: list[dict[str, Any]]) -> None:
        self.do(self.session.add_items(said))
        self.branches[self.current] += said

    @rule()
    def pop(self) -> None:
        kept = self.branches[self.current]
        assert self.do(self.session.pop_item()) == (kept.pop() if kept else None)

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
            found = [turn["turn"] for turn in self.do(self.session.find_turns_by_content("ALPHA", name))]
            said = [items[at]["content"] for at in self.turns(name)]
            assert found == [number for number, text in enumerate(said, start=1) if "alpha" in text]


def test_random_programs() -> None:
    run_state_machine_as_test(
        Program,
        settings=settings(
            max_examples=20, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
