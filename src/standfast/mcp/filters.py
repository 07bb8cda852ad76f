"""Which of a server's tools an agent may see."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.types import MaybeAwaitable, maybe_await

if TYPE_CHECKING:
    from mcp.types import Tool as MCPTool

_log = logging.getLogger("standfast.mcp")


class ToolFilterStatic(TypedDict):
    """Tools by name. When both are given, a tool must be allowed and not blocked."""

    allowed_tool_names: NotRequired[list[str]]
    blocked_tool_names: NotRequired[list[str]]


@dataclass
class ToolFilterContext:
    """For whom a filter decides."""

    run_context: RunContextWrapper[Any]
    agent: AgentBase[Any]
    server_name: str


ToolFilterCallable: TypeAlias = Callable[[ToolFilterContext, "MCPTool"], MaybeAwaitable[bool]]
ToolFilter: TypeAlias = ToolFilterCallable | ToolFilterStatic | None


def create_static_tool_filter(
    allowed_tool_names: list[str] | None = None, blocked_tool_names: list[str] | None = None
) -> ToolFilterStatic | None:
    """A filter by names; ``None`` when there is nothing to filter by."""
    found: ToolFilterStatic = {}
    if allowed_tool_names is not None:
        found["allowed_tool_names"] = allowed_tool_names
    if blocked_tool_names is not None:
        found["blocked_tool_names"] = blocked_tool_names
    return found or None


def validate_tool_filter(tool_filter: ToolFilter, *, server_name: str) -> None:
    """A filter that cannot work is refused when the server is declared, not when a model is asked."""
    if tool_filter is None or callable(tool_filter):
        return
    known = {"allowed_tool_names", "blocked_tool_names"}
    if not isinstance(tool_filter, dict) or set(tool_filter) - known:
        raise InvalidDeclaration(
            f"MCP server {server_name!r}",
            f"tool_filter must be a function or a dict with {' and '.join(sorted(known))}, got {tool_filter!r}",
        )


async def filter_tools(
    tools: "Sequence[MCPTool]",
    tool_filter: ToolFilter,
    *,
    server_name: str,
    run_context: RunContextWrapper[Any] | None,
    agent: AgentBase[Any] | None,
) -> "list[MCPTool]":
    """The tools that the filter lets pass. A function that fails about a tool keeps it out, and the log says so."""
    if tool_filter is None:
        return list(tools)
    if not callable(tool_filter):
        allowed, blocked = tool_filter.get("allowed_tool_names"), tool_filter.get("blocked_tool_names") or ()
        return [tool for tool in tools if (allowed is None or tool.name in allowed) and tool.name not in blocked]
    if run_context is None or agent is None:
        raise UserError(
            f"the tool_filter of the MCP server {server_name!r} is a function: "
            "list_tools() needs the run_context and the agent it decides for"
        )
    context = ToolFilterContext(run_context, agent, server_name)
    return [tool for tool in tools if await _is_allowed(tool_filter, context, tool)]


async def _is_allowed(tool_filter: ToolFilterCallable, context: ToolFilterContext, tool: "MCPTool") -> bool:
    try:
        return bool(await maybe_await(tool_filter(context, tool)))
    except Exception:  # noqa: BLE001 - whatever the user's function raises
        _log.exception("the tool_filter of %r failed about %r, which is kept out", context.server_name, tool.name)
        return False
