import asyncio

from agents import Agent, Runner

agent = Agent(name="A", instructions="One.", model="gpt-4.1")


async def main() -> None:
    copy = agent.clone(name="B", instructions="Two.")
    print(copy.name, (await Runner.run(copy, "hello")).last_agent.name)


asyncio.run(main())
