"""An agent whose tool kills its process if DIE is set."""

import os
import signal
from pathlib import Path
from typing import Any

from standfast import Agent, FunctionModel, function_tool
from standfast.models import ModelRequest


@function_tool
def book(amount: int) -> str:
    """Write an amount into the books."""
    with Path("books").open("a") as books:
        books.write(f"{amount}\n")
    if "DIE" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return "booked"


def rules(request: ModelRequest) -> str | dict[str, Any]:
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return f"It says: {last['output']}."
    if "book" in last["content"]:
        return FunctionModel.call("book", amount=5)
    return f"You said {last['content']}."


bookkeeper = Agent("bookkeeper", model=FunctionModel(rules), tools=[book])
