import asyncio
import sys
from pathlib import Path

from agents import Agent, RunContextWrapper, Runner, set_trace_processors
from agents.mcp import MCPServerManager, MCPServerStdio, create_static_tool_filter
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import TracingProcessor

SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop", log_level="ERROR")


@server.tool()
def stock(item: str) -> str:
    """Return how much is in stock."""
    return f"{item}: 3"


@server.tool()
def parts() -> list[str]:
    """Return several texts."""
    return ["one", "two"]


@server.tool()
def broken() -> str:
    """Fail."""
    raise ValueError("out of order")


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@server.resource("note://today")
def note() -> str:
    """Return today's note."""
    return "rain"


server.run()
'''


class Collector(TracingProcessor):
    def __init__(self) -> None:
        self.seen = []

    def on_trace_start(self, trace) -> None:
        pass

    def on_trace_end(self, trace) -> None:
        pass

    def on_span_start(self, span) -> None:
        pass

    def on_span_end(self, span) -> None:
        if span.span_data.type in ("mcp_tools", "function"):
            self.seen.append(
                {name: value for name, value in span.span_data.export().items() if name not in ("input", "output")}
            )

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


def make_server(name: str, **options) -> MCPServerStdio:
    params = {"command": sys.executable, "args": ["server.py"]}
    return MCPServerStdio(params=params, name=name, client_session_timeout_seconds=60, **options)


async def main() -> None:
    Path("server.py").write_text(SERVER)
    collector = Collector()
    set_trace_processors([collector])
    async with make_server("shop", cache_tools_list=True) as server:
        print([tool.name for tool in await server.list_tools()])
        steps = [
            [function_call("stock", {"item": "tea"}, call_id="c1"), function_call("parts", {}, call_id="c2")],
            [function_call("broken", {}, call_id="c3")],
            [assistant_message("done")],
        ]
        agent = Agent(name="A", model=ScriptedModel(steps), mcp_servers=[server])
        result = await Runner.run(agent, "go")
        print([item.output for item in result.new_items if item.type == "tool_call_output_item"])
        print([item.tool_origin.mcp_server_name for item in result.new_items if item.type == "tool_call_item"])
        print([prompt.name for prompt in (await server.list_prompts()).prompts])
        print((await server.get_prompt("greet", {"name": "Ada"})).messages[0].content.text)
        print([str(resource.uri) for resource in (await server.list_resources()).resources])
        print((await server.read_resource("note://today")).contents[0].text)
    print(collector.seen)
    set_trace_processors([])
    only = create_static_tool_filter(allowed_tool_names=["stock"])
    servers = [make_server("first", tool_filter=only), make_server("second", tool_filter=only)]
    async with MCPServerManager(servers, connect_in_parallel=True, connect_timeout_seconds=60) as manager:
        print(len(manager.active_servers), manager.failed_servers)
        agent = Agent(name="A", mcp_servers=manager.active_servers, mcp_config={"include_server_in_tool_names": True})
        print([tool.name for tool in await agent.get_mcp_tools(RunContextWrapper(None))])
        agent = Agent(name="A", mcp_servers=manager.active_servers)
        try:
            await agent.get_mcp_tools(RunContextWrapper(None))
        except Exception as error:
            print(type(error).__name__)


asyncio.run(main())
