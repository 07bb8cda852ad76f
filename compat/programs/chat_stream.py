import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI


async def main() -> None:
    agent = Agent(name="A", model=OpenAIChatCompletionsModel(model="gpt-4.1", openai_client=AsyncOpenAI()))
    result = Runner.run_streamed(agent, "hello")
    print(
        [
            getattr(event, "name", event.type)
            async for event in result.stream_events()
            if event.type != "raw_response_event"
        ]
    )
    print(result.final_output)


asyncio.run(main())
