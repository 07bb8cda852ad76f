import asyncio

from agents import Agent, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    agent = Agent(name="A", tools=[weather], handoffs=[Agent(name="B")])
    print(agent.name, [tool.name for tool in agent.tools])


asyncio.run(main())
