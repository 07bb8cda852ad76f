import asyncio

from agents import Agent, Runner

poet = Agent(name="Poet", model="gpt-4.1")
front = Agent(name="Front", tools=[poet.as_tool("write_poem", "Writes a poem.")], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(front, 'call write_poem {"input": "spring"}')
    print(result.final_output)


asyncio.run(main())
