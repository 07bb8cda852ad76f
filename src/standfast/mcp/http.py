"""Servers that are reached over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict
from urllib.parse import urlsplit

from standfast.agents.errors import InvalidDeclaration
from standfast.agents.types import ToolErrorFunction
from standfast.mcp._client.client_server import ClientSessionServer
from standfast.mcp._client.tools import MCPToolCustomDataExtractor, MCPToolMetaResolver
from standfast.mcp.approval import RequireApprovalSetting
from standfast.mcp.filters import ToolFilter
from standfast.mcp.server import UNSET

if TYPE_CHECKING:
    from mcp.client.session import MessageHandlerFnT

    from standfast.mcp._client.http_client import FaultTolerantClient

HttpClientFactory = Callable[..., Any]


class MCPServerSseParams(TypedDict):
    """Where the server is. ``httpx_client_factory`` is called with ``headers``, ``timeout`` and ``auth``."""

    url: str
    headers: NotRequired[dict[str, str]]
    timeout: NotRequired[float]
    sse_read_timeout: NotRequired[float]
    auth: NotRequired[Any]
    httpx_client_factory: NotRequired[HttpClientFactory]


class MCPServerStreamableHttpParams(TypedDict):
    """Where the server is. ``httpx_client_factory`` is called with ``headers``, ``timeout`` and ``auth``."""

    url: str
    headers: NotRequired[dict[str, str]]
    timeout: NotRequired[timedelta | float]
    sse_read_timeout: NotRequired[timedelta | float]
    terminate_on_close: NotRequired[bool]
    auth: NotRequired[Any]
    httpx_client_factory: NotRequired[HttpClientFactory]
    ignore_initialized_notification_failure: NotRequired[bool]


class _HttpServer(ClientSessionServer):
    """What both kinds share: parameters with an address, and a name that gives away no secrets of it."""

    kind = ""

    def __init__(
        self,
        params: Any,
        cache_tools_list: bool = False,
        name: str | None = None,
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
        if not isinstance(params, dict) or not isinstance(params.get("url"), str):
            raise InvalidDeclaration(type(self).__name__, "params must be a dict with a url")
        self.params: Any = params
        where = urlsplit(params["url"])
        self._name = name or f"{self.kind}: {where.scheme}://{where.netloc.rpartition('@')[2]}{where.path}"
        super().__init__(
            cache_tools_list,
            client_session_timeout_seconds,
            tool_filter,
            use_structured_content,
            max_retry_attempts,
            retry_backoff_seconds_base,
            message_handler,
            require_approval,
            failure_error_function,
            tool_meta_resolver,
            custom_data_extractor,
            retry_backoff_seconds_max,
        )

    @property
    def name(self) -> str:
        return self._name


class MCPServerStreamableHttp(_HttpServer):
    """A server behind one address, by the Streamable HTTP transport."""

    kind = "streamable_http"
    _client: "FaultTolerantClient | None" = None

    @property
    def session_id(self) -> str | None:
        """The session's id as the server gave it; ``None`` when there is none."""
        return None if self._client is None else self._client.session_id

    @asynccontextmanager
    async def create_streams(self) -> AsyncIterator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from standfast.mcp._client.http_client import FaultTolerantClient

        params: MCPServerStreamableHttpParams = self.params
        limit = httpx2.Timeout(
            _to_seconds(params.get("timeout", 5)), read=_to_seconds(params.get("sse_read_timeout", 300))
        )
        make = params.get("httpx_client_factory", httpx2.AsyncClient)
        async with make(headers=params.get("headers"), timeout=limit, auth=params.get("auth")) as client:
            forgiving = params.get("ignore_initialized_notification_failure", False)
            self._client = steady = FaultTolerantClient(client, ignore_initialized_failure=forgiving)
            try:
                async with streamable_http_client(
                    params["url"],
                    http_client=steady,  # type: ignore[arg-type]
                    terminate_on_close=params.get("terminate_on_close", True),
                ) as streams:
                    yield streams
            finally:
                if self._client is steady:
                    self._client = None


class MCPServerSse(_HttpServer):
    """A server by the older transport: a stream of events and an address to post to."""

    kind = "sse"

    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        from mcp.client.sse import sse_client

        params: MCPServerSseParams = self.params
        factory = params.get("httpx_client_factory")
        return sse_client(
            params["url"],
            headers=params.get("headers"),
            timeout=params.get("timeout", 5),
            sse_read_timeout=params.get("sse_read_timeout", 300),
            auth=params.get("auth"),
            **({} if factory is None else {"httpx_client_factory": factory}),
        )


def _to_seconds(given: timedelta | float) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else given
