"""The agent behind the bot: it releases software, after somebody agreed.

standfast chat examples/approval_bot/releases.py          (say: release shop 1.4.2)
"""

import re

from standfast import Agent, FunctionModel, ItemHelpers, function_tool
from standfast.models import ModelRequest


@function_tool(needs_approval=True)
async def release(service: str, version: str) -> str:
    """Put a version of a service into production.

    Args:
        service: Which service.
        version: Which version of it.
    """
    return f"{service} {version} is live."


def rules(request: ModelRequest) -> str | dict[str, object]:
    """A model without a key: what to do next follows from what was said last."""
    last = ItemHelpers.input_to_new_input_list(request.input)[-1]
    if last.get("type") == "function_call_output":
        return str(last["output"])
    if asked := re.search(r"release (\w+) ([\d.]+\d)", str(last["content"])):
        return FunctionModel.call("release", service=asked[1], version=asked[2])
    return "Tell me what to release, for instance: release shop 1.4.2"


agent = Agent(
    "releases",
    instructions="You release software when somebody asks for it. Say in one sentence what happened.",
    model=FunctionModel(rules),
    tools=[release],
)
