"""An MCP server whose tools need approval, in a run that is saved and resumed, and managed servers."""

import asyncio
import sys

from agents import Agent, RunContextWrapper, Runner, RunState
from agents.mcp import MCPServerManager, MCPServerStdio, ToolFilterContext

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("files")


@server.tool()
def read(path: str) -> str:
    "Read a file."
    return f"contents of {path}"


@server.tool()
def delete(path: str, force: bool = False) -> list[str]:
    "Delete a file."
    if path == "/":
        raise ValueError("not the root")
    return ["deleted", path]


server.run("stdio")
"""


def allow(context: ToolFilterContext, tool) -> bool:
    return context.agent.name != "Guest" or tool.name == "read"


def build(name="Files", **options):
    return MCPServerStdio(
        name=name,
        params={"command": sys.executable, "args": ["-c", SERVER]},
        client_session_timeout_seconds=60,
        **options,
    )


async def main() -> None:
    approvals = {"always": {"tool_names": ["delete"]}, "never": {"tool_names": ["read"]}}
    async with build(require_approval=approvals, tool_filter=allow, use_structured_content=True) as server:
        agent = Agent(name="Clerk", mcp_servers=[server], mcp_config={"convert_schemas_to_strict": True})
        guest = agent.clone(name="Guest")
        print([tool.name for tool in await agent.get_mcp_tools(RunContextWrapper(context=None))])
        print([tool.name for tool in await guest.get_mcp_tools(RunContextWrapper(context=None))])
        for path in ("/tmp/a", "/"):
            text = f'call read {{"path": "{path}"}} and call delete {{"path": "{path}", "force": true}}'
            result = await Runner.run(agent, text)
            print([(item.name, item.arguments) for item in result.interruptions])
            state = await RunState.from_json(agent, result.to_state().to_json())
            for item in state.get_interruptions():
                state.approve(item)
            result = await Runner.run(agent, state)
            print(result.final_output)
            for item in result.new_items:
                if item.type == "tool_call_output_item":
                    print(item.output, item.tool_origin.type.value, item.tool_origin.mcp_server_name)
        try:
            await Runner.run(guest, 'call delete {"path": "/tmp/b"}')
        except Exception as error:
            print(type(error).__name__, error)
    async with MCPServerManager([build("one"), MCPServerStdio({"command": "/no/such/program"}, name="two")]) as manager:
        print([server.name for server in manager.active_servers], [server.name for server in manager.failed_servers])
        result = await Runner.run(Agent(name="M", mcp_servers=manager.active_servers), 'call read {"path": "x"}')
        print(result.final_output)


asyncio.run(main())
