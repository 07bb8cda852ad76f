import asyncio

from agents import Agent, HostedMCPTool, Runner

config = {"type": "mcp", "server_label": "git", "server_url": "https://example.com/mcp", "require_approval": "never"}
agent = Agent(name="A", tools=[HostedMCPTool(tool_config=config)], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
