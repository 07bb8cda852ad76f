"""The agent of the support desk: it looks up orders, and refunds them after a person has approved.

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
"""The response time of the bank, long enough to kill the process during a refund."""


@function_tool
def find_order(order: str) -> str:
    """Look up an order.

    Args:
        order: Its number, such as A7.
    """
    if order not in ORDERS:
        return f"There is no order {order}."
    article, price = ORDERS[order]
    return f"Order {order} is a {article} for {price:.2f} euros."


def make_refund_tool(ledger: Path) -> FunctionTool:
    async def refund(order: str, amount: float) -> str:
        """Refund a customer.

        Args:
            order: The number of the order.
            amount: How many euros.
        """
        with ledger.open("a", encoding="utf-8") as lines:
            lines.write(f"{order} {amount:.2f}\n")
        await asyncio.sleep(BANK_SECONDS)
        return f"The bank has paid {amount:.2f} euros back for order {order}."

    return function_tool(refund, needs_approval=True)


def choose_step(request: ModelRequest) -> str | dict[str, object]:
    """A model without an API key: choose the next step from the last item."""
    last = ItemHelpers.input_to_new_input_list(request.input)[-1]
    if last.get("type") == "function_call_output":
        output = str(last["output"])
        if match := re.match(r"Order (\w+) is a .* for ([\d.]+) euros", output):
            return FunctionModel.call("refund", order=match[1], amount=float(match[2]))
        return output
    if match := re.search(r"\b[A-Z]\d\b", str(last["content"])):
        return FunctionModel.call("find_order", order=match[0])
    return f"Which order is it about? I know {', '.join(ORDERS)}."


def make_agent(ledger: Path, model: str | Model | None = None) -> Agent:
    """Return the agent, which writes refunds to ``ledger``. Without a ``model`` it follows fixed rules."""
    return Agent(
        "desk",
        instructions="You help customers of a shop. Look the order up, then refund its price. Be brief.",
        model=model or FunctionModel(choose_step),
        tools=[find_order, make_refund_tool(ledger)],
    )


agent = make_agent(Path("refunds.txt"))
