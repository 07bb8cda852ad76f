import asyncio
import os

from agents import Agent, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI


async def main() -> None:
    client = AsyncOpenAI(api_key="other", base_url=os.environ["OPENAI_BASE_URL"])
    agent = Agent(name="A", model=OpenAIResponsesModel(model="gpt-4.1", openai_client=client))
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
