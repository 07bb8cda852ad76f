"""An HTTP client that converts transport errors into error responses.

In the library, a request that cannot be sent ends the transport with all its pending calls. With this client only that
request fails, and its error states whether it may have reached the server.
"""

import json
from typing import Any

import httpx2
from mcp.types import INTERNAL_ERROR

from standfast.mcp._client.client_session import FAULT_KEY, RequestFault
from standfast.mcp._client.message_limits import MessageRefused

SESSION_ID_HEADER = "mcp-session-id"
_UNSENT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class FaultTolerantClient:
    """Forwards everything to ``client``, but MCP requests never raise."""

    def __init__(self, client: httpx2.AsyncClient, *, ignore_initialized_failure: bool = False) -> None:
        self._client, self._ignore_initialized_failure = client, ignore_initialized_failure
        self.session_id: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        message = _parse_message(request)
        if "id" not in message or "method" not in message:
            return await self._send_notification(request, message, **options)
        try:
            response = await self._client.send(request, **options)
        except httpx2.TransportError as error:
            fault = RequestFault.NOT_SENT if isinstance(error, _UNSENT_ERRORS) else RequestFault.INTERRUPTED
            return _build_error_response(request, message, 503, fault, f"{type(error).__name__}: {error}")
        self.session_id = response.headers.get(SESSION_ID_HEADER, self.session_id)
        if response.status_code < 300:
            if _has_readable_body(response):
                return response
            return await _build_unreadable_response(request, message, response)
        if response.status_code < 400:  # the library handles redirects
            return response
        try:
            body = await response.aread()
        except MessageRefused as error:
            return _build_error_response(request, message, 502, RequestFault.INVALID_RESPONSE, str(error))
        finally:
            await response.aclose()
        answered = response.status_code != 404 and b'"jsonrpc"' in body
        return response if answered else _build_rejection_response(request, message, response)

    async def _send_notification(self, request: httpx2.Request, message: Any, **options: Any) -> httpx2.Response:
        try:
            return await self._client.send(request, **options)
        except httpx2.TransportError:
            if message.get("method") == "notifications/initialized" and not self._ignore_initialized_failure:
                raise
            if request.method != "POST":
                raise
            return httpx2.Response(503, request=request)


def _has_readable_body(response: httpx2.Response) -> bool:
    content_type = response.headers.get("content-type", "").lower()
    return response.status_code != 202 and content_type.startswith(("application/json", "text/event-stream"))


async def _build_unreadable_response(
    request: httpx2.Request, message: Any, response: httpx2.Response
) -> httpx2.Response:
    """Replace a success without a readable body by an error. The request may have had an effect."""
    await response.aclose()
    content_type = response.headers.get("content-type", "no content type")
    reason = f"HTTP {response.status_code} {response.reason_phrase} with {content_type} instead of a message"
    return _build_error_response(request, message, 502, RequestFault.INVALID_RESPONSE, reason)


def _build_rejection_response(request: httpx2.Request, message: Any, response: httpx2.Response) -> httpx2.Response:
    """Replace an HTTP error without an MCP message: the session is unknown, or the request was rejected."""
    status = response.status_code
    if status == 404 and SESSION_ID_HEADER in request.headers:
        return _build_error_response(request, message, 404, RequestFault.SESSION_LOST, "it no longer knows the session")
    reason = f"HTTP {status} {response.reason_phrase}"
    # 4xx means that the request was not accepted. A proxy may send 5xx, and some send 408, after the tool was called.
    fault = RequestFault.NOT_SENT if status < 500 and status != 408 else RequestFault.INTERRUPTED
    return _build_error_response(request, message, status, fault, reason)


def _parse_message(request: httpx2.Request) -> dict[str, Any]:
    if request.method != "POST":
        return {}
    message = json.loads(request.content)
    return message if isinstance(message, dict) else {}


def _build_error_response(
    request: httpx2.Request, message: Any, status: int, fault: RequestFault, reason: str
) -> httpx2.Response:
    error = {"code": INTERNAL_ERROR, "message": reason, "data": {FAULT_KEY: fault}}
    body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return httpx2.Response(max(status, 400), json=body, request=request)
