import asyncio

from agents import Agent, Runner, ToolsToFinalOutputResult, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def finish(context, results):
    return ToolsToFinalOutputResult(is_final_output=True, final_output=results[0].output.upper())


agent = Agent(name="A", tools=[weather], tool_use_behavior=finish, model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, 'call weather {"city": "Rome"}')).final_output)


asyncio.run(main())
