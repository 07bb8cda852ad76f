"""The setting ``require_approval``."""

from typing import Any

import pytest
from mcp.types import ToolAnnotations

from factories.mcp import DoublingServer, ServerLog, stdio_server
from standfast import Agent, Runner, UserError
from standfast.testing import ScriptedModel, assistant_message, function_call


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, []),
        ("never", []),
        ("always", ["stock", "refund"]),
        (False, []),
        ({"refund": "always", "stock": "never"}, ["refund"]),
        ({"always": {"tool_names": ["refund"]}}, ["refund"]),
        ({"never": {"tool_names": ["stock"]}}, ["refund"]),
        ({"always": {"tool_names": ["stock"]}, "never": {"tool_names": ["stock", "refund"]}}, ["stock"]),
        (lambda context, agent, tool: not (tool.annotations and tool.annotations.read_only_hint), ["refund"]),
    ],
)
async def test_which_calls_need_approval(setting: Any, expected: list[str]) -> None:
    server = DoublingServer(
        require_approval=setting, hints={"stock": ToolAnnotations(read_only_hint=True), "refund": None}
    )
    calls = [function_call(name, {"n": 1}, call_id=name) for name in ("stock", "refund")]
    agent = Agent("clerk", mcp_servers=[server], model=ScriptedModel([calls, [assistant_message("done")]]))
    result = await Runner.run(agent, "both")
    assert [item.tool_name for item in result.interruptions] == expected


@pytest.mark.parametrize("setting", ["sometimes", {"refund": "maybe"}, {"often": {"tool_names": ["refund"]}}])
def test_an_invalid_setting_is_rejected(log: ServerLog, setting: Any) -> None:
    with pytest.raises(UserError, match="require_approval"):
        stdio_server(log, require_approval=setting)
