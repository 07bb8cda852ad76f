"""A filter of the model's input, together with a session, tools, a handoff and a callback of the session."""

import asyncio

from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool, handoff
from agents.extensions import handoff_filters
from agents.run import CallModelData, ModelInputData


@function_tool
def look(place: str) -> str:
    """Look."""
    return f"{place} is long " + "very " * 30


def trim(data: CallModelData) -> ModelInputData:
    print("filter", data.agent.name, data.context, len(data.model_data.input), data.model_data.instructions)
    items = [
        {**item, "output": item["output"][:20]} if item.get("type") == "function_call_output" else item
        for item in data.model_data.input
    ]
    return ModelInputData(input=items[-4:], instructions=f"{data.model_data.instructions} Be brief.")


async def recent(history, new):
    print("callback", len(history), len(new))
    return history[-3:] + new


expert = Agent(name="Expert", instructions="Know.", tools=[look], model="gpt-4.1")
front = Agent(
    name="Front",
    instructions="Front.",
    tools=[look],
    handoffs=[handoff(expert, input_filter=handoff_filters.remove_all_tools)],
    model="gpt-4.1",
)


async def main() -> None:
    session = SQLiteSession("filtered")
    config = RunConfig(call_model_input_filter=trim, session_input_callback=recent)
    agent = front
    for text in ("hello", 'call look {"place": "Rome"}', 'call look {"place": "Oslo"}', 'call look {"place": "Bari"}'):
        result = await Runner.run(agent, text, session=session, run_config=config, context="ctx")
        agent = result.last_agent
        print(agent.name, result.final_output, len(await session.get_items()), len(result.to_input_list()))
    try:
        await Runner.run(front, "x", run_config=RunConfig(call_model_input_filter=lambda data: None))
    except Exception as error:
        print(type(error).__name__, error)
    streamed = Runner.run_streamed(
        front, [{"role": "user", "content": "list"}], run_config=RunConfig(call_model_input_filter=trim)
    )
    async for _ in streamed.stream_events():
        pass
    print(streamed.final_output, streamed.input)


asyncio.run(main())
