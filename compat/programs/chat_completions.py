import asyncio

from agents import Agent, Runner, function_tool
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from openai import AsyncOpenAI


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    model = OpenAIChatCompletionsModel(model="gpt-4.1", openai_client=AsyncOpenAI())
    agent = Agent(name="A", instructions="Be brief.", tools=[weather], model=model)
    result = await Runner.run(agent, 'call weather {"city": "Rome"}')
    print(result.final_output)


asyncio.run(main())
