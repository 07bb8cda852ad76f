"""Whatever happens to a conversation, its variables, its files and its transcript agree."""

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


class Talks:
    """Conversations whose calls append their numbers to a variable and to a file."""

    def __init__(self, store: Any, sessions: PythonSessions) -> None:
        self.sessions, self.count = sessions, 0
        self.talks: list[Any] = [store.session("first")]

    async def call(self, session: Any) -> None:
        self.count += 1
        name = f"c{self.count}"
        await self.sessions.run(RUN.format(number=self.count), key=session.conversation_key, origin=f"run:{name}")
        await session.add_items(
            [
                {"type": "function_call", "call_id": name, "name": "run_python", "arguments": "{}"},
                {"type": "function_call_output", "call_id": name, "output": str(self.count)},
            ]
        )

    async def check(self, session: Any) -> None:
        items = await session.get_items()
        expected = [int(item["output"]) for item in items if item["type"] == "function_call_output"]
        shown = (await self.sessions.run(LOOK, key=session.conversation_key)).as_text()
        assert shown.splitlines()[-1] == f"{expected} {expected}", shown
        assert "different output" not in shown


async def change(talks: Talks, chance: random.Random) -> None:
    """Do one of the things that can happen to a conversation."""
    session = chance.choice(talks.talks)
    length, generations = (await session.head()).length, await session.generations()
    match chance.choice(("call", "call", "rewind", "fork", "pop", "restore", "fork earlier", "forget")):
        case "call":
            await talks.call(session)
        case "rewind":
            await session.rewind(chance.randint(0, length))
        case "pop":
            await session.pop_item()
        case "fork" if length and len(talks.talks) < 6:
            talks.talks.append(await session.fork(at=chance.choice([None, chance.randint(0, length)])))
        case "restore" if generations:
            await session.restore(chance.choice(generations).number)
        case "fork earlier" if generations and len(talks.talks) < 6:
            chosen = chance.choice(generations)
            at = chance.randint(0, chosen.length)
            talks.talks.append(await session.fork(at=at, generation=chosen.number))
        case "forget":  # the worker is gone, as after a crash
            talks.sessions.end_conversation(session.conversation_key)
    await talks.check(session)


@pytest.mark.parametrize("live_snapshots", [0, 3])
@repeat(short=40, full=1000)
async def test_variables_files_and_transcript_agree_whatever_happens(
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


async def test_a_rewound_conversation_goes_on_in_the_worker_that_is_there(tmp_path: Path, pool: SessionPool) -> None:
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
