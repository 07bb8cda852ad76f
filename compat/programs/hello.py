import asyncio

from agents import Agent, Runner

agent = Agent(name="A", instructions="Be brief.", model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, "hello")
    print(result.final_output, result.last_agent.name, len(result.new_items))


asyncio.run(main())
