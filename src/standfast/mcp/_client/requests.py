"""Requests to an MCP server over any transport: retries, the tool cache and the tool filter."""

import asyncio
import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from standfast.agents.types import ToolErrorFunction
from standfast.base.errors import MissingExtra
from standfast.base.log import get_logger
from standfast.base.time import Backoff
from standfast.base.validation import validate_integer
from standfast.mcp._client.connection import ReconnectingConnection
from standfast.mcp._client.tools import (
    DEFAULT_MAX_OUTPUT_CHARS,
    MCPToolCustomDataExtractor,
    MCPToolMetaResolver,
    is_idempotent,
)
from standfast.mcp.errors import DEFAULT_HINT, MCPCallUncertain, MCPNotConnected, MCPUnavailable
from standfast.mcp.interface import UNSET, MCPServer
from standfast.mcp.permissions import RequireApprovalSetting, ToolFilter, filter_tools, validate_tool_filter

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.client.session import MessageHandlerFnT
    from mcp.types import (
        CallToolResult,
        GetPromptResult,
        InitializeResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ReadResourceResult,
    )
    from mcp.types import Tool as MCPTool

T = TypeVar("T")

_log = get_logger("standfast.mcp")

DEFAULT_MAX_MESSAGE_BYTES = 8 * 2**20

# A tool list with more pages than this is assumed to be endless.
MAX_PAGES = 1000

MAX_TOOLS = 12_000
"""The number of tools of a server: all of them are prepared for each turn."""


class ToolCache:
    """The last list of tools. ``tools`` is that list, however old; ``fresh_tools`` is ``None`` if it is outdated."""

    def __init__(self, *, enabled: bool, max_bytes: int, max_pages: int | None = None) -> None:
        self.tools: list[MCPTool] | None = None
        self._max_pages, self._max_bytes = max_pages, max_bytes
        self._enabled, self._fresh, self._invalidations = enabled, False, 0

    @property
    def fresh_tools(self) -> "list[MCPTool] | None":
        return self.tools if self._enabled and self._fresh else None

    def invalidate(self) -> None:
        """Mark the last listing as outdated, and a listing in progress as well."""
        self._fresh = False
        self._invalidations += 1

    async def fetch(self, session: "ClientSession") -> "list[MCPTool]":
        """Request all pages of the list."""
        before = self._invalidations
        pages = await request_pages(session.list_tools, "tool", self._max_pages, self._max_bytes)
        tools = [tool for page in pages for tool in page.tools]
        if len(tools) > MAX_TOOLS:
            raise ValueError(f"a list of more than {MAX_TOOLS} tools")
        self.tools, self._fresh = tools, before == self._invalidations
        return tools


async def request_pages(
    request: Callable[..., Awaitable[Any]], kind: str, max_pages: int | None, max_bytes: int
) -> list[Any]:
    """Return all pages of a list. Raises :class:`UserError` if there are more than ``max_pages``.

    Raises :class:`ValueError` if the list has no end, or more than ``max_bytes``.
    """
    cursors: set[str] = set()
    pages, size = [await request()], 0
    while (cursor := pages[-1].next_cursor) is not None:
        if max_pages is not None and len(pages) == max_pages:
            raise UserError(f"the {kind} list of the MCP server has more than {max_pages} pages (max_list_pages)")
        if cursor in cursors or len(cursors) == MAX_PAGES:
            raise ValueError(f"the {kind} list has no end")
        cursors.add(cursor)
        size += len(pages[-1].model_dump_json(by_alias=True))
        if size > max_bytes:
            raise ValueError(f"a {kind} list of more than {max_bytes} bytes (see max_message_bytes)")
        pages.append(await request(params=_build_page_params(cursor)))
    return pages


class ClientSessionServer(MCPServer):
    """The base class of servers that are reached by MCP.

    Any task may connect, call and clean up. ``client_session_timeout_seconds`` bounds every request. A request that did
    not reach the server is retried up to ``max_retry_attempts`` times (-1: without limit) with exponential back-off. A
    request that may have reached it is retried only if it reads, or calls a tool that is declared idempotent. If the
    connection was lost, the next request opens a new one.

    The lists of tools and of prompts are read to their end; with ``max_list_pages`` a longer one is a
    :class:`UserError`. A message of more than ``max_message_bytes`` is refused while it is read, and its request fails;
    so does a list whose pages have more together.
    The text of an output is cut for the model after ``max_output_chars``; ``call_tool`` returns all of it.
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
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
        *,
        tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None,
        tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None,
        max_list_pages: int | None = None,
    ) -> None:
        if find_spec("mcp") is None:
            raise MissingExtra("mcp", f"an MCP server ({type(self).__name__})")
        super().__init__(
            use_structured_content,
            require_approval,
            failure_error_function,
            tool_meta_resolver,
            custom_data_extractor,
            tool_input_guardrails=tool_input_guardrails,
            tool_output_guardrails=tool_output_guardrails,
        )
        invalid = partial(InvalidDeclaration, type(self).__name__)
        validate_integer("max_retry_attempts", max_retry_attempts, minimum=-1, error=invalid)
        validate_integer("max_message_bytes", max_message_bytes, minimum=1, error=invalid)
        validate_integer("max_output_chars", max_output_chars, minimum=1, error=invalid)
        if max_list_pages is not None:
            validate_integer("max_list_pages", max_list_pages, minimum=1, error=invalid)
        self.max_list_pages = max_list_pages
        self.max_message_bytes, self.max_output_chars = max_message_bytes, max_output_chars
        validate_tool_filter(tool_filter, server_name=self.name)
        self.tool_filter = tool_filter
        self.max_retry_attempts = max_retry_attempts
        self.retry_backoff_seconds_base = retry_backoff_seconds_base
        self.retry_backoff_seconds_max = retry_backoff_seconds_max
        self.client_session_timeout_seconds = client_session_timeout_seconds
        self.message_handler = message_handler
        self.cache_tools_list = cache_tools_list
        self._tool_cache = ToolCache(enabled=cache_tools_list, max_bytes=max_message_bytes, max_pages=max_list_pages)
        self._connection = ReconnectingConnection(self)

    @abstractmethod
    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        """Return the transport: a context manager whose value is a stream to read and a stream to write messages."""

    @property
    def session(self) -> "ClientSession | None":
        """The session of the MCP library, while the server is connected."""
        return self._connection.session

    @property
    def server_initialize_result(self) -> "InitializeResult | None":
        """What the server said of itself when it was connected."""
        return self._connection.initialize_result

    @property
    def cached_tools(self) -> "list[MCPTool] | None":
        return self._tool_cache.tools

    def invalidate_tools_cache(self) -> None:
        """Discard the cached tools, so that they are listed again. Also done when the server announces a change."""
        self._tool_cache.invalidate()

    async def connect(self) -> None:
        """Start the server or connect to it. If that fails, raises :class:`MCPUnavailable` and leaves nothing open."""
        await self._connection.open()

    async def cleanup(self) -> None:
        """Disconnect within a few seconds, whatever the server does. Pending calls fail.

        Any task may call this, any number of times, even while another one connects. The server can be connected again.
        """
        self._tool_cache.invalidate()
        await self._connection.close()

    def invalidate_state(self) -> None:
        """Forget what is cached of the server."""
        self._tool_cache.invalidate()

    async def handle_message(self, message: Any) -> None:
        """Take a message that the server sends without being asked."""
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._tool_cache.invalidate()
        if self.message_handler is not None:
            await self.message_handler(message)

    async def describe_exit(self) -> str:
        """Return how the server's process ended, an empty text if it has none."""
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
        """Call a tool. After an uncertain outcome the call is repeated only if the tool is declared idempotent."""
        tool = next((tool for tool in self.cached_tools or () if tool.name == tool_name), None)
        return await self._request(
            f"call {tool_name!r}",
            lambda session: session.send_request(*_build_call_request(tool_name, arguments, meta)),
            idempotent=tool is not None and is_idempotent(tool),
            tool_name=tool_name,
        )

    async def list_prompts(self) -> "ListPromptsResult":
        async def fetch(session: "ClientSession") -> "ListPromptsResult":
            pages = await request_pages(session.list_prompts, "prompt", self.max_list_pages, self.max_message_bytes)
            first: ListPromptsResult = pages[0]
            prompts = [prompt for page in pages for prompt in page.prompts]
            return first.model_copy(update={"prompts": prompts, "next_cursor": None})

        return await self._request("list its prompts", fetch, idempotent=True)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> "GetPromptResult":
        description = f"return the prompt {name!r}"
        return await self._request(description, lambda session: session.get_prompt(name, arguments), idempotent=True)

    async def list_resources(self, cursor: str | None = None) -> "ListResourcesResult":
        page = _build_page_params(cursor)
        return await self._request(
            "list its resources", lambda session: session.list_resources(params=page), idempotent=True
        )

    async def list_resource_templates(self, cursor: str | None = None) -> "ListResourceTemplatesResult":
        page = _build_page_params(cursor)
        return await self._request(
            "list its resource templates", lambda session: session.list_resource_templates(params=page), idempotent=True
        )

    async def read_resource(self, uri: str) -> "ReadResourceResult":
        return await self._request(
            f"return the resource {uri}", lambda session: session.read_resource(uri), idempotent=True
        )

    async def _request(
        self,
        description: str,
        send: "Callable[[ClientSession], Awaitable[T]]",
        *,
        idempotent: bool,
        tool_name: str | None = None,
    ) -> T:
        """Send a request, with retries. After an uncertain outcome only an ``idempotent`` request is repeated."""
        longest = math.inf if self.retry_backoff_seconds_max is None else self.retry_backoff_seconds_max
        backoff = Backoff(initial=self.retry_backoff_seconds_base, maximum=longest)
        while True:
            try:
                return await self._connection.request(description, send, tool_name=tool_name)
            except (MCPUnavailable, MCPCallUncertain) as error:
                exhausted = backoff.attempt == self.max_retry_attempts or not self._connection.is_open
                if exhausted or not (idempotent or isinstance(error, MCPUnavailable)):
                    error.tool_name = tool_name
                    raise
                _log.info("%s; retrying", error)
            await asyncio.sleep(backoff.next_delay())


def _build_call_request(
    tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None
) -> "tuple[Any, Any]":
    """Build the arguments of ``send_request`` for a tool call.

    The library's ``call_tool`` is not used: it also lists the tools after the call, so that a completed call fails if
    that fails, and it applies regular expressions from the server to the result.
    """
    from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

    params = CallToolRequestParams.model_validate({"name": tool_name, "arguments": arguments, "_meta": meta})
    return CallToolRequest(params=params), CallToolResult


def _build_page_params(cursor: str | None) -> Any:
    from mcp.types import PaginatedRequestParams

    return None if cursor is None else PaginatedRequestParams(cursor=cursor)
