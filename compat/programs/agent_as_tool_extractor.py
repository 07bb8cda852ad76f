import asyncio

from agents import Agent, Runner


async def shout(result) -> str:
    return result.final_output.upper()


poet = Agent(name="Poet", model="gpt-4.1")
front = Agent(
    name="Front", tools=[poet.as_tool("write_poem", "Poems.", custom_output_extractor=shout)], model="gpt-4.1"
)


async def main() -> None:
    print((await Runner.run(front, 'call write_poem {"input": "spring"}')).final_output)


asyncio.run(main())
