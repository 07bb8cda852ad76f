"""Agents for servers in processes of their own: one that speaks word by word, one that asks before it pays."""

import asyncio

from standfast import Agent, FunctionModel, function_tool

WORDS = [f"word{number}" for number in range(30)]


class SlowModel(FunctionModel):
    """Streams each word after a pause, so that a test can act in between."""

    async def stream(self, request):
        async for event in super().stream(request):
            await asyncio.sleep(0.02)
            yield event


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def respond(request):
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return [*(f"{word} " for word in WORDS), f"then {last['output']}"]
    return FunctionModel.call("pay", amount=5) if "pay" in str(last["content"]) else [f"{word} " for word in WORDS]


speaker = Agent("speaker", model=SlowModel(respond), tools=[pay])
