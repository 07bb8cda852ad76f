"""A server behind a transport: connecting, asking, trying again, and knowing when not to."""

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.agents.agent import AgentBase
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.errors import InvalidDeclaration
from holdfast.agents.types import ToolErrorFunction
from holdfast.base.errors import Closed, MissingExtra
from holdfast.lifecycle import Deadline
from holdfast.mcp.approval import RequireApprovalSetting
from holdfast.mcp.errors import ADVICE, MCPCallRefused, MCPCallUncertain, MCPNotConnected, MCPUnavailable
from holdfast.mcp.filters import ToolFilter, check_filter, filtered
from holdfast.mcp.listing import Listing
from holdfast.mcp.server import UNSET, MCPServer
from holdfast.mcp.tools import MCPToolCustomDataExtractor, MCPToolMetaResolver, repeatable

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

    from holdfast.mcp.link import Link

T = TypeVar("T")

_log = logging.getLogger("holdfast.mcp")

# How long letting go of a server may take, whatever the server does.
CLOSING = 6.0


class ConnectedServer(MCPServer):
    """The part that all transports share.

    Any task may connect, call and clean up. ``client_session_timeout_seconds`` bounds every request. A request that
    surely did not reach the server is tried ``max_retry_attempts`` times more (-1: without end), with a growing pause;
    one that may have reached it only if it reads, or calls a tool that says that it may be called twice. A server that
    is found gone is connected to again by the next request.
    """

    advice = ADVICE

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
        check_filter(tool_filter, server_name=self.name)
        self.tool_filter = tool_filter
        self.max_retry_attempts = max_retry_attempts
        self._pause, self._longest_pause = retry_backoff_seconds_base, retry_backoff_seconds_max
        self._timeout = client_session_timeout_seconds
        self._message_handler = message_handler
        self._listing = Listing(keep=cache_tools_list)
        self._link: Link | None = None
        self._session: ClientSession | None = None
        self._wanted = False
        self._connecting = asyncio.Lock()

    @abstractmethod
    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        """The transport: a context that gives a stream of messages to read and one to write."""

    @property
    def cached_tools(self) -> "list[MCPTool] | None":
        return self._listing.tools

    def invalidate_tools_cache(self) -> None:
        """List the tools anew when they are needed next. A server that says its tools changed does the same."""
        self._listing.forget()

    async def connect(self) -> None:
        """Start or reach the server; :class:`MCPUnavailable` says why it could not be. Nothing is left open then."""
        before, self._wanted = self._wanted, True
        try:
            await self._connected()
        except BaseException:
            self._wanted = before
            raise

    async def cleanup(self) -> None:
        """Let go of the server within some seconds, whatever it does. Calls under way fail.

        Any task may ask, any number of times, also while another one connects. The server may be connected again.
        """
        self._wanted = False
        link = self._link
        self._listing.forget()
        if link is not None:
            await link.close(Deadline.after(CLOSING))
            if self._link is link:
                self._link = self._session = None

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> "list[MCPTool]":
        if not self._wanted:
            raise MCPNotConnected(self.name)
        tools = self._listing.kept
        if tools is None:
            tools = await self._ask("list its tools", self._listing.fetch, harmless=True)
        return await filtered(tools, self.tool_filter, server_name=self.name, run_context=run_context, agent=agent)

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> "CallToolResult":
        """Call a tool once. It is called again after an uncertain end only if it says that this does no harm."""
        known = next((tool for tool in self.cached_tools or () if tool.name == tool_name), None)
        return await self._ask(
            f"call {tool_name!r}",
            lambda session: session.call_tool(tool_name, arguments, meta=meta),  # type: ignore[arg-type]
            harmless=known is not None and repeatable(known),
            tool_name=tool_name,
        )

    async def list_prompts(self) -> "ListPromptsResult":
        return await self._ask("list its prompts", lambda session: session.list_prompts(), harmless=True)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> "GetPromptResult":
        what = f"give the prompt {name!r}"
        return await self._ask(what, lambda session: session.get_prompt(name, arguments), harmless=True)

    async def list_resources(self, cursor: str | None = None) -> "ListResourcesResult":
        page = _page(cursor)
        return await self._ask("list its resources", lambda session: session.list_resources(params=page), harmless=True)

    async def list_resource_templates(self, cursor: str | None = None) -> "ListResourceTemplatesResult":
        page, what = _page(cursor), "list its resource templates"
        return await self._ask(what, lambda session: session.list_resource_templates(params=page), harmless=True)

    async def read_resource(self, uri: str) -> "ReadResourceResult":
        return await self._ask(f"give {uri}", lambda session: session.read_resource(uri), harmless=True)

    async def _ask(
        self,
        what: str,
        ask: "Callable[[ClientSession], Awaitable[T]]",
        *,
        harmless: bool,
        tool_name: str | None = None,
    ) -> T:
        """Ask, and ask again as far as that is safe and wanted. ``harmless`` requests may arrive twice."""
        attempt = 0
        while True:
            try:
                return await self._ask_once(what, ask, tool_name)
            except (MCPUnavailable, MCPCallUncertain) as error:
                spent = attempt == self.max_retry_attempts or not self._wanted
                if spent or not (harmless or isinstance(error, MCPUnavailable)):
                    error.tool_name = tool_name
                    raise
                _log.info("%s; trying again", error)
            await asyncio.sleep(min(self._pause * 2 ** min(attempt, 30), self._longest_pause or math.inf))
            attempt += 1

    async def _ask_once(self, what: str, ask: "Callable[[ClientSession], Awaitable[T]]", tool_name: str | None) -> T:
        from mcp import MCPError

        from holdfast.mcp.link import counted, fault_of

        for again in (False, True):
            link, session = await self._connected()
            try:
                with counted() as sent:
                    async with asyncio.timeout(self._timeout) as clock:
                        return await ask(session)
            except TimeoutError:
                if not clock.expired():
                    raise
                late = f"did not answer within {self._timeout:g} seconds"
                raise MCPCallUncertain(self.name, what, late, tool_name=tool_name) from None
            except MCPError as error:
                fault = fault_of(error, sent)
                if fault == "lost":
                    link.end()
                if fault in ("lost", "unsent"):
                    if not again and not link.alive:  # it was not even looked at, for want of a connection
                        continue
                    raise MCPUnavailable(self.name, error.message, advice=self.advice, tool_name=tool_name) from error
                if fault == "cut":
                    why = await self._last_words() or error.message
                    lost = f"was lost before it answered ({why})"
                    raise MCPCallUncertain(self.name, what, lost, tool_name=tool_name) from error
                raise MCPCallRefused(self.name, what, error.message, tool_name=tool_name) from error
            except (RuntimeError, ValueError) as error:  # the library's word for answers that break the protocol
                raise MCPCallRefused(self.name, what, str(error), tool_name=tool_name) from error
        raise AssertionError

    async def _connected(self) -> "tuple[Link, ClientSession]":
        """The connection there is, or a new one when the old one is gone."""
        if not self._wanted:
            raise MCPNotConnected(self.name)
        async with self._connecting:
            if self._link is not None and self._session is not None and self._link.alive:
                return self._link, self._session
            if not self._wanted:
                raise MCPNotConnected(self.name)
            return await self._connect_anew()

    async def _connect_anew(self) -> "tuple[Link, ClientSession]":
        from holdfast.mcp.link import Link, leaf

        if self._link is not None:
            await self._link.close(Deadline.after(CLOSING))
            if not self._wanted:
                raise MCPNotConnected(self.name)
        self._listing.forget()
        self._session = None
        self._link = link = Link(self.create_streams, name=self.name, on_message=self._heard)
        try:
            async with asyncio.timeout(self._timeout) as clock:
                session = await link.open()
        except Closed:
            raise MCPNotConnected(self.name) from None
        except TimeoutError as late:
            why = f"it did not answer within {self._timeout:g} seconds" if clock.expired() else str(late)
            raise MCPUnavailable(self.name, why, advice=self.advice) from late
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            cause = leaf(error)
            why = await self._last_words() or str(cause) or repr(cause)
            raise MCPUnavailable(self.name, why, advice=self.advice) from cause
        self._session = session
        return link, session

    async def _heard(self, message: Any) -> None:
        """Every notification of the server, and what its transport could not read."""
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._listing.forget()
        if self._message_handler is not None:
            await self._message_handler(message)

    async def _last_words(self) -> str:
        """What is known about the end of the server, if anything."""
        return ""


def _page(cursor: str | None) -> Any:
    from mcp.types import PaginatedRequestParams

    return None if cursor is None else PaginatedRequestParams(cursor=cursor)
