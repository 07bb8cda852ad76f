import asyncio

from agents import Agent, Runner, function_tool
from agents.tool_context import ToolContext


@function_tool
async def who(context: ToolContext[str], loud: bool = False) -> str:
    """Who asks."""
    return f"{context.context} {context.tool_name} {loud}"


agent = Agent[str](name="A", tools=[who], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'call who {"loud": true}', context="ann")
    print(result.final_output)


asyncio.run(main())
