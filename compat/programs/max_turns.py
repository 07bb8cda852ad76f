import asyncio

from agents import Agent, MaxTurnsExceeded, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    try:
        await Runner.run(agent, 'call weather {"city": "Rome"}', max_turns=1)
    except MaxTurnsExceeded:
        print("too many turns")


asyncio.run(main())
