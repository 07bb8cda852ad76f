import asyncio

from agents import Agent, AgentOutputSchema, Runner

agent = Agent(name="A", output_type=AgentOutputSchema(dict[str, int], strict_json_schema=False), model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "where?")).final_output)


asyncio.run(main())
