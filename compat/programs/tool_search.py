import asyncio

from agents import Agent, Runner, ToolSearchTool, function_tool, tool_namespace


@function_tool(defer_loading=True)
def find(customer: str) -> str:
    """Find a customer."""
    return customer


agent = Agent(
    name="A",
    tools=[*tool_namespace(name="crm", description="Customers.", tools=[find]), ToolSearchTool()],
    model="gpt-4.1",
)


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
