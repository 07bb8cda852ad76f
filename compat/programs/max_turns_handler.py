import asyncio

from agents import Agent, RunErrorHandlerResult, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def give_up(data):
    return RunErrorHandlerResult(final_output="gave up")


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(
        agent, 'call weather {"city": "Rome"}', max_turns=1, error_handlers={"max_turns": give_up}
    )
    print(result.final_output)


asyncio.run(main())
