"""Spans of tool listings."""

import pytest
from opentelemetry.trace import StatusCode

from factories.mcp import ServerLog, stdio_server
from standfast import Agent, RunConfig, Runner
from standfast.mcp import MCPNotConnected, create_static_tool_filter
from standfast.testing import ScriptedModel, assistant_message, function_call
from telemetry import ExportedSpans

ONLY_STOCK = create_static_tool_filter(allowed_tool_names=["stock"])
RUN_CONFIG = RunConfig(workflow_name="Shopping")


async def test_a_span_records_which_tools_a_server_listed(log: ServerLog, exported: ExportedSpans) -> None:
    model = ScriptedModel([[function_call("stock", {"item": "tea"}, call_id="1")], [assistant_message("done")]])
    async with stdio_server(log, tool_filter=ONLY_STOCK) as server:
        agent = Agent("clerk", mcp_servers=[server], model=model)
        await Runner.run(agent, "stock?", run_config=RUN_CONFIG)
    lines = [line for line in exported.tree() if "MCP send" not in line]  # spans of the library itself
    assert lines == [
        "invoke_workflow Shopping",
        "  invoke_agent clerk",
        "    turn 1",
        "      chat ScriptedModel",
        "      execute_tool stock",
        "      tools/list",
        "    turn 2",
        "      chat ScriptedModel",
        "      tools/list",
    ]
    first = next(span for span in exported.spans if span.name == "tools/list")
    assert first.attributes["mcp.method.name"] == "tools/list"
    assert first.attributes["standfast.mcp.server"] == "shop"
    assert first.attributes["standfast.mcp.tools"] == ("stock",)


async def test_the_span_of_a_failed_listing_is_marked_as_failed(log: ServerLog, exported: ExportedSpans) -> None:
    agent = Agent("clerk", mcp_servers=[stdio_server(log)], model=ScriptedModel([]))
    with pytest.raises(MCPNotConnected):
        await Runner.run(agent, "stock?")
    assert exported.named("tools/list").status.status_code is StatusCode.ERROR
