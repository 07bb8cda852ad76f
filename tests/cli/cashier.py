"""An agent for the commands to run. Its model depends only on the last item, so that any process can resume it."""

import os
from pathlib import Path
from typing import Any

from standfast import Agent, FunctionModel, function_tool
from standfast.models import ModelRequest


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Make a payment."""
    with Path(os.environ["PAID"]).open("a") as paid:
        paid.write(f"{amount}\n")
    return f"paid {amount}"


def rules(request: ModelRequest) -> str | dict[str, Any]:
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return f"It says: {last['output']}."
    if "pay" in last["content"]:
        return FunctionModel.call("pay", amount=5)
    return f"You said {last['content']}, item {len(request.input)}."


cashier = Agent("cashier", model=FunctionModel(rules), tools=[pay])
