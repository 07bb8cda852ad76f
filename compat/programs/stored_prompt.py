import asyncio

from agents import Agent, Runner

agent = Agent(name="A", prompt={"id": "pmpt_1", "version": "2", "variables": {"style": "haiku"}})


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
