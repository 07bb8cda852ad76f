"""Streams that are cancelled at once or after a turn, and conversations that go on from there."""

import asyncio

from agents import Agent, Runner, SQLiteSession, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


agent = Agent(name="A", model="gpt-4.1", tools=[add])


async def main() -> None:
    session = SQLiteSession("s")
    result = Runner.run_streamed(agent, 'call add {"a": 1, "b": 2}', session=session)
    seen = []
    async for event in result.stream_events():
        seen.append(getattr(event, "name", event.type))
        if event.type == "run_item_stream_event" and event.name == "tool_called":
            result.cancel(mode="after_turn")
    print([name for name in seen if name != "raw_response_event"], result.final_output, result.is_complete)
    print([item.get("type", item.get("role")) for item in await session.get_items()])
    continued = Runner.run_streamed(agent, result.to_state(), session=session)
    async for event in continued.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name)
    print(continued.final_output, [item.get("type", item.get("role")) for item in await session.get_items()])
    other = Runner.run_streamed(agent, "one two three four")
    async for event in other.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print("delta", event.data.delta)
            other.cancel()
    print(other.final_output, other.is_complete, len(other.new_items), other.current_agent.name)
    result = await Runner.run(agent, "again", session=session)
    print(result.final_output, len(await session.get_items()))
    result = await Runner.run(agent, result.to_input_list() + [{"role": "user", "content": "more"}])
    print(result.final_output, len(result.to_input_list()), result.last_response_id is not None)
    last = await session.pop_item()
    print(last["role"], len(await session.get_items()))


asyncio.run(main())
