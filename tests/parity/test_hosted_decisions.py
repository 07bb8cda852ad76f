"""What is known of decisions about requests of hosted MCP servers."""

from typing import Any

from openai.types.responses import ResponseFunctionToolCall
from openai.types.responses.response_output_item import McpApprovalRequest


def make_item(lib: Any, call_id: str, server: str | None = None) -> Any:
    if server is None:
        raw: Any = ResponseFunctionToolCall(type="function_call", name="lookup", call_id=call_id, arguments="{}")
    else:
        raw = McpApprovalRequest(
            id=call_id, arguments="{}", name="lookup", server_label=server, type="mcp_approval_request"
        )
    return lib.ToolApprovalItem(agent=lib.Agent(name="a"), raw_item=raw)


def test_a_decision_about_one_server_is_none_about_another(lib: Any) -> None:
    context, other = lib.RunContextWrapper(None), make_item(lib, "r1", "mail")
    context.reject_tool(make_item(lib, "r1", "docs"), rejection_message="not this one")
    assert context.is_tool_approved("lookup", "r1") is False
    assert context.get_rejection_message("lookup", "r1") == "not this one"
    assert context.get_approval_status("lookup", "r1", existing_pending=other) is None
    assert context.get_rejection_message("lookup", "r1", existing_pending=other) is None


def test_a_request_that_was_decided_on_comes_before_a_lasting_decision_about_a_function(lib: Any) -> None:
    context = lib.RunContextWrapper(None)
    context.approve_tool(make_item(lib, "c1"), always_approve=True)
    context.reject_tool(make_item(lib, "r1", "docs"))
    assert context.is_tool_approved("lookup", "r1") is False
    assert context.is_tool_approved("lookup", "c2") is True
