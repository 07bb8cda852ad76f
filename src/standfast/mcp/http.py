"""MCP servers over HTTP: Streamable HTTP and the older SSE transport."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict
from urllib.parse import urlsplit

from standfast.agents.errors import InvalidDeclaration
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from standfast.agents.types import ToolErrorFunction
from standfast.mcp._client.log_privacy import hide_credentials
from standfast.mcp._client.requests import DEFAULT_MAX_MESSAGE_BYTES, ClientSessionServer
from standfast.mcp._client.tools import DEFAULT_MAX_OUTPUT_CHARS, MCPToolCustomDataExtractor, MCPToolMetaResolver
from standfast.mcp.interface import UNSET
from standfast.mcp.permissions import RequireApprovalSetting, ToolFilter

if TYPE_CHECKING:
    import httpx2
    from mcp.client.session import MessageHandlerFnT

    from standfast.mcp._client.http_client import FaultTolerantClient

HttpClientFactory = Callable[..., Any]


class MCPServerSseParams(TypedDict):
    """The address of the server. ``httpx_client_factory`` is called with ``headers``, ``timeout`` and ``auth``."""

    url: str
    """The address."""
    headers: NotRequired[dict[str, str]]
    """Headers of every request."""
    timeout: NotRequired[float]
    """Seconds for a connection and a request, by default 5."""
    sse_read_timeout: NotRequired[float]
    """Seconds that the event stream may be silent, by default 300."""
    auth: NotRequired[Any]
    """The authentication of the HTTP client."""
    httpx_client_factory: NotRequired[HttpClientFactory]
    """Makes the HTTP client."""


class MCPServerStreamableHttpParams(TypedDict):
    """The address of the server. ``httpx_client_factory`` is called with ``headers``, ``timeout`` and ``auth``."""

    url: str
    """The address."""
    headers: NotRequired[dict[str, str]]
    """Headers of every request."""
    timeout: NotRequired[timedelta | float]
    """Seconds for a connection and a request, by default 5."""
    sse_read_timeout: NotRequired[timedelta | float]
    """Seconds that an answer may be silent, by default 300."""
    terminate_on_close: NotRequired[bool]
    """Whether closing ends the session on the server, by default True."""
    auth: NotRequired[Any]
    """The authentication of the HTTP client."""
    httpx_client_factory: NotRequired[HttpClientFactory]
    """Makes the HTTP client."""
    ignore_initialized_notification_failure: NotRequired[bool]
    """Whether a server that refuses the notification ``initialized`` is used all the same."""


class _HttpServer(ClientSessionServer):
    """The common part of both transports. The default name contains no credentials or query of the URL."""

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
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
        *,
        tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None,
        tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None,
        max_list_pages: int | None = None,
    ) -> None:
        if not isinstance(params, dict) or not isinstance(params.get("url"), str):
            raise InvalidDeclaration(type(self).__name__, "params must be a dict with the key 'url'")
        self.params: Any = params
        hide_credentials(params["url"])
        url = urlsplit(params["url"])
        self._name = name or f"{self.kind}: {url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
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
            max_message_bytes,
            max_output_chars,
            tool_input_guardrails=tool_input_guardrails,
            tool_output_guardrails=tool_output_guardrails,
            max_list_pages=max_list_pages,
        )

    @property
    def name(self) -> str:
        return self._name


class MCPServerStreamableHttp(_HttpServer):
    """A server that is reached by the Streamable HTTP transport."""

    kind = "streamable_http"
    _client: "FaultTolerantClient | None" = None

    @property
    def session_id(self) -> str | None:
        """The id that the server assigned to the session, or None."""
        return None if self._client is None else self._client.session_id

    @asynccontextmanager
    async def create_streams(self) -> AsyncIterator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from standfast.mcp._client.http_client import FaultTolerantClient
        from standfast.mcp._client.message_limits import limit_bodies

        params: MCPServerStreamableHttpParams = self.params
        timeout = httpx2.Timeout(
            _to_seconds(params.get("timeout", 5)), read=_to_seconds(params.get("sse_read_timeout", 300))
        )
        factory = params.get("httpx_client_factory", httpx2.AsyncClient)
        async with factory(headers=params.get("headers"), timeout=timeout, auth=params.get("auth")) as client:
            limit_bodies(client, self.max_message_bytes)
            ignore_failure = params.get("ignore_initialized_notification_failure", False)
            self._client = tolerant = FaultTolerantClient(client, ignore_initialized_failure=ignore_failure)
            try:
                async with streamable_http_client(
                    params["url"],
                    http_client=tolerant,  # type: ignore[arg-type]
                    terminate_on_close=params.get("terminate_on_close", True),
                ) as streams:
                    yield streams
            finally:
                if self._client is tolerant:
                    self._client = None


class MCPServerSse(_HttpServer):
    """A server that is reached by the older transport: server-sent events and an endpoint for POST requests."""

    kind = "sse"

    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        from mcp.client.sse import sse_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        from standfast.mcp._client.message_limits import limit_bodies

        params: MCPServerSseParams = self.params
        factory = params.get("httpx_client_factory", create_mcp_http_client)

        def create_limited_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> "httpx2.AsyncClient":
            return limit_bodies(factory(headers=headers, timeout=timeout, auth=auth), self.max_message_bytes)

        return sse_client(
            params["url"],
            headers=params.get("headers"),
            timeout=params.get("timeout", 5),
            sse_read_timeout=params.get("sse_read_timeout", 300),
            auth=params.get("auth"),
            httpx_client_factory=create_limited_client,
        )


def _to_seconds(duration: timedelta | float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
