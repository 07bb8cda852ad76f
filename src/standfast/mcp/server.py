"""What every MCP server is to an agent: a source of tools, prompts and resources."""

import abc
from typing import TYPE_CHECKING, Any, Self

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.tools import Tool, default_tool_error_function
from standfast.agents.types import ToolErrorFunction
from standfast.base.errors import Unsupported
from standfast.mcp._client.tools import MCPToolCustomDataExtractor, MCPToolMetaResolver, MCPUtil
from standfast.mcp.approval import ApprovalRule, RequireApprovalSetting

if TYPE_CHECKING:
    from mcp.types import (
        CallToolResult,
        GetPromptResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ReadResourceResult,
    )
    from mcp.types import Tool as MCPTool

UNSET: Any = object()


class MCPServer(abc.ABC):
    """A server as an agent sees it. Subclass it for a server of your own making; the ready-made ones talk MCP.

    ``require_approval`` says which calls wait for a person. ``failure_error_function`` turns a failed call into words
    for the model and goes before that of ``Agent.mcp_config``; with ``None`` a failed call ends the run.
    """

    def __init__(
        self,
        use_structured_content: bool = False,
        require_approval: RequireApprovalSetting = None,
        failure_error_function: ToolErrorFunction | None = UNSET,
        tool_meta_resolver: MCPToolMetaResolver | None = None,
        custom_data_extractor: MCPToolCustomDataExtractor | None = None,
    ) -> None:
        self.use_structured_content = use_structured_content
        self.approval_rule = ApprovalRule(require_approval)
        self.tool_meta_resolver = tool_meta_resolver
        self.custom_data_extractor = custom_data_extractor
        self._failure_error_function = failure_error_function

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A name for people, logs and saved runs: keep it the same from process to process."""

    @property
    def cached_tools(self) -> "list[MCPTool] | None":
        """The tools as they were last listed, before any filter."""
        return None

    @abc.abstractmethod
    async def connect(self) -> None:
        """Start or reach the server. Any task may; a server that is connected stays so."""

    @abc.abstractmethod
    async def cleanup(self) -> None:
        """Let go of the server. Any task may, any number of times."""

    @abc.abstractmethod
    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> "list[MCPTool]":
        """The tools that this agent may see."""

    @abc.abstractmethod
    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> "CallToolResult":
        """Call a tool by the server's own name for it."""

    @abc.abstractmethod
    async def list_prompts(self) -> "ListPromptsResult":
        """The prompts that the server has."""

    @abc.abstractmethod
    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> "GetPromptResult":
        """A prompt, filled in."""

    async def list_resources(self, cursor: str | None = None) -> "ListResourcesResult":
        """One page of the resources; its ``next_cursor`` leads to the next."""
        raise Unsupported(f"the MCP server {self.name!r} has no resources")

    async def list_resource_templates(self, cursor: str | None = None) -> "ListResourceTemplatesResult":
        """One page of the resource templates."""
        raise Unsupported(f"the MCP server {self.name!r} has no resources")

    async def read_resource(self, uri: str) -> "ReadResourceResult":
        """The contents of a resource."""
        raise Unsupported(f"the MCP server {self.name!r} has no resources")

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def get_function_tools(self, run_context: RunContextWrapper[Any], agent: AgentBase[Any]) -> list[Tool]:
        """What it offers the agent now, as the agent's ``mcp_config`` wants it."""
        config, servers = agent.mcp_config, agent.mcp_servers
        before = servers[: servers.index(self)] if self in servers else []
        return await MCPUtil.get_function_tools(
            self,
            config.get("convert_schemas_to_strict", False),
            run_context,
            agent,
            config.get("failure_error_function", default_tool_error_function),
            config.get("include_server_in_tool_names", False),
            server_index=sum(server.name == self.name for server in before),
        )

    def resolve_error_function(self, default: ToolErrorFunction | None) -> ToolErrorFunction | None:
        """Who finds words for a failed call: the server's own function if it was given one."""
        return default if self._failure_error_function is UNSET else self._failure_error_function
