import asyncio
import socket

import uvicorn
from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp, create_static_tool_filter
from mcp.server.mcpserver import MCPServer

server = MCPServer("calc", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def secret() -> str:
    """Tell a secret."""
    return "x"


@server.prompt()
def review(focus: str) -> str:
    """Review."""
    return f"Review with {focus}."


async def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=port, log_level="error"))
    task = asyncio.create_task(http.serve())
    while not http.started:
        await asyncio.sleep(0.01)
    async with MCPServerStreamableHttp(
        name="calc",
        params={"url": f"http://127.0.0.1:{port}/mcp"},
        cache_tools_list=True,
        tool_filter=create_static_tool_filter(allowed_tool_names=["add"]),
    ) as client:
        print([tool.name for tool in await client.list_tools()], client.name, client.cached_tools is not None)
        print([prompt.name for prompt in (await client.list_prompts()).prompts])
        prompt = await client.get_prompt("review", {"focus": "care"})
        print(prompt.messages[0].content.text)
        result = await Runner.run(Agent(name="A", model="gpt-4.1", mcp_servers=[client]), 'call add {"a": 1, "b": 2}')
        print(result.final_output, result.new_items[1].output)
        client.invalidate_tools_cache()
    http.should_exit = True
    await task


asyncio.run(main())
