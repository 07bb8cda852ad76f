"""Handoffs that fold the history into one message, by default, with a mapper and with a filter of their own."""

import asyncio

from agents import Agent, HandoffInputData, RunConfig, Runner, SQLiteSession, function_tool, handoff
from agents.handoffs import default_handoff_history_mapper, nest_handoff_history


@function_tool
def look(what: str) -> str:
    """Look."""
    return f"{what} seen"


def build(**options):
    third = Agent(name="Third", instructions="3", model="gpt-4.1")
    second = Agent(name="Second", instructions="2", model="gpt-4.1", handoffs=[handoff(third, **options)], tools=[look])
    return Agent(name="First", instructions="1", model="gpt-4.1", handoffs=[handoff(second, **options)], tools=[look])


def mapper(transcript):
    print("mapping", len(transcript))
    return [{"role": "user", "content": f"{len(transcript)} items before"}]


def last_only(data: HandoffInputData) -> HandoffInputData:
    print("filter", len(data.input_history), len(data.pre_handoff_items), len(data.new_items))
    return data.clone(
        input_history=data.input_history[-1:] if isinstance(data.input_history, tuple) else data.input_history
    )


async def talk(agent, config=None) -> None:
    session = SQLiteSession("s")
    for text in ('call look {"what": "sea"}', "call transfer_to_second {}", "call transfer_to_third {}", "bye"):
        result = await Runner.run(agent, text, session=session, run_config=config)
        agent = result.last_agent
        print(agent.name, result.final_output, len(result.to_input_list()), len(await session.get_items()))


async def main() -> None:
    await talk(build(), RunConfig(nest_handoff_history=True))
    await talk(build(), RunConfig(nest_handoff_history=True, handoff_history_mapper=mapper))
    await talk(build(input_filter=last_only))
    await talk(build(nest_handoff_history=True))
    print(default_handoff_history_mapper([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]))
    data = HandoffInputData(
        input_history=({"role": "user", "content": "hi"},), pre_handoff_items=(), new_items=(), run_context=None
    )
    print(nest_handoff_history(data).input_history)


asyncio.run(main())
