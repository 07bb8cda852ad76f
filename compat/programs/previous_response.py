import asyncio

from agents import Agent, Runner

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    first = await Runner.run(agent, "one")
    second = await Runner.run(agent, "two", previous_response_id=first.last_response_id)
    print(first.last_response_id, second.final_output)


asyncio.run(main())
