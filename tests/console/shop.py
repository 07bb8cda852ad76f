"""The agents of the tests of the console. Their model is a function of the conversation."""

import asyncio
import os
from typing import Literal

from standfast import Agent, FunctionModel, function_tool
from standfast.base.usage import Usage
from standfast.testing import ScriptedModel, assistant_message

OFTEN = 125
"""How many calls a run makes that is asked to look things up often."""
OWN = "document.title='owned'"
MARK = f"<img src=x onerror={OWN}><script>{OWN}</script><svg onload={OWN}>"


@function_tool(needs_approval=True)
def refund(
    order: str,
    amount: float,
    reason: Literal["damaged", "late", "other"] = "other",
    note: str | None = None,
    notify: bool = True,
) -> str:
    """Pay a customer back.

    Args:
        order: The number of the order.
        amount: In euros.
        reason: Why the customer gets the money.
        note: A line for the books.
        notify: Whether the customer gets a mail.
    """
    return f"refunded {amount:.2f} euros for order {order} ({reason})"


@function_tool(needs_approval=True)
def publish(title: str, html: str) -> str:
    """Publish a page."""
    return html


@function_tool
def look_up(order: str) -> dict[str, object]:
    """Look an order up."""
    return {"order": order, "paid": 40.0, "items": ["cup", "saucer"]}


@function_tool
async def charge(order: str) -> str:
    """Charge a card; the process dies while it does."""
    os.kill(os.getpid(), 9)
    await asyncio.Event().wait()
    return order


class HaltingModel(FunctionModel):
    """Sends some words and stops in the middle of a sentence, until its run is cancelled."""

    async def stream(self, request):
        async for event in super().stream(request):
            yield event
            if event.type == "response.output_text.delta" and event.delta.endswith("way"):
                await asyncio.Event().wait()


class PricedModel(ScriptedModel):
    """Has the name and the price of a real model, and 100 tokens in every response."""

    model = "gpt-5.1"

    def __init__(self):
        usage = Usage(requests=1, input_tokens=60, output_tokens=40, total_tokens=100)
        super().__init__([[assistant_message("Spent.")]] * 20, default_usage=usage)


def rules(request):
    last = request.input[-1]
    said = str(last.get("content", ""))
    if "slowly" in said:
        return ["These words are ", "on their way", " to you"]
    if "often" in str(request.input[0].get("content", "")) and len(request.input) < 2 * OFTEN:
        return FunctionModel.call("look_up", order=str(len(request.input)))
    if "often" in str(request.input[0].get("content", "")):
        return "That was often."
    if last.get("type") == "function_call_output":
        names = [item["name"] for item in request.input if item.get("type") == "function_call"]
        if names[-1] == "look_up":
            return FunctionModel.call("refund", order="7", amount=40.0)
        return f"Done: {last['output']}. **Sorry** for the trouble with `order 7`."
    if "publish" in said:
        return FunctionModel.call("publish", title=f"\u202e{MARK}\x00", html=MARK + "x" * 300_000)
    if "charge" in said:
        return FunctionModel.call("charge", order="9")
    if "refund" in said:
        return FunctionModel.call("look_up", order="7")
    return f"You said: {said}"


support = Agent(
    "support", instructions="Help customers.", tools=[look_up, refund, publish, charge], model=HaltingModel(rules)
)
treasurer = Agent("treasurer", model=PricedModel())
