import asyncio

from agents import Agent, Runner, SQLiteSession, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    agent = Agent(name="A", tools=[add], model="gpt-4.1")
    for mode in ("immediate", "after_turn"):
        session = SQLiteSession(mode)
        result = Runner.run_streamed(agent, 'call add {"a": 1, "b": 2}', session=session)
        async for event in result.stream_events():
            print(event.type, getattr(event, "name", ""))
            if event.type == "run_item_stream_event" and event.name == "tool_called":
                result.cancel(mode=mode)
        print(mode, result.final_output, result.is_complete)
        print([item.get("type") or item["role"] for item in await session.get_items()])
    result = Runner.run_streamed(agent, "hello")
    print(result.is_complete, result.current_agent.name, result.current_turn, result.max_turns)
    async for _ in result.stream_events():
        pass
    print(result.is_complete, result.last_agent.name, result.final_output)
    try:
        Runner.run_sync(agent, "x")
    except RuntimeError:
        print("a loop is running")


asyncio.run(main())
