import asyncio

from agents import Agent, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'call weather {"city": "Rome"}', auto_previous_response_id=True)
    print(result.final_output)


asyncio.run(main())
