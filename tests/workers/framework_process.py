"""A program with another agent framework, whose Python is kept in a store: ``framework_process.py FRAMEWORK URL``.

Its agent adds to what it finds, prints what is there, and then the process is killed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from test_python_function import Scripted

from standfast import open_store
from standfast.workers import PoolConfig, PythonSessions, SessionPool, python_function

CODES = ["n = globals().get('n', [])\nn.append(len(n))\nopen('log', 'a').write('x')", "print(n, open('log').read())"]


class Counter(Scripted):
    """A model of openai-agents that runs the codes."""

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        import json

        response = await super().get_response(*args, **kwargs)
        if self.turn <= len(CODES):
            response.output[0].arguments = json.dumps({"code": CODES[self.turn - 1]})
        return response


async def run_openai_agents(run_python: Callable[[str], Awaitable[str]]) -> str:
    import agents

    agents.set_tracing_disabled(True)
    agent = agents.Agent(name="counter", tools=[agents.function_tool(run_python)], model=Counter())
    return str((await agents.Runner.run(agent, "go")).final_output)


async def run_pydantic_ai(run_python: Callable[[str], Awaitable[str]]) -> str:
    import pydantic_ai
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    codes = list(CODES)

    async def answer(messages: Any, info: Any) -> ModelResponse:
        if codes:
            return ModelResponse(parts=[ToolCallPart("run_python", {"code": codes.pop(0)})])
        return ModelResponse(parts=[TextPart(messages[-1].parts[0].content)])

    return (await pydantic_ai.Agent(FunctionModel(answer), tools=[run_python]).run("go")).output


async def main(framework: str, url: str) -> None:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool, open_store(url) as store:
        run_python = python_function(PythonSessions(pool, store=store), conversation="user-7")
        run_agent = {"openai-agents": run_openai_agents, "pydantic-ai": run_pydantic_ai}[framework]
        print(await run_agent(run_python), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(*sys.argv[1:]))
