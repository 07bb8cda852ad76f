import asyncio

from agents import Agent, Runner, StopAtTools, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], tool_use_behavior=StopAtTools(stop_at_tool_names=["weather"]), model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, 'call weather {"city": "Rome"}')).final_output)


asyncio.run(main())
