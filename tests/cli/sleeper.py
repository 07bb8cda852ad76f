"""An agent whose tool takes very long."""

import asyncio
from typing import Any

from standfast import Agent, FunctionModel, function_tool
from standfast.models import ModelRequest


@function_tool
async def nap() -> str:
    """Sleep."""
    await asyncio.sleep(60)
    return "slept"


def rules(request: ModelRequest) -> str | dict[str, Any]:
    text = str(request.input[-1].get("content"))
    return FunctionModel.call("nap") if text == "nap" else f"items {len(request.input)}"


sleeper = Agent("sleeper", model=FunctionModel(rules), tools=[nap])
