import asyncio

from agents import Agent, Runner, set_default_openai_responses_transport


async def main() -> None:
    agent = Agent(name="Assistant")
    result = await Runner.run(agent, "Hello")
    print(result.final_output)
    result = Runner.run_streamed(agent, "Hello again")
    async for event in result.stream_events():
        print(event.type, getattr(getattr(event, "data", None), "type", ""))
    print(result.final_output)


set_default_openai_responses_transport("websocket")
try:
    asyncio.run(main())
finally:
    set_default_openai_responses_transport("http")
try:
    set_default_openai_responses_transport("carrier pigeon")
except ValueError:
    print("refused")
