"""What run settings refuse, and what items are as input."""

from pathlib import PureWindowsPath
from typing import Any

import pytest
from openai.types.responses import ResponseFunctionToolCall


async def make_message(arguments: Any) -> str:
    return "withheld"


@pytest.mark.parametrize("message", [make_message, "", 5])
def test_the_message_of_a_blocked_output_is_a_text_or_a_function_that_returns_it(lib: Any, message: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="output_guardrail_blocked_message"):
        lib.RunConfig(output_guardrail_blocked_message=message)


def test_whether_guardrails_come_before_approvals_is_a_bool(lib: Any) -> None:
    with pytest.raises(ValueError, match="pre_approval_tool_input_guardrails"):
        lib.ToolExecutionConfig(pre_approval_tool_input_guardrails="no")


def test_paths_of_the_host_are_not_granted_by_data(lib: Any) -> None:
    with pytest.raises(TypeError, match="extra_path_grants"):
        lib.RunConfig(sandbox={"manifest": {"extra_path_grants": [{"path": "/tmp"}]}})


@pytest.mark.parametrize("cwd", ["", "/workspace/a", "a/../b", "a\\b", PureWindowsPath("C:/a")])
def test_the_directory_of_a_run_is_below_the_workspace(lib: Any, cwd: Any) -> None:
    with pytest.raises(ValueError, match="cwd"):
        lib.RunConfig(sandbox={"cwd": cwd})


def test_a_path_of_windows_is_a_directory_of_the_workspace(lib: Any) -> None:
    assert lib.RunConfig(sandbox={"cwd": PureWindowsPath("a/b")}).sandbox.cwd == "a/b"


def test_items_are_input_without_their_creator(lib: Any) -> None:
    agent = lib.Agent(name="a")
    call = ResponseFunctionToolCall.model_validate(
        {"type": "function_call", "name": "f", "call_id": "c1", "arguments": "{}", "created_by": "server"}
    )
    assert "created_by" not in lib.ToolCallItem(agent, call).to_input_item()
    part = {"stdout": "ok", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}, "created_by": "server"}
    raw = {"type": "shell_call_output", "call_id": "c2", "output": [part], "created_by": "server"}
    item = lib.ToolCallOutputItem(agent, raw, "ok").to_input_item()
    assert "created_by" not in item
    assert "created_by" not in item["output"][0]
    assert part["created_by"] == raw["created_by"] == "server"
    response = lib.ModelResponse([call], lib.Usage(), None)
    assert "created_by" not in str(response.to_input_items())
