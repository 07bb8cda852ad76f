import asyncio

from agents import Agent, ModelSettings, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(
    name="A",
    tools=[weather],
    model="gpt-4.1",
    model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False),
)


async def main() -> None:
    print((await Runner.run(agent, 'call weather {"city": "Rome"}')).final_output)


asyncio.run(main())
