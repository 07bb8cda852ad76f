"""Agents with a Python of their own: real workers, scripted models."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import standfast
from factories.runs import approve_all, run_agent
from factories.workers import wait_until
from standfast import Agent, Runner, RunState, SQLiteSession, ToolContext, function_tool
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.workers import PoolConfig, PythonSessions, SessionPool, SessionState, python_function


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=1, max_sessions=3)) as pool:
        yield pool


def analyst(tool: Any, *codes: str, name: str = "analyst") -> Agent[Any]:
    """An agent whose model runs these pieces of code, one a turn, and then says that it is done."""
    steps = [[function_call(tool.name, {"code": code}, call_id=f"c{n}")] for n, code in enumerate(codes)]
    return Agent(name, tools=[tool], model=ScriptedModel([*steps, [assistant_message("done")]]))


def outputs(result: Any) -> list[Any]:
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


async def answers(tool: Any, *codes: str, **options: Any) -> list[Any]:
    return outputs(await Runner.run(analyst(tool, *codes), "go", **options))


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_variables_stay_from_turn_to_turn_and_from_run_to_run_of_a_session(pool: SessionPool, way: str) -> None:
    tool, session = standfast.python_tool(pool), SQLiteSession("user-7")
    result = await run_agent(way, analyst(tool, "x = 20", "x += 1; x"), "go", session=session)
    assert outputs(result) == ["[no output]", "21"]
    result = await run_agent(way, analyst(tool, "print(x * 2)"), "again", session=session)
    assert outputs(result) == ["42"]
    session.close()


async def test_two_sessions_and_two_runs_without_one_do_not_see_each_other(pool: SessionPool) -> None:
    tool, ann, bob = standfast.python_tool(pool), SQLiteSession("ann"), SQLiteSession("bob")
    await answers(tool, "secret = 1", session=ann)
    assert await answers(tool, "'secret' in globals()", session=bob) == ["False"]
    assert await answers(tool, "'secret' in globals()", session=ann) == ["True"]
    assert await answers(tool, "'secret' in globals()", "secret = 2", "secret") == ["False", "[no output]", "2"]
    assert await answers(tool, "'secret' in globals()") == ["False"]
    ann.close()
    bob.close()


async def test_a_conversation_at_the_provider_has_its_own(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    await answers(tool, "x = 1", conversation_id="conv_1")
    assert await answers(tool, "x", conversation_id="conv_1") == ["1"]
    (output,) = await answers(tool, "x", conversation_id="conv_2")
    assert output.endswith("NameError: name 'x' is not defined")


async def test_a_nested_agent_works_in_the_session_of_the_run_around_it(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    inner = analyst(tool, "y = x + 1", name="inner")
    helper = inner.as_tool(tool_name="ask", tool_description="")
    steps = [
        [function_call("run_python", {"code": "x = 1"}, call_id="1")],
        [function_call("ask", {"input": "go on"}, call_id="2")],
        [function_call("run_python", {"code": "y"}, call_id="3")],
        [assistant_message("done")],
    ]
    outer = Agent("outer", tools=[tool, helper], model=ScriptedModel(steps))
    assert outputs(await Runner.run(outer, "go")) == ["[no output]", "done", "2"]


async def test_the_context_names_the_conversation_the_same_way_in_every_way_of_running() -> None:
    seen = []

    @function_tool(needs_approval=True)
    async def look(context: ToolContext[Any]) -> str:
        seen.append(context.conversation_key)
        return "ok"

    def agent() -> Agent[Any]:
        inner = Agent(
            "i", tools=[look], model=ScriptedModel([[function_call("look", {}, call_id="3")], [assistant_message("x")]])
        )
        ask = inner.as_tool(tool_name="ask", tool_description="")
        calls = [function_call("look", {}, call_id="1"), function_call("ask", {"input": "?"}, call_id="2")]
        return Agent("a", tools=[look, ask], model=ScriptedModel([calls, [assistant_message("x")]]))

    for way in ("run", "streamed"):
        session = SQLiteSession("s")
        for options, expected in (
            ({"session": session}, session.conversation_key),
            ({"conversation_id": "conv"}, "conv"),
            ({}, None),
        ):
            seen.clear()
            starting = agent()
            result = await run_agent(way, starting, "q", **options)
            state = await RunState.from_string(starting, result.to_state().to_string())
            approve_all(state)
            await run_agent(way, starting, state, session=options.get("session"))
            assert seen == [expected or state.data.run_id] * 2
            if "session" in options:
                options["session"].close()


async def test_code_waits_for_approval_and_can_be_edited_or_refused(pool: SessionPool) -> None:
    tool, session = standfast.python_tool(pool, needs_approval=True), SQLiteSession("s")
    agent = analyst(tool, "x = 1", "x = 2", "print(x)")
    result = await Runner.run(agent, "go", session=session)
    assert [item.arguments for item in result.interruptions] == ['{"code":"x = 1"}']
    assert pool.info()["leased"] == 0
    state = await RunState.from_string(agent, result.to_state().to_string())
    state.approve(state.get_interruptions()[0], arguments={"code": "x = 100"})
    state = (await Runner.run(agent, state, session=session)).to_state()
    state.reject(state.get_interruptions()[0], rejection_message="leave x alone")
    state = (await Runner.run(agent, state, session=session)).to_state()
    state.approve(state.get_interruptions()[0])
    result = await Runner.run(agent, state, session=session)
    assert result.final_output == "done"
    assert outputs(result)[1:] == ["leave x alone", "100"]
    session.close()


async def test_a_tool_decides_by_the_code_whether_approval_is_needed(pool: SessionPool) -> None:
    async def writes(_context: Any, arguments: dict[str, Any], _call_id: str) -> bool:
        return "open(" in arguments["code"]

    tool = standfast.python_tool(pool, name="python", needs_approval=writes)
    result = await Runner.run(analyst(tool, "1", "open('f', 'w')"), "go")
    assert (outputs(result), [item.tool_name for item in result.interruptions]) == (["1"], ["python"])


async def test_an_error_is_a_traceback_for_the_model_and_costs_nothing(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    first, second = await answers(tool, "x = 1\nprint('before')\n1 / 0", "x")
    assert first.startswith("before\nTraceback")
    assert first.endswith("ZeroDivisionError: division by zero")
    assert second == "1"


async def test_a_timeout_stops_the_code_and_reports_that_the_variables_survived(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool, timeout=2.0)
    code = "x = 1\nprint('begun', flush=True)\nwhile True: pass"
    stopped, after = await answers(tool, code, "x")
    assert stopped == "begun\n[stopped: the code took too long; the variables are still there]"
    assert after == "1"


async def test_code_that_cannot_be_stopped_costs_the_variables_and_the_model_is_informed(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool, timeout=2.0)  # by then it runs, even on a busy machine
    stubborn = "import time\nx = 1\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass"
    stopped, after = await answers(tool, stubborn, "'x' in globals()")
    assert "[stopped: the code took too long]" in stopped
    assert "all variables are gone" in stopped
    assert after.splitlines() == [
        "[this is a new Python session: the variables of earlier calls are gone, their files are still there]",
        "False",
    ]


async def test_a_crash_is_reported_with_its_cause(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    codes = (
        "x = open('f', 'w').write('y')",
        "print('so far'); import os; os._exit(3)",
        "'x' in globals()",
        "open('f').read()",
    )
    _, crashed, after, later = await answers(tool, *codes)
    assert crashed.startswith("so far\n[the Python session was lost (exit: exit code 3)")
    assert after.startswith("[this is a new Python session")
    assert after.endswith("False")
    assert later == "'y'"


async def test_a_worker_that_died_between_two_calls_is_noticed(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    dying = "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), os._exit(1))).start()"

    async with PythonSessions.for_pool(pool).session("conv") as python:
        pass

    @function_tool
    async def wait() -> str:
        await wait_until(lambda: not python.is_alive)
        return "ok"

    steps = [
        [function_call("run_python", {"code": dying}, call_id="1")],
        [function_call("wait", {}, call_id="2")],
        [function_call("run_python", {"code": "1"}, call_id="3")],
        [assistant_message("done")],
    ]
    agent = Agent("a", tools=[tool, wait], model=ScriptedModel(steps))
    result = await Runner.run(agent, "go", conversation_id="conv")
    assert outputs(result)[2].startswith("[this is a new Python session")


async def test_a_resuming_process_reports_that_the_variables_are_lost(pool: SessionPool) -> None:
    session = SQLiteSession("s")
    await answers(standfast.python_tool(pool), "x = 1", session=session)
    assert await answers(standfast.python_tool(pool), "x", session=session) == ["1"]
    elsewhere = standfast.python_tool(PythonSessions(pool))
    (output,) = await answers(elsewhere, "'x' in globals()", session=session)
    assert output == "[this is a new Python session: variables and files of earlier calls are gone]\nFalse"
    session.close()


async def test_a_full_pool_ends_the_conversation_that_was_idle_longest() -> None:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool:
        sessions = PythonSessions(pool)
        tool = standfast.python_tool(sessions)
        histories = [SQLiteSession(name) for name in "abc"]
        for history in histories:
            await answers(tool, "x = 1", session=history)
        a, b = histories[:2]
        assert await answers(tool, "x", session=b) == ["1"]
        (output,) = await answers(tool, "'x' in globals()", session=a)
        assert output == "[this is a new Python session: variables and files of earlier calls are gone]\nFalse"
        assert await answers(tool, "x", session=b) == ["1"]
        assert pool.info()["leased"] == 2
        sessions.end_conversation(b.conversation_key)
        assert pool.info()["leased"] == 1
        for history in histories:
            history.close()


async def test_a_waiting_conversation_gets_the_worker_of_one_that_became_idle() -> None:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=1)) as pool:
        tool = standfast.python_tool(pool)
        code = "import time; time.sleep(0.2); 'x' in globals()"
        async with asyncio.timeout(120):
            found = await asyncio.gather(*(answers(tool, code, conversation_id=f"conv-{n}") for n in range(4)))
        assert found == [["False"]] * 4


async def test_runs_of_one_conversation_take_turns_in_order(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool, timeout=4.0)
    code = "import time; seen = globals().get('seen', []); time.sleep(0.9); seen.append({}); seen"

    async def one(number: int) -> list[Any]:
        return await answers(tool, code.format(number), conversation_id="conv")

    # Together they take longer than one may: waiting does not count.
    found = await asyncio.gather(*(one(number) for number in range(5)))
    assert found == [[str(list(range(number + 1)))] for number in range(5)]


async def test_calls_of_one_turn_are_made_in_their_order(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    calls = [
        function_call("run_python", {"code": f"x = [*globals().get('x', []), {n}]; x"}, call_id=str(n))
        for n in range(3)
    ]
    agent = Agent("a", tools=[tool], model=ScriptedModel([calls, [assistant_message("done")]]))
    assert outputs(await Runner.run(agent, "go")) == ["[0]", "[0, 1]", "[0, 1, 2]"]


async def test_a_run_that_is_cancelled_stops_its_code_and_keeps_the_variables(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    await answers(tool, "x = 1", conversation_id="conv")
    async with PythonSessions.for_pool(pool).session("conv") as python:
        pass
    run = asyncio.create_task(answers(tool, "import time; time.sleep(60)", conversation_id="conv"))
    await wait_until(lambda: python.state is SessionState.BUSY)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await answers(tool, "x", conversation_id="conv") == ["1"]


async def test_input_fails_at_once_and_long_output_is_cut_with_the_count(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    asked, much = await answers(tool, "input('name?')", "print('a' * 50_000)")
    assert asked.endswith("RuntimeError: this execution does not allow input()")
    assert "\n... 30000 characters left out ...\n" in much
    assert len(much) < 21_000


async def test_pictures_are_pictures_for_the_model(pool: SessionPool) -> None:
    tool = standfast.python_tool(pool)
    code = "class P:\n    def _repr_png_(self): return b'png'\nprint('see')\ndisplay(P())\nP()"
    result = await Runner.run(analyst(tool, code), "go")
    (item,) = [item.raw_item for item in result.new_items if item.type == "tool_call_output_item"]
    text, *images = item["output"]
    assert text["text"].startswith("see\n<")
    assert images == [{"type": "input_image", "image_url": "data:image/png;base64,cG5n"}] * 2
    many = "for _ in range(12): display(P())"
    result = await Runner.run(analyst(tool, code, many), "go")
    *_, item = [item.raw_item for item in result.new_items if item.type == "tool_call_output_item"]
    assert len(item["output"]) == 11
    assert item["output"][0]["text"].endswith("[2 of 12 pictures left out]")


async def test_a_picture_that_is_too_big_is_named(pool: SessionPool) -> None:
    code = "class P:\n    def _repr_png_(self): return b'p' * (2 << 20)\nP()"
    (output,) = await answers(standfast.python_tool(pool), code)
    assert output.endswith("[image/png left out: 2097152 bytes are too many]")


async def test_stopping_the_pool_ends_the_sessions_and_running_code_at_once() -> None:
    pool = SessionPool(PoolConfig(min_idle=1, max_sessions=2, drain_timeout=0.3))
    await pool.start()
    tool = standfast.python_tool(pool)
    await answers(tool, "x = 1", conversation_id="quiet")
    async with PythonSessions.for_pool(pool).session("busy") as python:
        pass
    run = asyncio.create_task(answers(tool, "import time; time.sleep(60)", "1", conversation_id="busy"))
    await wait_until(lambda: python.state is SessionState.BUSY)
    await pool.close()
    interrupted, refused = await run
    assert "the Python session was lost (shutdown" in interrupted
    assert refused.endswith("these sessions were closed")


async def test_a_stopped_pool_does_not_wait_for_idle_conversations() -> None:
    pool = SessionPool(PoolConfig(min_idle=1, max_sessions=2, drain_timeout=60.0))
    await pool.start()
    await answers(standfast.python_tool(pool), "x = 1", conversation_id="quiet")
    async with asyncio.timeout(30):
        await pool.close()


async def test_the_plain_function_knows_the_conversation_of_a_run_too(pool: SessionPool) -> None:
    tool = function_tool(python_function(pool))
    await answers(tool, "x = 1", conversation_id="a")
    assert await answers(tool, "x", conversation_id="a") == ["1"]
    assert await answers(tool, "'x' in globals()", conversation_id="b") == ["False"]


async def test_files_are_put_into_a_conversation_and_taken_out_of_it(pool: SessionPool) -> None:
    tool, sessions = standfast.python_tool(pool), PythonSessions.for_pool(pool)
    history = SQLiteSession("user-7")
    async with sessions.session(history.conversation_key) as session:
        await session.files.write("in.txt", "41")
    code = "found = int(open('in.txt').read()); print(found + 1, file=open('out.txt', 'w'))"
    assert await answers(tool, code, session=history) == ["[no output]"]
    async with sessions.session(history.conversation_key) as session:
        assert await session.files.read("out.txt") == b"42\n"
    assert await answers(tool, "found", session=history) == ["41"]
    history.close()


async def test_looking_at_the_files_of_a_lost_session_hides_nothing_from_the_model(pool: SessionPool) -> None:
    tool, sessions, history = standfast.python_tool(pool), PythonSessions.for_pool(pool), SQLiteSession("user-7")
    await answers(tool, "x = 1", session=history)
    await answers(tool, "import os; os._exit(1)", session=history)
    async with sessions.session(history.conversation_key):
        pass
    assert "variables" in (await answers(tool, "'x' in globals()", session=history))[0]
    assert await answers(tool, "'x' in globals()", session=history) == ["False"]
    history.close()


async def test_equal_session_ids_in_two_stores_are_two_conversations(pool: SessionPool, tmp_path: Path) -> None:
    tool = standfast.python_tool(pool)
    ann, bob = SQLiteSession("1", tmp_path / "ann.db"), SQLiteSession("1", tmp_path / "bob.db")
    await answers(tool, "x = 'of ann'", session=ann)
    assert await answers(tool, "'x' in globals()", session=bob) == ["False"]
    again = SQLiteSession("1", tmp_path / "ann.db")
    assert await answers(tool, "x", session=again) == ["'of ann'"]
    for session in (ann, bob, again):
        session.close()
    later = SQLiteSession("1", tmp_path / "ann.db")
    assert await answers(tool, "x", session=later) == ["'of ann'"]
    later.close()


async def test_the_stores_of_one_process_have_locations_of_their_own(tmp_path: Path) -> None:
    urls = ["memory://", "memory://", "sqlite:///:memory:", f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"]
    async with AsyncExitStack() as stack:
        keys = []
        for url in urls:
            store = await standfast.open_store(url)
            stack.push_async_callback(store.close)
            keys.append(store.session("1").conversation_key)
    assert len(set(keys)) == len(urls)


async def test_a_durable_run_uses_the_conversation_of_its_store(tmp_path: Path) -> None:
    seen = []

    @function_tool
    async def look(context: ToolContext[Any]) -> str:
        seen.append(context.conversation_key)
        return "ok"

    expected = []
    for name in ("ann", "bob"):
        steps = [[function_call("look", {}, call_id="1")], [assistant_message("x")]]
        agent = Agent("a", tools=[look], model=ScriptedModel(steps))
        async with standfast.Runtime.open(f"sqlite:///{tmp_path}/{name}.db", agents=[agent]) as runtime:
            await (await runtime.start("a", "q", session_id="1")).wait()
            expected.append(runtime.store.session("1").conversation_key)
    assert seen == expected
    assert len(set(seen)) == 2


@pytest.mark.parametrize("how", ["deleted", "cleared", "in use"])
async def test_a_session_that_is_created_again_has_nothing_of_the_former_one(pool: SessionPool, how: str) -> None:
    tool = standfast.python_tool(pool)
    async with standfast.open_store("memory://") as store:
        await answers(tool, "secret = 1; open('f', 'w').close()", session=store.session("ann"))
        if how == "cleared":
            await store.session("ann").clear_session()
        elif how == "deleted":
            await store.delete("ann")
        else:
            async with PythonSessions.for_pool(pool).session(store.session("ann").conversation_key):
                await store.delete("ann")
        found = await answers(tool, "'secret' in globals(), __import__('os').listdir()", session=store.session("ann"))
        assert found == ["(False, [])"]
