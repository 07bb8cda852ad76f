import asyncio

from agents import Agent, Runner, function_tool
from agents.usage import Usage


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'call weather {"city": "Rome"}')
    usage: Usage = result.context_wrapper.usage
    print(usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)


asyncio.run(main())
