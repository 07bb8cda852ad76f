"""An HTTP client under a session: a request that fails is answered with what is known about it.

The library's transport ends, with every call under way on it, when sending one request fails. Here only that request
fails, and the answer tells whether it can have arrived.
"""

import json
from typing import Any

import httpx2
from mcp.types import INTERNAL_ERROR

from standfast.mcp._client.connection import FAULT_KEY

SESSION_ID_HEADER = "mcp-session-id"
_UNSENT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class FaultTolerantClient:
    """Passes everything on to ``client``, except that requests of the protocol never raise."""

    def __init__(self, client: httpx2.AsyncClient, *, ignore_initialized_failure: bool = False) -> None:
        self._client, self._ignore_initialized_failure = client, ignore_initialized_failure
        self.session_id: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        asked = _parse_message(request)
        if "id" not in asked or "method" not in asked:
            return await self._send_notification(request, asked, **options)
        try:
            response = await self._client.send(request, **options)
        except httpx2.TransportError as error:
            fault = "unsent" if isinstance(error, _UNSENT_ERRORS) else "cut"
            return _build_error_response(request, asked, 503, fault, f"{type(error).__name__}: {error}")
        self.session_id = response.headers.get(SESSION_ID_HEADER, self.session_id)
        if response.status_code < 300:
            return (
                response if _has_readable_body(response) else await _build_unreadable_response(request, asked, response)
            )
        if response.status_code < 400:  # the library follows it, or says where it leads
            return response
        body = await response.aread()
        await response.aclose()
        answered = response.status_code != 404 and b'"jsonrpc"' in body
        return response if answered else _build_rejection_response(request, asked, response)

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
    kind = response.headers.get("content-type", "").lower()
    return response.status_code != 202 and kind.startswith(("application/json", "text/event-stream"))


async def _build_unreadable_response(
    request: httpx2.Request, message: Any, response: httpx2.Response
) -> httpx2.Response:
    """Neither an answer nor a refusal: whoever sent it may have done what was asked."""
    await response.aclose()
    kind = response.headers.get("content-type", "nothing")
    said = f"HTTP {response.status_code} {response.reason_phrase} with {kind} in place of a message"
    return _build_error_response(request, message, 502, "broken", said)


def _build_rejection_response(request: httpx2.Request, message: Any, response: httpx2.Response) -> httpx2.Response:
    """A status instead of an answer: the session is gone, or the server would not have the request."""
    status = response.status_code
    if status == 404 and SESSION_ID_HEADER in request.headers:
        return _build_error_response(request, message, 404, "lost", "it does not know the session any more")
    said = f"HTTP {status} {response.reason_phrase}"
    # 5xx may come from anywhere between here and the tool; 4xx says that the request was not taken.
    return _build_error_response(request, message, status, "unsent" if status < 500 else "cut", said)


def _parse_message(request: httpx2.Request) -> dict[str, Any]:
    if request.method != "POST":
        return {}
    found = json.loads(request.content)
    return found if isinstance(found, dict) else {}


def _build_error_response(
    request: httpx2.Request, message: Any, status: int, fault: str, reason: str
) -> httpx2.Response:
    error = {"code": INTERNAL_ERROR, "message": reason, "data": {FAULT_KEY: fault}}
    body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return httpx2.Response(max(status, 400), json=body, request=request)
