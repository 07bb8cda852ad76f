import asyncio

from agents import Agent, CodeInterpreterTool, FileSearchTool, HostedMCPTool, Runner, WebSearchTool, trace


async def main() -> None:
    agent = Agent(
        name="Web searcher",
        instructions="You are a helpful agent.",
        tools=[
            WebSearchTool(user_location={"type": "approximate", "city": "New York"}, search_context_size="low"),
            FileSearchTool(max_num_results=3, vector_store_ids=["vs_1"], include_search_results=True),
            CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}}),
            HostedMCPTool(
                tool_config={
                    "type": "mcp",
                    "server_label": "gitmcp",
                    "server_url": "https://gitmcp.io/a/b",
                    "require_approval": "never",
                }
            ),
        ],
    )
    with trace("Web search example"):
        result = await Runner.run(agent, "search the web for local sports news")
    print(result.final_output, [tool.name for tool in agent.tools])


asyncio.run(main())
