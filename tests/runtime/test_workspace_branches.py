"""Variables and files follow their conversation: forks, rewinds and deletion."""

import asyncio
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from typing import Any

import pytest

from factories.runtime import repeat, reply, tool_calls, wait_for
from factories.workers import list_child_pids
from standfast import Agent, Runtime, python_tool
from standfast.testing import ModelStep, ScriptedModel
from standfast.workers import PoolConfig, SessionPool, close_idle_fork_servers
from standfast.workspaces.retention import sweep_blobs

COUNT = "n = globals().get('n', 0) + 1; open('log', 'a').write(str(n)); print(n, open('log').read())"
LOOK = "print(globals().get('n'), __import__('os').path.exists('log') and open('log').read())"


def counter(pool: Any, *codes: str) -> Agent[Any]:
    steps = [tool_calls(("run_python", {"code": code}, f"c{n}")) for n, code in enumerate(codes)]
    return Agent("counter", tools=[python_tool(pool)], model=ScriptedModel([*steps, reply("done")]))


def look(pool: Any, times: int = 9) -> Agent[Any]:
    steps = [tool_calls(("run_python", {"code": LOOK}, "look")), reply("seen")] * times
    return Agent("look", tools=[python_tool(pool)], model=ScriptedModel(steps))


@pytest.fixture
async def pool():
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=4)) as pool:
        yield pool


async def finish(run: Any) -> Any:
    outcome = await wait_for(run.wait())
    assert outcome.status == "completed", outcome
    return run


async def last_output(run: Any) -> str:
    outputs = [
        item["output"]
        async for event in run.events()
        for item in event.data.get("items", ())
        if item.get("type") == "function_call_output"
    ]
    return outputs[-1].splitlines()[-1]


async def see(runtime: Runtime, session_id: str) -> str:
    return await last_output(await finish(await runtime.start("look", "look", session_id=session_id)))


async def test_a_fork_of_a_run_has_the_workspace_of_its_step(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT, COUNT, COUNT), look(pool)]) as runtime:
        run = await finish(await runtime.start("counter", "go", session_id="s"))
        made = [event.seq async for event in run.events() if event.type == "calls.made"]
    for number, step in enumerate(made, start=1):
        remaining = [COUNT] * (3 - number)
        async with Runtime.open(shared_url, agents=[counter(pool, *remaining), look(pool)]) as runtime:
            fork = await finish(await runtime.fork(run.id, at=step, session_id=f"fork-{number}"))
            assert [(await see(runtime, f"fork-{number}"))] == ["3 123"]
            before = await finish(await runtime.start("look", "look", session_id="s"))
            assert await last_output(before) == "3 123"
            assert (await fork.info()).session_id == f"fork-{number}"


async def test_a_fork_of_a_fork_is_rewound_like_any_session(shared_url, pool):
    """The outputs of calls that the first run has made are stored in the session of the last one."""
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT, COUNT), look(pool)]) as runtime:
        run = await finish(await runtime.start("counter", "go", session_id="s"))
        first, last = [event.seq async for event in run.events() if event.type == "calls.made"]
    for name, step, at in (("one", first, 1), ("two", last, 3), ("two-empty", last, 1)):
        done = Agent("counter", tools=[python_tool(pool)], model=ScriptedModel([reply("done")] * 2))
        async with Runtime.open(shared_url, agents=[done, look(pool)]) as runtime:
            fork = await finish(await runtime.fork(run.id, at=step, session_id=f"{name}-a"))
            again = await finish(await runtime.fork(fork.id, at=1, session_id=f"{name}-b"))
            assert (await again.info()).session_id == f"{name}-b"
            for session_id in (f"{name}-a", f"{name}-b"):
                await runtime.store.session(session_id).rewind(at)
                assert await see(runtime, session_id) == ("1 1" if at > 1 else "None False")


async def test_a_fork_from_the_first_step_has_what_the_program_had_run_before(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT), look(pool)]) as runtime:
        run = await finish(await runtime.start("counter", "go", session_id="s"))
        await runtime.python("s", pool).run("n = 7")
        run = await finish(await runtime.start("look", "look", session_id="s"))
        await runtime.python("s", pool).run("n = 8")
        fork = await finish(await runtime.fork(run.id, at=1, session_id="child"))
        assert await last_output(fork) == "7 1"


async def test_forks_and_rollbacks_within_a_nested_run_have_its_variables(shared_url, pool):
    def calls(name: str, call_id: str, **arguments: Any) -> ModelStep:
        return ModelStep.respond(lambda _: tool_calls((name, arguments, call_id)))

    def agents(*, inner: int = 0, outer: int = 0) -> list[Agent[Any]]:
        """Return agents whose models have given that many of their answers already."""
        count = [calls("run_python", f"c{number}", code=COUNT) for number in range(2)]
        helper = Agent("helper", tools=[python_tool(pool)], model=ScriptedModel([*count, reply("helped")][inner:]))
        steps = [calls("help", "c0", input="count"), calls("asks", "c1", code=COUNT), reply("done")]
        tools = [helper.as_tool("help", "Helps."), python_tool(pool, name="asks", needs_approval=True)]
        return [Agent("outer", tools=tools, model=ScriptedModel(steps[outer:])), look(pool)]

    async with Runtime.open(shared_url, agents=agents()) as runtime:
        run = await runtime.start("outer", "go", session_id="s")
        assert (await wait_for(run.wait())).status == "waiting"
        first, second, both = [event.seq async for event in run.events() if event.type == "calls.made"]
    for name, step, given in (("a", first, (1, 1)), ("b", second, (2, 1)), ("c", both, (3, 1))):
        async with Runtime.open(shared_url, agents=agents(inner=given[0], outer=given[1])) as runtime:
            fork = await runtime.fork(run.id, at=step, session_id=name)
            assert (await wait_for(fork.wait())).status == "waiting"
            [approval] = await runtime.approvals(run_id=fork.id)
            await runtime.decide(approval.id, "approve")
            assert await last_output(await finish(fork)) == "3 123"
            await runtime.store.session(name).rewind(1)
            assert await see(runtime, name) == "None False"
    async with Runtime.open(shared_url, agents=agents(inner=3, outer=2)) as runtime:
        other = await runtime.start("look", "look", session_id="s", on_busy="rollback")
        assert await last_output(await finish(other)) == "None False"


async def test_a_fork_from_before_the_program_went_back_has_the_variables_of_then(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT, COUNT), look(pool)]) as runtime:
        run = await finish(await runtime.start("counter", "go", session_id="s"))
        await runtime.python("s", pool).restore(1)
        assert await see(runtime, "s") == "1 1"
        session = runtime.store.session("s")
        for at, expected in ((3, "1 1"), (5, "2 12"), (6, "1 1"), (7, "1 1")):
            await session.fork(at=at, session_id=f"fork-{at}")
            assert await see(runtime, f"fork-{at}") == expected
        await runtime.fork(run.id, session_id="run")
        assert await see(runtime, "run") == "1 1"


async def test_a_fork_of_a_session_has_the_workspace_of_its_items(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT, COUNT), look(pool)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        session = runtime.store.session("s")
        items = await session.get_items()
        places = [index + 1 for index, item in enumerate(items) if item.get("type") == "function_call_output"]
        for name, at, expected in (
            ("none", 1, "None False"),
            ("one", places[0], "1 1"),
            ("two", places[1], "2 12"),
            ("all", None, "2 12"),
        ):
            await session.fork(at=at, session_id=name)
            assert await see(runtime, name) == expected
        assert await see(runtime, "s") == "2 12"


async def test_a_rewound_session_has_the_workspace_of_its_items(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT, COUNT), look(pool)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        session = runtime.store.session("s")
        items = await session.get_items()
        [first, _] = [index + 1 for index, item in enumerate(items) if item.get("type") == "function_call_output"]
        await session.rewind(first)
        assert await see(runtime, "s") == "1 1"
        await session.rewind(1)
        assert await see(runtime, "s") == "None False"


async def test_forks_of_what_was_rewound_have_its_variables_although_ids_of_calls_recur(shared_url, pool):
    """Models may use an id again: the calls of these runs all have the same one."""

    def mark(number: int) -> Agent[Any]:
        code = f"n = {number}; open('log', 'w').write('{number}')"
        steps = [tool_calls(("run_python", {"code": code}, "c0")), reply("done")]
        return Agent(f"mark-{number}", tools=[python_tool(pool)], model=ScriptedModel(steps))

    async with Runtime.open(shared_url, agents=[mark(1), mark(2), mark(3), look(pool)]) as runtime:
        session = runtime.store.session("s")
        runs = []
        for number in (1, 2, 3):
            runs.append(await finish(await runtime.start(f"mark-{number}", "go", session_id="s")))
            if number < 3:
                await session.rewind(0)
        for number, run in enumerate(runs, start=1):
            await runtime.fork(run.id, session_id=f"run-{number}")
            assert await see(runtime, f"run-{number}") == f"{number} {number}"
        for number, generation in enumerate(await session.generations(), start=1):
            await session.fork(generation=generation.number, session_id=f"part-{number}")
            assert await see(runtime, f"part-{number}") == f"{number} {number}"
        first = (await session.generations())[0].number
        await session.restore(first)
        assert await see(runtime, "s") == "3 3"  # the third call is run again after the first


async def test_a_restored_generation_runs_again_only_what_was_made_since(shared_url, pool):
    """The call of the nested agent has the id of an earlier call."""
    steps = [tool_calls(("run_python", {"code": COUNT}, "c0")), reply("helped")]
    helper = Agent("helper", tools=[python_tool(pool)], model=ScriptedModel(steps))
    steps = [tool_calls(("help", {"input": "count"}, "c0")), reply("done")]
    outer = Agent("outer", tools=[helper.as_tool("help", "Helps.")], model=ScriptedModel(steps))
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT, COUNT), outer, look(pool)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        session = runtime.store.session("s")
        await session.rewind(3)
        await finish(await runtime.start("outer", "go", session_id="s"))
        assert await see(runtime, "s") == "2 12"
        await session.restore((await session.generations())[0].number)
        assert await see(runtime, "s") == "3 123"


async def test_a_fork_survives_its_parent(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT), look(pool)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        await runtime.store.session("s").fork(session_id="child")
        await runtime.store.delete("s")
        assert await runtime.store.backend.get_workspace("session:s") is None
        assert await see(runtime, "child") == "1 1"


async def test_a_deleted_session_or_run_leaves_no_blob_behind(tmp_path, pool):
    secret = "top secret " * 30
    code = f"x = {secret!r}; open('f', 'w').write(x)"
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[counter(pool, code)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        await runtime.store.delete("s")
    async with Runtime.open(url, agents=[counter(pool, code)]) as runtime:
        run = await finish(await runtime.start("counter", "go"))
        await runtime.delete(run.id)
        assert await runtime.store.backend.list_workspaces(limit=9, after="") == []
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"top secret" not in stored


async def test_a_cleared_session_begins_with_an_empty_workspace(shared_url, pool):
    async with Runtime.open(shared_url, agents=[counter(pool, COUNT), look(pool)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        await runtime.store.session("s").clear_session()
        assert await see(runtime, "s") == "None False"


async def test_a_run_that_is_rolled_back_takes_its_workspace_back(shared_url, pool):
    agent = counter(pool, COUNT)
    waiting = Agent(
        "waiting",
        tools=[python_tool(pool), python_tool(pool, name="asks", needs_approval=True)],
        model=ScriptedModel(
            [
                tool_calls(("run_python", {"code": COUNT}, "w1")),
                tool_calls(("asks", {"code": COUNT}, "w2")),
                reply("done"),
            ]
        ),
    )
    async with Runtime.open(shared_url, agents=[agent, waiting, look(pool)]) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        run = await runtime.start("waiting", "go", session_id="s")
        assert (await wait_for(run.wait())).status == "waiting"
        other = await runtime.start("look", "look", session_id="s", on_busy="rollback")
        assert await last_output(await finish(other)) == "1 1"


async def test_forks_and_rollbacks_after_a_summary_keep_the_variables_that_it_stands_for(shared_url, pool):
    steps = [tool_calls(("asks", {"code": COUNT}, "a1")), reply("done")]
    ask = Agent("ask", tools=[python_tool(pool, name="asks", needs_approval=True)], model=ScriptedModel(steps))
    agents = [counter(pool, COUNT), look(pool), ask]
    async with Runtime.open(shared_url, agents=agents) as runtime:
        await finish(await runtime.start("counter", "go", session_id="s"))
        session = runtime.store.session("s")
        await session.replace_items([{"role": "user", "content": "The log was begun."}])
        run = await finish(await runtime.start("look", "look", session_id="s"))
        assert await last_output(run) == "1 1"
        [made] = [event.seq async for event in run.events() if event.type == "calls.made"]
        fork = await finish(await runtime.fork(run.id, at=made - 2, session_id="earlier"))
        assert await last_output(fork) == "1 1"
        await session.rewind(2)
        assert await see(runtime, "s") == "1 1"
        waiting = await runtime.start("ask", "go", session_id="s")
        assert (await wait_for(waiting.wait())).status == "waiting"
        other = await runtime.start("look", "look", session_id="s", on_busy="rollback")
        assert await last_output(await finish(other)) == "1 1"


@pytest.fixture
def own_temporary_directory(monkeypatch):
    """A directory for the temporary files of this process and of those that it starts."""
    with tempfile.TemporaryDirectory(prefix="own-") as directory:  # not below tmp_path: paths of sockets are short
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield directory


@repeat(8, 200)
async def test_forks_leave_no_process_file_or_blob_behind(tmp_path, own_temporary_directory, count):
    """Fork one run many times, let each fork compute, and delete it."""
    path = tmp_path / "app.db"
    before = list_child_pids(), len(os.listdir("/proc/self/fd"))
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool,
        Runtime.open(f"sqlite:///{path}", agents=[counter(pool, COUNT, COUNT), look(pool, count + 1)]) as runtime,
    ):
        run = await finish(await runtime.start("counter", "go", session_id="s"))
        for number in range(count):
            name = f"fork-{number}"
            await finish(await runtime.fork(run.id, session_id=name))
            code = f"import os; n += {number}; data = os.urandom(2000); open('own', 'wb').write(data)"
            steps = [tool_calls(("run_python", {"code": code}, "own")), reply("done")]
            own = Agent("own", tools=[python_tool(pool)], model=ScriptedModel(steps))
            async with Runtime.open(f"sqlite:///{path}", agents=[own]) as other:
                await finish(await other.start("own", "go", session_id=name))
            assert await see(runtime, name) == f"{2 + number} 12"
            await runtime.store.delete(name)
        assert await see(runtime, "s") == "2 12"
        await runtime.store.delete("s")
        await sweep_blobs(runtime.store.backend, before=time.time() + 60)
    close_idle_fork_servers()
    await wait_until_gone(before[0])
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert set(os.listdir(own_temporary_directory)) <= {f"standfast-{os.getuid()}"}  # the user's, which stays
    with closing(sqlite3.connect(path)) as raw:
        for table in ("blobs", "blob_data", "workspaces", "versions", "checkpoints"):
            assert raw.execute(f"SELECT COUNT(*) FROM standfast_{table}").fetchone() == (0,), table


async def wait_until_gone(known: set[int]) -> None:
    async with asyncio.timeout(60):
        while list_child_pids() - known:  # noqa: ASYNC110 - it depends on other processes
            await asyncio.sleep(0.01)
