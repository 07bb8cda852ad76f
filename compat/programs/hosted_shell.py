import asyncio

from agents import Agent, Runner, ShellTool

agent = Agent(
    name="A", tools=[ShellTool(environment={"type": "container_auto", "memory_limit": "1g"})], model="gpt-4.1"
)


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
