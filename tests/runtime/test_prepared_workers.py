"""``python_tool(prepare=)``: code that runs once in each new interpreter, before its first call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from factories.runtime import reply, tool_calls, wait_for
from standfast import Agent, Runner, Runtime, SQLiteSession, UserError, python_tool
from standfast.store.operations import DropCheckpoint
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PrepareFailed, PythonSessions, SessionConfig, SessionPool

PREPARE = """
import random
started = [1]
lock = __import__('threading').Lock()
lucky = random.random()
unused = 'removed later'
def double(x): return 2 * x
open('table.csv', 'w').write('a,b')
open('unused.csv', 'w').write('')
"""
COUNT = "started.append(len(started) + 1); started"


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        yield pool


def make_agent(sessions: Any, *codes: str, prepare: str = PREPARE) -> Agent[Any]:
    """An agent whose model runs these pieces of code, one a turn, and then says that it is done."""
    steps = [tool_calls(("run_python", {"code": code}, f"c{n}")) for n, code in enumerate(codes)]
    tool = python_tool(sessions, prepare=prepare)
    return Agent("analyst", tools=[tool], model=ScriptedModel([*steps, reply("done")]))


async def ask(sessions: Any, *codes: str, prepare: str = PREPARE, **options: Any) -> list[str]:
    """Run codes in a run that is not durable; return the last line of each output."""
    result = await Runner.run(make_agent(sessions, *codes, prepare=prepare), "go", **options)
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    return [str(output).splitlines()[-1] for output in outputs]


@asynccontextmanager
async def machine(
    url: str, *codes: str, prepare: str = PREPARE, environment: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Runtime]:
    """A runtime with a pool of its own, and an agent that runs these codes."""
    config = SessionConfig(environment=environment or {})
    async with (
        SessionPool(PoolConfig(session=config, min_idle=0, max_sessions=3)) as pool,
        Runtime.open(url, agents=[make_agent(PythonSessions(pool, **options), *codes, prepare=prepare)]) as runtime,
    ):
        yield runtime


async def ask_durably(runtime: Runtime, **options: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the outputs of a run, and what was restored for it."""
    run = await runtime.start("analyst", "go", session_id="s", **options)
    outcome = await wait_for(run.wait())
    assert outcome.status == "completed", outcome
    events = [event async for event in run.events()]
    outputs = [item["output"] for event in events for item in event.data.get("items", ()) if "output" in item]
    return outputs, [event.data for event in events if event.type == "workspace.restored"]


async def test_it_runs_once_before_the_first_call_and_the_model_does_not_see_it(pool: SessionPool) -> None:
    assert await ask(pool, "double(21)", COUNT, prepare=PREPARE + "print('hello')") == ["42", "[1, 2]"]


async def test_it_runs_in_the_interpreter_of_each_conversation(pool: SessionPool) -> None:
    for name in ("ann", "bob"):
        session = SQLiteSession(name)
        assert await ask(pool, COUNT, session=session) == ["[1, 2]"]
        assert await ask(pool, COUNT, session=session) == ["[1, 2, 3]"]
        session.close()


async def test_it_runs_again_in_the_interpreter_that_replaces_one_that_has_ended(pool: SessionPool) -> None:
    _, lost, output = await ask(pool, COUNT, "import os; os._exit(1)", COUNT)
    assert "lost" in lost
    assert output == "[1, 2]"


async def test_two_tools_of_one_pool_prepare_the_same_interpreter(pool: SessionPool) -> None:
    session = SQLiteSession("s")
    assert await ask(pool, "a", session=session, prepare="a = 1") == ["1"]
    assert await ask(pool, "a, b", session=session, prepare="b = a + 1") == ["(1, 2)"]
    session.close()


@pytest.mark.parametrize("prepare", ["1 / 0", "while True: pass", "def"])
async def test_code_that_fails_fails_the_run_and_is_run_anew_by_the_next_one(pool: SessionPool, prepare: str) -> None:
    sessions, session = PythonSessions(pool), SQLiteSession("s")
    failing = Agent(
        "analyst",
        tools=[python_tool(sessions, prepare=f"x = 1\n{prepare}", timeout=1)],
        model=ScriptedModel([tool_calls(("run_python", {"code": "x"}, "c0"))]),
    )
    with pytest.raises(UserError, match="prepares the Python session") as raised:
        await Runner.run(failing, "go", session=session)
    assert isinstance(raised.value.__cause__, PrepareFailed)
    assert await ask(sessions, "'x' in globals()", session=session, prepare="") == ["False"]
    session.close()


async def test_the_durable_run_of_code_that_fails_has_failed(shared_url: str) -> None:
    async with machine(shared_url, "x", prepare="1 / 0") as runtime:
        run = await runtime.start("analyst", "go")
        outcome = await wait_for(run.wait())
        assert outcome.status == "failed"
        assert "ZeroDivisionError" in str(outcome.error)
        assert await runtime.store.backend.read_versions(f"run:{run.id}") == []


@pytest.mark.parametrize("dropped", [(), (2,), (1, 2)])
async def test_what_a_replay_restores_is_as_it_was(shared_url: str, dropped: tuple[int, ...]) -> None:
    """From the latest checkpoint, from the one before it, and from none."""
    clean = "del unused; import os; os.remove('unused.csv'); started.append(7)"
    look = "started, double(4), lucky == kept, 'unused' in globals(), sorted(os.listdir('.'))"
    async with machine(shared_url, clean, "kept = lucky; random.random()") as runtime:
        await ask_durably(runtime)
        for version in dropped:
            await runtime.store.backend.commit(DropCheckpoint(key="session:s", version=version))
    async with machine(shared_url, look) as runtime:
        [output], [restored] = await ask_durably(runtime)
        assert output.splitlines()[-1] == "([1, 7], 8, True, False, ['table.csv'])"
        assert (restored["differs"], restored["missing"]) == ([], [])
        assert list(restored["unkept"]) == ([] if dropped == (1, 2) else ["lock"])
        assert ("as they were before the first call: lock" in output) == (dropped != (1, 2))


async def test_what_no_checkpoint_keeps_is_there_again_in_a_restored_interpreter(shared_url: str) -> None:
    settings = "import decimal; decimal.getcontext().prec = 3; lock = __import__('threading').Lock()"
    async with machine(shared_url, "x = 1", prepare=settings) as runtime:
        await ask_durably(runtime)
    async with machine(shared_url, "x, decimal.Decimal(1) / 3, lock.locked()", prepare=settings) as runtime:
        [output], _ = await ask_durably(runtime)
        assert output.splitlines()[-1] == "(1, Decimal('0.333'), False)"


async def test_other_code_runs_once_in_conversations_that_have_begun_with_the_former(shared_url: str) -> None:
    async with machine(shared_url, "y = x", prepare="x = 1") as runtime:
        await ask_durably(runtime)
    for expected in ("(1, [2], True)", "(1, [2, 2], True)"):
        async with machine(shared_url, "n.append(2); (x, n, y == 1)", prepare="n = []; lock = x") as runtime:
            [output], _ = await ask_durably(runtime)
            assert output.splitlines()[-1] == expected


async def test_a_conversation_rewound_to_its_beginning_is_prepared_again(shared_url: str) -> None:
    async with machine(shared_url, COUNT, COUNT, live_snapshots=2) as runtime:
        await ask_durably(runtime)
        session = runtime.session("s")
        await session.rewind(to=0)
    async with machine(shared_url, COUNT) as runtime:
        outputs, _ = await ask_durably(runtime)
        assert outputs[0].splitlines()[-1] == "[1, 2]"


async def test_a_restored_generation_prepares_its_worker_once(shared_url: str) -> None:
    """The calls made since run again after those of the generation, and the first of them had been prepared, too."""
    async with machine(shared_url, COUNT, COUNT) as runtime:
        await ask_durably(runtime)
        session = runtime.session("s")
        await session.rewind(to=0)
        generation = (await session.generations())[-1].number
    async with machine(shared_url, COUNT) as runtime:
        await ask_durably(runtime)
        await runtime.session("s").restore(generation)
    async with machine(shared_url, "started") as runtime:
        [output], _ = await ask_durably(runtime)
        assert output.splitlines()[-1] == "[1, 2, 3, 4]"


@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_code_that_fails_where_a_conversation_is_restored_is_named(shared_url: str, has_checkpoint: bool) -> None:
    prepare = "import os; y = 1 / ('BROKEN' not in os.environ)"
    async with machine(shared_url, "x = 1", prepare=prepare) as runtime:
        await ask_durably(runtime)
        if not has_checkpoint:
            await runtime.store.backend.commit(DropCheckpoint(key="session:s", version=1))
    async with machine(shared_url, "globals().get('x')", prepare="", environment={"BROKEN": "1"}) as runtime:
        [output], [restored] = await ask_durably(runtime)
    if has_checkpoint:
        assert restored["unkept"] == {"prepare": "ZeroDivisionError: division by zero"}
        assert output.splitlines()[-1] == "1"
    else:
        assert restored["missing"] == [1]
        assert "the effects of 1 earlier call are lost (call 1)" in output


async def test_a_module_of_the_workspace_is_imported_from_the_restored_file(shared_url: str) -> None:
    prepare = "open('rates.py', 'w').write('rate = 5'); import rates"
    change = "open('rates.py', 'w').write('rate = 600'); import importlib; importlib.reload(rates).rate"
    async with machine(shared_url, change, prepare=prepare) as runtime:
        assert (await ask_durably(runtime))[0] == ["600"]
    async with machine(shared_url, "rates.rate", prepare=prepare) as runtime:
        [output], _ = await ask_durably(runtime)
        assert output.splitlines()[-1] == "600"
