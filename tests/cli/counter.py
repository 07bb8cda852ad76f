"""An agent that computes in a worker and exists as long as its pool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from standfast import Agent, FunctionModel, python_tool
from standfast.models import ModelRequest
from standfast.workers import PoolConfig, SessionPool


def rules(request: ModelRequest) -> str | dict[str, Any]:
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return f"It is {last['output']}."
    return FunctionModel.call("run_python", code=last["content"])


@asynccontextmanager
async def counter() -> AsyncIterator[Agent]:
    async with SessionPool(PoolConfig(min_idle=1)) as pool:
        yield Agent("counter", model=FunctionModel(rules), tools=[python_tool(pool)])


def plain() -> Agent:
    return Agent("plain", model=FunctionModel(lambda request: str(request.input[-1]["content"])))
