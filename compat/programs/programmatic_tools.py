import asyncio

from agents import Agent, ProgrammaticToolCallingTool, Runner, function_tool


@function_tool(allowed_callers=["programmatic"])
def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


agent = Agent(name="A", tools=[ProgrammaticToolCallingTool(), add], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
