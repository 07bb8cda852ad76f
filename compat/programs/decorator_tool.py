import asyncio

from agents import Agent, Runner
from agents.decorators import tool


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'call weather {"city": "Rome"}')
    print(result.final_output)
    print([item.type for item in result.new_items])


asyncio.run(main())
