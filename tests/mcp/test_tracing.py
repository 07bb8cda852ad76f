"""What traces tell about servers."""

import pytest
from opentelemetry.trace import StatusCode
from shops import Journal, stdio

from standfast import Agent, RunConfig, Runner
from standfast.mcp import MCPNotConnected, create_static_tool_filter
from standfast.testing import ScriptedModel, assistant_message, function_call
from telemetry import Exported

ONLY = create_static_tool_filter(allowed_tool_names=["stock"])
QUIET = RunConfig(workflow_name="Shopping")


async def test_a_run_tells_which_tools_a_server_listed(journal: Journal, exported: Exported) -> None:
    model = ScriptedModel([[function_call("stock", {"item": "tea"}, call_id="1")], [assistant_message("done")]])
    async with stdio(journal, tool_filter=ONLY) as server:
        agent = Agent("clerk", mcp_servers=[server], model=model)
        await Runner.run(agent, "stock?", run_config=QUIET)
    ours = [line for line in exported.tree() if "MCP send" not in line]  # what the library itself tells
    assert ours == [
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


async def test_a_list_that_failed_is_marked(journal: Journal, exported: Exported) -> None:
    agent = Agent("clerk", mcp_servers=[stdio(journal)], model=ScriptedModel([]))
    with pytest.raises(MCPNotConnected):
        await Runner.run(agent, "stock?")
    assert exported.named("tools/list").status.status_code is StatusCode.ERROR
