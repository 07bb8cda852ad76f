"""The agent of the bot: it releases software after an approval.

standfast chat examples/approval_bot/releases.py          (say: release shop 1.4.2)
"""

import re

from standfast import Agent, FunctionModel, ItemHelpers, function_tool
from standfast.models import ModelRequest


@function_tool(needs_approval=True)
async def release(service: str, version: str) -> str:
    """Put a version of a service into production.

    Args:
        service: The name of the service.
        version: The version to release.
    """
    return f"{service} {version} is live."


def choose_step(request: ModelRequest) -> str | dict[str, object]:
    """A model without an API key: choose the next step from the last item."""
    last = ItemHelpers.input_to_new_input_list(request.input)[-1]
    if last.get("type") == "function_call_output":
        return str(last["output"])
    if match := re.search(r"release (\w+) ([\d.]+\d)", str(last["content"])):
        return FunctionModel.call("release", service=match[1], version=match[2])
    return "Tell me what to release, for instance: release shop 1.4.2"


agent = Agent(
    "releases",
    instructions="You release software on request. Say in one sentence what happened.",
    model=FunctionModel(choose_step),
    tools=[release],
)
