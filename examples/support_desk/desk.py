"""The agent of the support desk: it looks orders up, and pays money back after a person agreed.

The web app next to this file runs it. The same agent in a terminal, with the same approvals:

    standfast chat examples/support_desk/desk.py
    standfast chat examples/support_desk/desk.py --model gpt-4.1-mini     (or: --model local)
"""

import asyncio
import re
from pathlib import Path

from standfast import Agent, FunctionModel, FunctionTool, ItemHelpers, Model, function_tool
from standfast.models import ModelRequest

ORDERS = {"A7": ("teapot", 49.90), "B2": ("lamp", 120.00), "C9": ("chair", 310.50)}
BANK_SECONDS = 2.0
"""How long the bank takes to answer: time enough to kill the process and see what becomes of the refund."""


@function_tool
def find_order(order: str) -> str:
    """Look an order up.

    Args:
        order: Its number, such as A7.
    """
    if order not in ORDERS:
        return f"There is no order {order}."
    article, price = ORDERS[order]
    return f"Order {order} is a {article} for {price:.2f} euros."


def refunding(ledger: Path) -> FunctionTool:
    async def refund(order: str, amount: float) -> str:
        """Pay a customer back.

        Args:
            order: The number of the order.
            amount: How many euros.
        """
        with ledger.open("a", encoding="utf-8") as lines:
            lines.write(f"{order} {amount:.2f}\n")
        await asyncio.sleep(BANK_SECONDS)
        return f"The bank has paid {amount:.2f} euros back for order {order}."

    return function_tool(refund, needs_approval=True)


def rules(request: ModelRequest) -> str | dict[str, object]:
    """A model without a key: what to do next follows from what was said last."""
    last = ItemHelpers.input_to_new_input_list(request.input)[-1]
    if last.get("type") == "function_call_output":
        output = str(last["output"])
        if found := re.match(r"Order (\w+) is a .* for ([\d.]+) euros", output):
            return FunctionModel.call("refund", order=found[1], amount=float(found[2]))
        return output
    if asked := re.search(r"\b[A-Z]\d\b", str(last["content"])):
        return FunctionModel.call("find_order", order=asked[0])
    return f"Which order is it about? I know {', '.join(ORDERS)}."


def desk(ledger: Path, model: str | Model | None = None) -> Agent:
    """The agent; its refunds are lines in ``ledger``. Without a ``model`` it follows fixed rules."""
    return Agent(
        "desk",
        instructions="You help customers of a shop. Look the order up, then refund its price. Be brief.",
        model=model or FunctionModel(rules),
        tools=[find_order, refunding(ledger)],
    )


agent = desk(Path("refunds.txt"))
