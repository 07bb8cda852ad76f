import asyncio

from agents import Agent, ModelBehaviorError, Runner

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    try:
        await Runner.run(agent, "call nothing {}")
    except ModelBehaviorError:
        print("no such tool")


asyncio.run(main())
