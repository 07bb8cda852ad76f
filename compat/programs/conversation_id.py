import asyncio

from agents import Agent, Runner

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello", conversation_id="conv_9")).final_output)


asyncio.run(main())
