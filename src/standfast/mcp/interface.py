"""The base class of MCP servers: sources of tools, prompts and resources for agents."""

import abc
from typing import TYPE_CHECKING, Any, Self

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from standfast.agents.tools import Tool, default_tool_error_function
from standfast.agents.types import ToolErrorFunction
from standfast.base.errors import Unsupported
from standfast.mcp._client.tool_names import count_same_names
from standfast.mcp._client.tools import (
    DEFAULT_MAX_OUTPUT_CHARS,
    MCPToolCustomDataExtractor,
    MCPToolMetaResolver,
    MCPUtil,
)
from standfast.mcp.permissions import ApprovalRule, RequireApprovalSetting

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
    """A server as an agent sees it. Subclass it for your own kind of server.

    ``require_approval`` tells which tool calls need a person's approval. ``failure_error_function`` converts a failed
    call into a message for the model and takes precedence over the one in ``Agent.mcp_config``; with ``None`` a failed
    call ends the run. ``tool_input_guardrails`` and ``tool_output_guardrails`` apply to every tool of the server.
    """

    max_output_chars = DEFAULT_MAX_OUTPUT_CHARS
    """The text of an output is cut for the model after this number of characters, with a note that says so."""

    def __init__(
        self,
        use_structured_content: bool = False,
        require_approval: RequireApprovalSetting = None,
        failure_error_function: ToolErrorFunction | None = UNSET,
        tool_meta_resolver: MCPToolMetaResolver | None = None,
        custom_data_extractor: MCPToolCustomDataExtractor | None = None,
        *,
        tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None,
        tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None,
    ) -> None:
        self.use_structured_content = use_structured_content
        self.approval_rule = ApprovalRule(require_approval)
        self.tool_meta_resolver = tool_meta_resolver
        self.custom_data_extractor = custom_data_extractor
        self.tool_input_guardrails = tool_input_guardrails
        self.tool_output_guardrails = tool_output_guardrails
        self._failure_error_function = failure_error_function

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name in logs, errors and saved runs. It must be the same in every process."""

    @property
    def cached_tools(self) -> "list[MCPTool] | None":
        """The tools of the last listing, before any filter, or None."""
        return None

    @abc.abstractmethod
    async def connect(self) -> None:
        """Start the server or connect to it. Any task may call this; it has no effect if it is connected."""

    @abc.abstractmethod
    async def cleanup(self) -> None:
        """Disconnect from the server. Any task may call this, any number of times."""

    @abc.abstractmethod
    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> "list[MCPTool]":
        """Return the tools that the agent may use."""

    @abc.abstractmethod
    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> "CallToolResult":
        """Call a tool. ``tool_name`` is the name that the server uses."""

    @abc.abstractmethod
    async def list_prompts(self) -> "ListPromptsResult":
        """Return the server's prompts."""

    @abc.abstractmethod
    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> "GetPromptResult":
        """Return a prompt with its arguments filled in."""

    async def list_resources(self, cursor: str | None = None) -> "ListResourcesResult":
        """Return one page of the resources; pass its ``next_cursor`` as ``cursor`` to get the next."""
        raise Unsupported(f"the MCP server {self.name!r} does not support resources")

    async def list_resource_templates(self, cursor: str | None = None) -> "ListResourceTemplatesResult":
        """Return one page of the resource templates, as :meth:`list_resources` does."""
        raise Unsupported(f"the MCP server {self.name!r} does not support resources")

    async def read_resource(self, uri: str) -> "ReadResourceResult":
        """Return the contents of a resource."""
        raise Unsupported(f"the MCP server {self.name!r} does not support resources")

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def get_function_tools(self, run_context: RunContextWrapper[Any], agent: AgentBase[Any]) -> list[Tool]:
        """Return the current tools as function tools, converted according to the agent's ``mcp_config``."""
        config, servers = agent.mcp_config, agent.mcp_servers
        before = servers[: servers.index(self)] if self in servers else []
        return await MCPUtil.get_function_tools(
            self,
            config.get("convert_schemas_to_strict", False),
            run_context,
            agent,
            config.get("failure_error_function", default_tool_error_function),
            config.get("include_server_in_tool_names", False),
            server_index=count_same_names(self, before),
        )

    def resolve_error_function(self, default: ToolErrorFunction | None) -> ToolErrorFunction | None:
        """Return the server's ``failure_error_function`` if it was set, otherwise ``default``."""
        return default if self._failure_error_function is UNSET else self._failure_error_function
