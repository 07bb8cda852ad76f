import asyncio

from agents import Agent, ItemHelpers, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    result = Runner.run_streamed(agent, 'call weather {"city": "Rome"}')
    async for event in result.stream_events():
        if event.type == "agent_updated_stream_event":
            print("agent", event.new_agent.name)
        elif event.type == "run_item_stream_event":
            print(event.name, event.item.type)
            if event.item.type == "message_output_item":
                print(ItemHelpers.text_message_output(event.item))
    print(result.is_complete, result.current_turn)


asyncio.run(main())
