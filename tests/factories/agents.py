"""Tools and contexts for tests of declarations."""

from typing import Any

from standfast import FunctionTool, ToolContext


async def echo_arguments(context: ToolContext[Any], arguments: str) -> str:
    """Return the arguments; the ``on_invoke_tool`` of tools that only need to exist."""
    return arguments


def make_tool(name: str = "tool", *, schema: dict[str, Any] | None = None, **options: Any) -> FunctionTool:
    """Return a tool that echoes its arguments."""
    return FunctionTool(name, "", schema or {}, echo_arguments, **options)


def make_tool_context(name: str = "tool") -> ToolContext[None]:
    return ToolContext(None, tool_name=name, tool_call_id="call_1", tool_arguments="{}")
