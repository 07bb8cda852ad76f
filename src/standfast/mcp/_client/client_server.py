"""A server behind a transport: what can be asked of it, trying again, and knowing when not to."""

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.types import ToolErrorFunction
from standfast.base.errors import MissingExtra
from standfast.mcp._client.connection import ReconnectingConnection
from standfast.mcp._client.tool_cache import ToolCache
from standfast.mcp._client.tools import MCPToolCustomDataExtractor, MCPToolMetaResolver, is_idempotent
from standfast.mcp.approval import RequireApprovalSetting
from standfast.mcp.errors import DEFAULT_HINT, MCPCallUncertain, MCPNotConnected, MCPUnavailable
from standfast.mcp.filters import ToolFilter, filter_tools, validate_tool_filter
from standfast.mcp.server import UNSET, MCPServer

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.client.session import MessageHandlerFnT
    from mcp.types import (
        CallToolResult,
        GetPromptResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ReadResourceResult,
    )
    from mcp.types import Tool as MCPTool

T = TypeVar("T")

_log = logging.getLogger("standfast.mcp")


class ClientSessionServer(MCPServer):
    """The part that all transports share.

    Any task may connect, call and clean up. ``client_session_timeout_seconds`` bounds every request. A request that
    surely did not reach the server is tried ``max_retry_attempts`` times more (-1: without end), with a growing pause;
    one that may have reached it only if it reads, or calls a tool that says that it may be called twice. A server that
    is found gone is connected to again by the next request.
    """

    hint = DEFAULT_HINT

    def __init__(
        self,
        cache_tools_list: bool = False,
        client_session_timeout_seconds: float | None = 5,
        tool_filter: ToolFilter = None,
        use_structured_content: bool = False,
        max_retry_attempts: int = 0,
        retry_backoff_seconds_base: float = 1.0,
        message_handler: "MessageHandlerFnT | None" = None,
        require_approval: RequireApprovalSetting = None,
        failure_error_function: ToolErrorFunction | None = UNSET,
        tool_meta_resolver: MCPToolMetaResolver | None = None,
        custom_data_extractor: MCPToolCustomDataExtractor | None = None,
        retry_backoff_seconds_max: float | None = None,
    ) -> None:
        if find_spec("mcp") is None:
            raise MissingExtra("mcp", f"an MCP server ({type(self).__name__})")
        super().__init__(
            use_structured_content, require_approval, failure_error_function, tool_meta_resolver, custom_data_extractor
        )
        if max_retry_attempts < -1:
            raise InvalidDeclaration(
                type(self).__name__, f"max_retry_attempts must be -1 or more, {max_retry_attempts=}"
            )
        validate_tool_filter(tool_filter, server_name=self.name)
        self.tool_filter = tool_filter
        self.max_retry_attempts = max_retry_attempts
        self._backoff_base = retry_backoff_seconds_base
        self._backoff_max = math.inf if retry_backoff_seconds_max is None else retry_backoff_seconds_max
        self.client_session_timeout_seconds = client_session_timeout_seconds
        self._message_handler = message_handler
        self._tool_cache = ToolCache(enabled=cache_tools_list)
        self._connection = ReconnectingConnection(self)

    @abstractmethod
    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        """The transport: a context that gives a stream of messages to read and one to write."""

    @property
    def cached_tools(self) -> "list[MCPTool] | None":
        return self._tool_cache.tools

    def invalidate_tools_cache(self) -> None:
        """List the tools anew when they are needed next. A server that says its tools changed does the same."""
        self._tool_cache.invalidate()

    async def connect(self) -> None:
        """Start or reach the server; :class:`MCPUnavailable` says why it could not be. Nothing is left open then."""
        await self._connection.open()

    async def cleanup(self) -> None:
        """Let go of the server within some seconds, whatever it does. Calls under way fail.

        Any task may ask, any number of times, also while another one connects. The server may be connected again.
        """
        self._tool_cache.invalidate()
        await self._connection.close()

    def invalidate_state(self) -> None:
        self._tool_cache.invalidate()

    async def handle_message(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._tool_cache.invalidate()
        if self._message_handler is not None:
            await self._message_handler(message)

    async def describe_exit(self) -> str:
        return ""

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> "list[MCPTool]":
        if not self._connection.is_open:
            raise MCPNotConnected(self.name)
        tools = self._tool_cache.fresh_tools
        if tools is None:
            tools = await self._request("list its tools", self._tool_cache.fetch, idempotent=True)
        return await filter_tools(tools, self.tool_filter, server_name=self.name, run_context=run_context, agent=agent)

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> "CallToolResult":
        """Call a tool once. It is called again after an uncertain end only if it says that this does no harm."""
        known = next((tool for tool in self.cached_tools or () if tool.name == tool_name), None)
        return await self._request(
            f"call {tool_name!r}",
            lambda session: session.send_request(*_build_call_request(tool_name, arguments, meta)),
            idempotent=known is not None and is_idempotent(known),
            tool_name=tool_name,
        )

    async def list_prompts(self) -> "ListPromptsResult":
        return await self._request("list its prompts", lambda session: session.list_prompts(), idempotent=True)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> "GetPromptResult":
        what = f"give the prompt {name!r}"
        return await self._request(what, lambda session: session.get_prompt(name, arguments), idempotent=True)

    async def list_resources(self, cursor: str | None = None) -> "ListResourcesResult":
        page = _build_page_params(cursor)
        return await self._request(
            "list its resources", lambda session: session.list_resources(params=page), idempotent=True
        )

    async def list_resource_templates(self, cursor: str | None = None) -> "ListResourceTemplatesResult":
        page, what = _build_page_params(cursor), "list its resource templates"
        return await self._request(what, lambda session: session.list_resource_templates(params=page), idempotent=True)

    async def read_resource(self, uri: str) -> "ReadResourceResult":
        return await self._request(f"give {uri}", lambda session: session.read_resource(uri), idempotent=True)

    async def _request(
        self,
        description: str,
        send: "Callable[[ClientSession], Awaitable[T]]",
        *,
        idempotent: bool,
        tool_name: str | None = None,
    ) -> T:
        """Ask, and ask again as far as that is safe and wanted. ``harmless`` requests may arrive twice."""
        attempt = 0
        while True:
            try:
                return await self._connection.request(description, send, tool_name=tool_name)
            except (MCPUnavailable, MCPCallUncertain) as error:
                spent = attempt == self.max_retry_attempts or not self._connection.is_open
                if spent or not (idempotent or isinstance(error, MCPUnavailable)):
                    error.tool_name = tool_name
                    raise
                _log.info("%s; trying again", error)
            await asyncio.sleep(min(self._backoff_base * 2 ** min(attempt, 30), self._backoff_max))
            attempt += 1


def _build_call_request(
    tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None
) -> "tuple[Any, Any]":
    """The request alone. The library's own function lists the tools after the call, which makes a call that was
    answered look lost when that fails, and runs regular expressions of the server's on the answer."""
    from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

    params = CallToolRequestParams.model_validate({"name": tool_name, "arguments": arguments, "_meta": meta})
    return CallToolRequest(params=params), CallToolResult


def _build_page_params(cursor: str | None) -> Any:
    from mcp.types import PaginatedRequestParams

    return None if cursor is None else PaginatedRequestParams(cursor=cursor)
