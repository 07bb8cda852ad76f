"""``python_function`` with the tool decorator and runner of another framework."""

import asyncio
import gc
import json
import os
import sys
from pathlib import Path

import pytest

from standfast.workers import PoolConfig, SessionPool, current_conversation, python_function

agents = pytest.importorskip("agents")


class Scripted(agents.Model):
    """A model that calls the tool twice and then repeats the output of the tool."""

    def __init__(self):
        self.turn = 0

    async def get_response(self, system_instructions, input, model_settings, tools, *args, **kwargs):
        from agents.items import ModelResponse
        from agents.usage import Usage
        from openai.types.responses import (
            ResponseFunctionToolCall,
            ResponseOutputMessage,
            ResponseOutputText,
        )

        self.turn += 1
        codes = {1: '{"code": "x = 6 * 7"}', 2: '{"code": "print(\'x is\', x)"}'}
        if self.turn in codes:
            output = [
                ResponseFunctionToolCall(
                    type="function_call",
                    call_id=f"c{self.turn}",
                    name=tools[0].name,
                    arguments=codes[self.turn],
                )
            ]
        else:
            output_text = [item["output"] for item in input if item.get("type") == "function_call_output"][-1]
            text = ResponseOutputText(type="output_text", text=output_text, annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def test_an_agent_of_another_framework_runs_python_that_persists():
    agents.set_tracing_disabled(True)
    async with SessionPool(PoolConfig(min_idle=1, max_sessions=2)) as pool:
        run_python = python_function(pool)
        tool = agents.function_tool(run_python)
        assert "code" in tool.params_json_schema["properties"]
        agent = agents.Agent(name="analyst", tools=[tool], model=Scripted())
        result = await agents.Runner.run(agent, "compute")
        assert result.final_output == "x is 42"
        run_python.sessions.close()


class Teller(Scripted):
    """A model whose calls set a variable, wait for other runs, and then read what is there."""

    def __init__(self, secret, *, reads_only=False):
        super().__init__()
        self.secret, self.reads_only = secret, reads_only

    async def get_response(self, system_instructions, input, model_settings, tools, *args, **kwargs):
        response = await super().get_response(system_instructions, input, model_settings, tools, *args, **kwargs)
        codes = {1: "1" if self.reads_only else f"secret = {self.secret!r}", 2: "print(globals().get('secret'))"}
        if self.turn in codes:
            response.output[0].arguments = json.dumps({"code": codes[self.turn]})
        return response


async def run_teller(tool, secret, **options):
    agent = agents.Agent(name="teller", tools=[tool], model=Teller(secret, **options))
    return (await agents.Runner.run(agent, "go")).final_output


@pytest.fixture
async def pool():
    agents.set_tracing_disabled(True)
    async with SessionPool(PoolConfig(min_idle=1, max_sessions=4)) as pool:
        yield pool


@pytest.mark.parametrize("traced", [False, True])
async def test_concurrent_runs_of_another_framework_share_nothing(pool, traced):
    tool = agents.function_tool(python_function(pool))
    with agents.trace("several runs", disabled=not traced):
        names = await asyncio.gather(*(run_teller(tool, name) for name in ("ann", "bob", "cleo")))
    assert names == ["ann", "bob", "cleo"]


@pytest.mark.parametrize("traced", [False, True])
async def test_consecutive_runs_of_another_framework_share_nothing(pool, traced):
    tool = agents.function_tool(python_function(pool))
    with agents.trace("several runs", disabled=not traced):
        assert await run_teller(tool, "ann") == "ann"
        assert await run_teller(tool, "", reads_only=True) == "None"


async def run_pydantic_teller(run_python, secret):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    codes = [f"secret = {secret!r}", "print(secret)"]

    async def answer(messages, info):
        if codes:
            return ModelResponse(parts=[ToolCallPart("run_python", {"code": codes.pop(0)})])
        return ModelResponse(parts=[TextPart(messages[-1].parts[0].content.strip())])

    return (await pydantic_ai.Agent(FunctionModel(answer), tools=[run_python]).run("go")).output


@pytest.mark.parametrize("min_idle", [0, 1])
@pytest.mark.parametrize("framework", ["openai-agents", "pydantic-ai"])
async def test_the_sessions_of_ended_runs_are_given_back(framework, min_idle):
    agents.set_tracing_disabled(True)
    async with SessionPool(PoolConfig(min_idle=min_idle, max_sessions=8)) as pool:
        run_python = python_function(pool)
        tool = agents.function_tool(run_python)
        for number in range(3):
            name = f"user {number}"
            is_pydantic = framework == "pydantic-ai"
            names = await (run_pydantic_teller(run_python, name) if is_pydantic else run_teller(tool, name))
            assert names == name
        async with asyncio.timeout(30):
            while pool.info()["leased"]:  # the garbage collector tells nobody
                gc.collect()
                await asyncio.sleep(0.01)


async def test_runs_share_variables_if_the_conversation_is_named(pool):
    tool = agents.function_tool(python_function(pool, conversation="ann"))
    assert await run_teller(tool, "kept") == "kept"
    assert await run_teller(tool, "", reads_only=True) == "kept"
    other = agents.function_tool(python_function(pool))
    token = current_conversation.set("ann")
    assert await run_teller(other, "", reads_only=True) == "kept"
    current_conversation.reset(token)


async def test_calls_of_one_task_share_variables_and_those_of_two_do_not(pool):
    run_python = python_function(pool)

    async def tell(name):
        await run_python(f"secret = {name!r}")
        return await run_python("print(secret)")

    assert await asyncio.gather(tell("ann"), tell("bob")) == ["ann", "bob"]
    assert "NameError" in await run_python("secret")


def test_current_conversation_is_exported():
    from standfast.workers import WorkerSession

    assert WorkerSession
    current_conversation.reset(current_conversation.set("user-7"))


@pytest.mark.parametrize("framework", ["openai-agents", pytest.param("pydantic-ai", marks=pytest.mark.soak)])
async def test_a_killed_process_of_another_framework_continues_in_the_next_one(framework, tmp_path):
    pytest.importorskip(framework.replace("-", "_").removeprefix("openai_"))
    program = Path(__file__).with_name("framework_process.py")
    for expected in ("[0] x", "[0, 1] xx", "[0, 1, 2] xxx"):
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(program),
            framework,
            f"sqlite:///{tmp_path / 'app.db'}",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await child.communicate()
        assert child.returncode == -9
        assert output.decode().strip().splitlines()[-1] == expected
