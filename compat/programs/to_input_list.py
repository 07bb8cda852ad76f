import asyncio

from agents import Agent, Runner

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    first = await Runner.run(agent, "one")
    second = await Runner.run(agent, first.to_input_list() + [{"role": "user", "content": "two"}])
    print(second.final_output, len(second.to_input_list()))


asyncio.run(main())
