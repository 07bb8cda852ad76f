"""What the filters of two handoffs in a row are given, with and without a session."""

import asyncio

from agents import Agent, Runner, SQLiteSession, function_tool, handoff
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def look() -> str:
    """Look."""
    return "seen"


def show(data):
    history = data.input_history
    print("history", history if isinstance(history, str) else [item["content"] for item in history])
    print("before", [(item.type, item.agent.name) for item in data.pre_handoff_items])
    print("new", [(item.type, item.agent.name) for item in data.new_items])
    return data


async def main():
    for session in (None, SQLiteSession("ann")):
        payer = Agent(name="payer", model=ScriptedModel([[assistant_message("paid")]]))
        guide = Agent(
            name="guide",
            tools=[look],
            handoffs=[handoff(payer, input_filter=show)],
            model=ScriptedModel(
                [[function_call("look", {}, call_id="l")], [function_call("transfer_to_payer", {}, call_id="p")]]
            ),
        )
        desk = Agent(
            name="desk",
            handoffs=[handoff(guide, input_filter=show)],
            model=ScriptedModel([[function_call("transfer_to_guide", {}, call_id="g")]]),
        )
        result = await Runner.run(desk, "hello", session=session)
        print(result.input, [item.type for item in result.new_items], len(payer.model.calls[0].input))


asyncio.run(main())
