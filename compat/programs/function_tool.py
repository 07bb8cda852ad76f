import asyncio

from agents import Agent, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    print(weather.name, weather.description, weather.params_json_schema)
    result = await Runner.run(agent, 'call weather {"city": "Rome"} and call weather {"city": "Bari"}')
    print(result.final_output, len(result.raw_responses))


asyncio.run(main())
