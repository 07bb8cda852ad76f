import asyncio
from typing import get_args

from agents import (
    Agent,
    AgentUpdatedStreamEvent,
    CompactionItem,
    HandoffCallItem,
    HandoffOutputItem,
    HostedMCPTool,
    ItemHelpers,
    MCPApprovalRequestItem,
    MCPApprovalResponseItem,
    MCPListToolsItem,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    MessageOutputItem,
    RawResponsesStreamEvent,
    ReasoningItem,
    RunItem,
    RunItemStreamEvent,
    Runner,
    StreamEvent,
    ToolApprovalItem,
    ToolCallItem,
    ToolCallOutputItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
    function_tool,
)


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def approve(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
    print("asked", request.data.name, request.data.server_label, request.ctx_wrapper is not None)
    return {"approve": False, "reason": "no"}


mcp = HostedMCPTool(
    tool_config={
        "type": "mcp",
        "server_label": "docs",
        "server_url": "http://127.0.0.1/mcp",
        "require_approval": "always",
    },
    on_approval_request=approve,
)
other = Agent(name="Other", model="gpt-4.1")
agent = Agent(name="A", model="gpt-4.1", tools=[add, pay, mcp], handoffs=[other])
REASONING = 'do reasoning {"summary": [{"type": "summary_text", "text": "hm"}]}'
LISTED = 'do mcp_list_tools {"server_label": "docs", "tools": [{"name": "find", "input_schema": {}}]}'
SEARCH = 'do web_search_call {"action": {"type": "search", "query": "q"}}'


async def main() -> None:
    print(len(get_args(RunItem)) > 5, len(get_args(StreamEvent)))
    for text in (
        'call add {"a": 1, "b": 2} and call add {"a": 3, "b": 4}',
        'call pay {"amount": 3}',
        "call transfer_to_other {}",
        f'{REASONING} and call add {{"a": 1, "b": 2}}',
        f'{LISTED} and call add {{"a": 1, "b": 2}}',
        f'{SEARCH} and call add {{"a": 1, "b": 2}}',
    ):
        print("--", text[:40])
        result = Runner.run_streamed(agent, text)
        async for event in result.stream_events():
            if isinstance(event, RawResponsesStreamEvent):
                print(" ", event.data.type)
            elif isinstance(event, RunItemStreamEvent):
                print(event.name, type(event.item).__name__, event.item.agent.name)
            elif isinstance(event, AgentUpdatedStreamEvent):
                print("agent", event.new_agent.name)
        for item in result.new_items:
            match item:
                case MessageOutputItem():
                    print("message", ItemHelpers.text_message_output(item), item.raw_item.role)
                case ToolCallItem():
                    print(
                        "call",
                        item.tool_name,
                        item.call_id,
                        item.title,
                        item.description,
                        type(item.raw_item).__name__,
                        item.tool_origin,
                    )
                case ToolCallOutputItem():
                    print("output", item.output, item.call_id, item.raw_item, item.custom_data)
                case HandoffCallItem():
                    print("handoff", item.raw_item.name, type(item.raw_item).__name__)
                case HandoffOutputItem():
                    print("handed", item.source_agent.name, item.target_agent.name, item.raw_item)
                case ReasoningItem():
                    print("reasoning", item.raw_item.summary[0].text, type(item.raw_item).__name__)
                case MCPListToolsItem():
                    print("listed", item.raw_item.server_label, type(item.raw_item).__name__)
                case MCPApprovalRequestItem():
                    print("request", item.raw_item.name, type(item.raw_item).__name__)
                case MCPApprovalResponseItem():
                    print("response", item.raw_item)
                case ToolApprovalItem():
                    print("approval", item.tool_name, item.name, item.call_id, item.arguments, item.qualified_name)
                case ToolSearchCallItem() | ToolSearchOutputItem() | CompactionItem():
                    print("other", item.type)
        print(result.to_input_list())


asyncio.run(main())
