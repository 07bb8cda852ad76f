"""What ``turn_input`` is in hooks, instructions, tools and results: the input of the run after the session's history."""

import asyncio

from agents import Agent, RunContextWrapper, RunHooks, Runner, SQLiteSession, function_tool, handoff
from agents.extensions.handoff_filters import remove_all_tools
from agents.testing import ScriptedModel, assistant_message, function_call


def show(label, context):
    print(label, [item.get("content") or item["type"] for item in context.turn_input])


class Log(RunHooks):
    async def on_agent_start(self, context, agent):
        show(f"start {agent.name}", context)

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        show(f"model of {agent.name}, {len(input_items)} items", context)

    async def on_handoff(self, context, from_agent, to_agent):
        show("handoff", context)

    async def on_agent_end(self, context, agent, output):
        show(f"end {agent.name}", context)


@function_tool
def look(context: RunContextWrapper) -> str:
    """Look."""
    show("tool", context)
    return "seen"


def instruct(context, agent):
    show(f"instructions of {agent.name}", context)
    return "Be brief."


async def main():
    for edit in (None, remove_all_tools):
        guide = Agent(name="guide", instructions=instruct, model=ScriptedModel([[assistant_message("done")]]))
        steps = [[function_call("look", {}, call_id="l")], [function_call("transfer_to_guide", {}, call_id="t")]]
        desk = Agent(
            name="desk",
            instructions=instruct,
            tools=[look],
            handoffs=[handoff(guide, input_filter=edit)],
            model=ScriptedModel(steps),
        )
        session = SQLiteSession("ann")
        await session.add_items([{"role": "user", "content": "earlier"}])
        result = await Runner.run(desk, "hello", session=session, hooks=Log())
        show("result", result.context_wrapper)
        print(result.input)


asyncio.run(main())
