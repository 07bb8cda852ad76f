"""The toolbox of an agent: the tools and handoffs that its model is offered, by the names in the model's calls."""

import warnings
from dataclasses import dataclass
from typing import Any

from standfast.agents.agent import Agent
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.hosted_tools import HostedMCPTool
from standfast.agents.tool_identity import ToolRef, as_function_tool, match_tool
from standfast.agents.tools import FunctionTool, LocalTool, Tool, ToolOriginType


@dataclass(frozen=True)
class Toolbox:
    """The tools and handoffs offered to a model, with an index from the names in its calls to the objects."""

    tools: list[Tool]
    handoffs: list[Handoff[Any, Any]]
    tools_by_ref: dict[ToolRef, FunctionTool]
    handoffs_by_name: dict[str, Handoff[Any, Any]]

    @classmethod
    async def from_agent(cls, agent: Agent[Any], context: RunContextWrapper[Any], *, strict: bool = False) -> "Toolbox":
        """Return what the agent offers now. Of two with the same name only the first is offered.

        A handoff takes precedence over a tool, and the agent's own tool over one of an MCP server, so that a server
        cannot replace it. A name collision is a warning, or with ``strict`` an error.
        """
        handoffs: dict[str, Handoff[Any, Any]] = {}
        for handoff in await agent.get_handoffs(context):
            if handoff.tool_name in handoffs:
                _report_collision(agent, handoff.tool_name, strict)
            handoffs.setdefault(handoff.tool_name, handoff)
        tools: list[Tool] = []
        by_ref: dict[ToolRef, FunctionTool] = {}
        offered = await agent.get_all_tools(context)
        own = {ToolRef.from_tool(tool) for tool in offered if isinstance(tool, FunctionTool) and not _is_mcp_tool(tool)}
        for tool in offered:
            function = as_function_tool(tool)
            if function is not None:
                ref = ToolRef.from_tool(function)
                hidden = ref.kind == "bare" and ref.name in handoffs
                if ref in by_ref or hidden or (ref in own and _is_mcp_tool(function)):
                    _report_collision(agent, str(ref), strict)
                    continue
                by_ref[ref] = function
            tools.append(tool)
        return cls(tools, list(handoffs.values()), by_ref, handoffs)

    def find_tool(self, ref: ToolRef) -> FunctionTool | None:
        """Return the tool that a call refers to."""
        return match_tool(self.tools_by_ref, ref)

    def find_local_tool(self, call_type: str, name: str | None = None) -> LocalTool | None:
        """Return the tool for calls of this type, and of this name if they have one."""
        for tool in self.tools:
            if isinstance(tool, LocalTool) and tool.call_type == call_type and name in (None, tool.name):
                return tool
        return None

    def find_hosted_mcp(self, label: str | None) -> HostedMCPTool | None:
        """Return the hosted MCP server with this label."""
        for tool in self.tools:
            if isinstance(tool, HostedMCPTool) and tool.tool_config.get("server_label") == label:
                return tool
        return None


def _is_mcp_tool(tool: FunctionTool) -> bool:
    return tool.origin is not None and tool.origin.type is ToolOriginType.MCP


def _report_collision(agent: Agent[Any], name: str, strict: bool) -> None:
    text = f"the agent {agent.name!r} has more than one tool or handoff named {name!r}"
    if strict:
        raise UserError(text)
    warnings.warn(f"{text}; the first is used", UserWarning, stacklevel=2)
