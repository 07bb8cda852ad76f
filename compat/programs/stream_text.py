import asyncio

from agents import Agent, Runner
from openai.types.responses import ResponseTextDeltaEvent

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    result = Runner.run_streamed(agent, "one two three")
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print(event.data.delta, end="|")
    print(result.final_output)


asyncio.run(main())
