"""Variables, files and transcript agree after every fork, rewind and restore."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from factories.runtime import repeat, reply, tool_calls, wait_for
from standfast import Agent, EncryptedSession, Runtime, open_store, python_tool
from standfast.base.errors import Unsupported
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PythonSessions, SessionPool
from standfast.workspaces.branch_points import RunPoint, SessionPoint, ViewRow, choose_at_point, choose_before_run
from standfast.workspaces.retention import prune_workspaces
from standfast.workspaces.versions import Cell, WorkspaceVersion, choose_version

RUN = """
log = globals().get("log", [])
log.append({number})
with open("log", "a") as file:
    print({number}, file=file)
"""
LOOK = "print(globals().get('log', []), [int(n) for n in open('log')] if __import__('os').path.exists('log') else [])"


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=4)) as pool:
        yield pool


def list_numbers(items: list[Any]) -> list[int]:
    """Return the numbers of the cells that a conversation has, some of them in a summary."""
    found = []
    for item in items:
        text = item["output"] if item["type"] == "function_call_output" else item.get("content", "")
        found += [int(word) for word in text.split() if word.isdecimal()]
    return found


class Talks:
    """Conversations whose calls append their numbers to a variable and to a file."""

    def __init__(self, store: Any, sessions: PythonSessions) -> None:
        self.sessions, self.count = sessions, 0
        self.summarized: dict[str, int] = {}
        self.talks: list[Any] = [store.session("first")]

    async def call(self, session: Any) -> None:
        self.count += 1
        name = f"c{self.count % 9}"  # models may use an id again
        await self.sessions.run(RUN.format(number=self.count), key=session.conversation_key, origin=f"run:{name}")
        await session.add_items(
            [
                {"type": "function_call", "call_id": name, "name": "run_python", "arguments": "{}"},
                {"type": "function_call_output", "call_id": name, "output": str(self.count)},
            ]
        )

    async def call_other(self, session: Any) -> None:
        """Add a call of another tool."""
        name = f"s{self.count % 3}"
        output = {"type": "function_call_output", "call_id": name, "output": "nothing"}
        await session.add_items([{"type": "function_call", "call_id": name, "name": "search", "arguments": ""}, output])

    async def run_as_program(self, session: Any) -> None:
        self.count += 1
        await session.add_items([{"type": "message", "role": "user", "content": str(self.count)}])
        await self.sessions.run(RUN.format(number=self.count), key=session.conversation_key)

    async def summarize(self, session: Any, length: int) -> None:
        summary = " ".join(map(str, list_numbers((await session.get_items())[:length])))
        await session.splice_items(0, length, [{"type": "message", "role": "user", "content": f"so far: {summary}"}])
        self.summarized[session.session_id] = (await session.generations())[-1].number

    async def check(self, session: Any) -> None:
        expected = list_numbers(await session.get_items())
        shown = (await self.sessions.run(LOOK, key=session.conversation_key)).as_text()
        assert shown.splitlines()[-1] == f"{expected} {expected}", shown


async def change(talks: Talks, chance: random.Random) -> None:
    """Do one of the things that can happen to a conversation."""
    session = chance.choice(talks.talks)
    length, generations = (await session.head()).length, await session.generations()
    # Items that were added since and repeat in a summary what an earlier generation has are in the history twice.
    restorable = [one for one in generations if one.number > talks.summarized.get(session.session_id, -1)]
    actions = ("call", "call", "call other", "program", "summarize", "rewind", "fork", "pop", "restore", "fork earlier")
    match chance.choice((*actions, "forget")):
        case "call":
            await talks.call(session)
        case "call other":
            await talks.call_other(session)
        case "program":
            await talks.run_as_program(session)
        case "summarize" if length:
            await talks.summarize(session, chance.randint(1, length))
        case "rewind":
            await session.rewind(chance.randint(0, length))
        case "pop" if length and (await session.get_items(1))[0]["type"] != "message":  # which leaves the workspace
            await session.pop_item()
        case "fork" if length and len(talks.talks) < 6:
            talks.talks.append(await session.fork(at=chance.choice([None, chance.randint(0, length)])))
        case "restore" if restorable:
            await session.restore(chance.choice(restorable).number)
        case "fork earlier" if generations and len(talks.talks) < 6:
            chosen = chance.choice(generations)
            at = chance.randint(0, chosen.length)
            talks.talks.append(await session.fork(at=at, generation=chosen.number))
        case "forget":  # the worker is gone, as after a crash
            talks.sessions.end_conversation(session.conversation_key)
    await talks.check(session)


@pytest.mark.parametrize("live_snapshots", [0, 3])
@repeat(short=40, full=1000)
async def test_variables_files_and_transcript_agree_after_random_operations(
    tmp_path: Path, pool: SessionPool, count: int, live_snapshots: int
) -> None:
    chance = random.Random(count)
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        sessions = PythonSessions(pool, store=store, live_snapshots=live_snapshots)
        talks = Talks(store, sessions)
        await talks.call(talks.talks[0])
        for _ in range(count):
            await change(talks, chance)
        for session in talks.talks:
            await talks.check(session)
        sessions.close()


def test_the_version_that_fits_best_is_chosen_of_all_lines() -> None:
    cells = [
        Cell(0, "1", call="a"),
        Cell(1, "2", call="b"),
        Cell(1, None),
        Cell(3, "3", call="c"),
        Cell(2, "3", call="c"),
    ]
    versions = [WorkspaceVersion(number, cell, 0.0) for number, cell in enumerate(cells, start=1)]
    for outputs, number in (("", 0), ("a", 1), ("ab", 2), ("ac", 4), ("abc", 5), ("x", 0), ("abx", 2)):
        assert choose_version(versions, list(outputs)) == number


def number_cells(*cells: Cell) -> list[WorkspaceVersion]:
    return [WorkspaceVersion(number, cell, 0.0) for number, cell in enumerate(cells, start=1)]


def test_the_version_of_a_run_is_chosen_by_its_place_and_not_by_an_id_that_recurs() -> None:
    line = number_cells(
        Cell(0, "1", call="a", run_id="r1", place=(7, 0, 1)),
        Cell(0, None, place=(7, 0, 3)),  # rewound
        Cell(2, "2", call="a", run_id="r2", place=(7, 1, 4)),
        Cell(3, "3", call="a", run_id="r2", place=(7, 1, 6)),
        Cell(0, None, place=(7, 1, 8)),
        Cell(5, "4", call="a", run_id="r3", place=(9, 0, 0)),  # after a fork
    )
    for expected, point in (
        (1, RunPoint("a", (7, 0, 3))),
        (2, RunPoint("", (7, 1, 4))),  # which is empty
        (3, RunPoint("a", (7, 1, 6))),
        (4, RunPoint("aa", (7, 1, 8))),
        # Outputs that were not in the session yet: of this run, and the first after that place.
        (3, RunPoint("a", (7, 1, 4), "r2", "a")),
        (4, RunPoint("aa", (7, 1, 6), "r2", "a")),
        (1, RunPoint("a", (7, 0, 1), "r1", "a")),
        (6, RunPoint("a", (9, 0, 1))),
        (5, RunPoint("", (9, 0, 0))),
    ):
        assert choose_at_point(line, 6, point) == expected
    assert choose_at_point([], 0, RunPoint("a", (9, 0, 0))) == 0
    assert choose_before_run(line[2:4], "r2") == 0
    assert choose_before_run(line[:4], "r2") == 2
    assert choose_before_run(line[:4], "r4") == 4
    # Versions of earlier releases have no place: the ids decide among those before the first that has one.
    old = number_cells(Cell(0, "1", call="a"), Cell(1, "2", call="b"), Cell(0, None))
    assert choose_at_point(old, 3, RunPoint("ab", (7, 0, 3))) == 2
    mixed = [*old, WorkspaceVersion(4, Cell(3, "3", call="a", place=(7, 2, 5)), 0.0)]
    assert choose_at_point(mixed, 4, RunPoint("a", (7, 1, 2))) == 1
    assert choose_at_point(mixed, 4, RunPoint("a", (7, 2, 6))) == 4


def test_a_call_belongs_to_the_output_that_was_written_next_and_a_summarized_one_to_its_summary() -> None:
    line = number_cells(
        Cell(0, "1", call="a", place=(7, 0, 1)),
        Cell(1, "2", call="a", place=(7, 1, 5)),
    )
    rows = [ViewRow(7, 4), ViewRow(7, 5), ViewRow(7, 6, "a"), ViewRow(7, 7), ViewRow(7, 8, "a")]  # the first summarizes
    for length, expected in ((5, 2), (4, 2), (3, 2), (2, 1), (1, 1), (0, 0)):
        assert choose_at_point(line, 2, SessionPoint(rows, length, 7, 1, {0: (4, 5)})) == expected
    old = number_cells(Cell(0, "1", call="a"), Cell(1, "2", call="b"))
    for length, expected in ((5, 1), (3, 1), (2, 0)):
        assert choose_at_point(old, 2, SessionPoint(rows, length, 7, 1, {0: (4, 5)})) == expected


@pytest.mark.parametrize("change", ["fork", "rewind", "pop_item"])
async def test_a_session_that_cannot_decrypt_its_workspace_says_so_and_changes_nothing(
    tmp_path: Path, pool: SessionPool, change: str
) -> None:
    url, key = f"sqlite:///{tmp_path / 'app.db'}", "k" * 32
    steps = [tool_calls(("run_python", {"code": "n = 1"}, "c1")), reply("done")]
    agent = Agent("analyst", tools=[python_tool(pool)], model=ScriptedModel(steps))
    async with Runtime.open(url, agents=[agent], encryption_key=key) as runtime, open_store(url) as store:
        run = await runtime.start("analyst", "go", session_id="talk")
        assert (await wait_for(run.wait())).status == "completed"
        outside = EncryptedSession("talk", store.session("talk"), key)
        before = await outside.get_items()
        if change == "pop_item":
            await outside.pop_item()  # the answer, which no call made
            before.pop()
        action = {"fork": outside.fork, "rewind": lambda: outside.rewind(1), "pop_item": outside.pop_item}[change]
        with pytest.raises(Unsupported, match="encryption_key="):
            await action()
        assert await outside.get_items() == before
        assert await store.backend.get_workspace("session:talk") is not None
        inside = await runtime.session("talk").fork()
        workspace = await runtime.workspace(inside.session_id)
        assert [one.name for one in workspace.variables] == ["n"]
    async with open_store(url) as store:  # items that no Python has to do with
        plain = EncryptedSession("other", store.session("other"), key)
        await plain.add_items([{"role": "user", "content": "hi"}])
        assert len(await (await plain.fork()).get_items()) == 1


async def test_a_rewound_conversation_continues_in_its_live_worker(tmp_path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        sessions = PythonSessions(pool, store=store, live_snapshots=3)
        talk = store.session("talk")
        talks = Talks(store, sessions)
        key = talk.conversation_key
        await sessions.run("import threading; lock = threading.Lock(); names = (n for n in 'abc')", key=key)
        for _ in range(3):
            await talks.call(talk)
            await sessions.save(key)
        for length, expected in ((4, [1, 2]), (2, [1])):
            await talk.rewind(length)
            # What no checkpoint can keep is there: the snapshot is of the worker itself.
            shown = (await sessions.run("print(log, lock.locked(), [int(n) for n in open('log')])", key=key)).as_text()
            assert shown == f"{expected} False {expected}"
        assert (await sessions.run("next(names)", key=key)).as_text() == "'a'"
        await sessions.save(key)
        sessions.end_conversation(key)
        await talks.check(talk)
        sessions.close()


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_content_that_was_pruned_meanwhile_is_written_again(
    tmp_path: Path, pool: SessionPool, is_waiting: bool
) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        sessions = PythonSessions(pool, store=store, live_snapshots=3)
        talk, key = store.session("talk"), store.session("talk").conversation_key
        for number in range(3):
            code = f"data = bytes([{number}]) * 100_000; lock = __import__('threading').Lock()"
            await sessions.run(code, key=key, origin=f"run:c{number}")
            await talk.add_items([{"type": "function_call_output", "call_id": f"c{number}", "output": ""}])
            await sessions.save(key)
        await talk.rewind(1)
        await prune_workspaces(store.backend, keep=1, sweep_after=0)
        # A live snapshot of the first call, whose content is in no checkpoint any more.
        assert (await sessions.run("data[0], lock.locked()", key=key)).as_text() == "(0, False)"
        if is_waiting:
            await sessions.save(key)
        async with asyncio.timeout(60):
            while (await store.backend.read_versions("session:talk"))[-1].checkpoint_id is None:
                await asyncio.sleep(0.01)
                assert not is_waiting
        sessions.end_conversation(key)
        assert "run again" not in (await sessions.run("data[0]", key=key)).as_text()
        sessions.close()
