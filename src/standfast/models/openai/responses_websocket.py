"""The model of the Responses API over WebSockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from standfast.agents.errors import UserError
from standfast.base.items import Item
from standfast.base.time import Backoff
from standfast.models.interface import (
    FAILURE_EVENTS,
    FINAL_EVENTS,
    ModelResponse,
    ResponseFailed,
    TResponseStreamEvent,
    parse_response,
)
from standfast.models.openai.client import get_api_key, hide_api_key, load_openai, mask
from standfast.models.openai.responses import OpenAIResponsesModel
from standfast.models.openai.websocket_pool import ConnectionPool, ConnectionTarget, ResponsesConnection
from standfast.models.request import ModelRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# The server ends a connection after an hour by refusing the next request on it.
_CONNECTION_EXPIRED = b"websocket_connection_limit_reached"


class OpenAIResponsesWebSocketOptions(TypedDict, total=False):
    """Options of the connections: seconds between pings and for a pong (``None``: no limit), and bytes in a message."""

    ping_interval: float | None
    ping_timeout: float | None
    max_size: int | None


class ResponsesWebSocketError(ResponseFailed, RuntimeError):
    """The server reported an error. ``payload`` is its event, the other attributes are taken from it."""

    code = "response-websocket"

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self.event_type, self.payload = str(payload.get("type") or "error"), dict(payload)
        response = payload.get("response") or {}
        error = payload.get("error") or response.get("error") or {}
        text = json.dumps(self.payload, default=str)
        super().__init__(
            f"Responses websocket {self.event_type}: {text}",
            error_code=error.get("code"),
            response_id=response.get("id"),
        )
        self.code = error.get("code")  # type: ignore[misc, assignment]  # as in openai-agents, in place of the class's code
        self.error_type, self.error_message = error.get("type"), error.get("message")
        self.request_id = payload.get("request_id") or error.get("request_id")


class OpenAIResponsesWSModel(OpenAIResponsesModel):
    """A model that uses the Responses API over WebSockets.

    A connection is opened by the first request and stays open for the next ones; concurrent requests have connections
    of their own. A connection that the server has closed is replaced. One whose response was not read to its end, for
    example because the run was cancelled, is closed. Call :meth:`close` when the model is no longer needed. The
    client belongs to the caller.

    Failures to connect, and connections lost before the first event, are retried as often as the client retries over
    HTTP. Later failures raise the client's errors, and errors of the server :class:`ResponsesWebSocketError`.
    """

    def __init__(
        self,
        model: str,
        openai_client: "AsyncOpenAI",
        *,
        model_is_explicit: bool = True,
        websocket_options: OpenAIResponsesWebSocketOptions | None = None,
    ) -> None:
        super().__init__(model, openai_client, model_is_explicit=model_is_explicit)
        options = dict(websocket_options or {})
        if unknown := options.keys() - OpenAIResponsesWebSocketOptions.__annotations__.keys():
            raise UserError(f"unknown WebSocket options: {', '.join(sorted(unknown))}")
        self._pool = ConnectionPool(options)

    async def close(self) -> None:
        """Close the connections that no request uses. A later request opens a new one."""
        await self._pool.close()

    async def respond(self, request: ModelRequest) -> ModelResponse:
        async for event in self.stream(request):
            if event.type in FINAL_EVENTS:
                response = event.response
        return parse_response(response, keep_raw_usage=bool(request.model_settings.preserve_raw_usage))

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        client = self._configure_client(request)
        frame, target, timeout = self._build_frame(request)
        with hide_api_key(client):
            connection, message = await self._start_response(client, frame, target, timeout)
            async with _close_on_error(connection):
                while (event := _parse_event(connection, message, get_api_key(client))).type not in FINAL_EVENTS:
                    yield event
                    message = await connection.receive(timeout)
        connection.last_response_id = event.response.id
        self._pool.put_back(connection)
        yield event

    def _build_frame(self, request: ModelRequest) -> tuple[Item, ConnectionTarget, float | None]:
        """Return the message, what its connection is opened with, and how many seconds an event may take."""
        arguments = self.build_request(request)
        body = arguments.pop("extra_body", {})
        if not isinstance(body, Mapping):
            raise UserError("extra_body must be a mapping for a model over WebSockets")
        headers, query = arguments.pop("extra_headers", {}), arguments.pop("extra_query", {})
        timeout = arguments.pop("timeout", self._client.timeout)
        target = ConnectionTarget(tuple(headers.items()), tuple(query.items()))
        frame = {"type": "response.create", **arguments, **body, "stream": True}
        return frame, target, getattr(timeout, "read", timeout)

    async def _start_response(
        self, client: "AsyncOpenAI", frame: Item, target: ConnectionTarget, timeout: float | None
    ) -> tuple[ResponsesConnection, bytes]:
        """Send a request; return its connection and the first message."""
        library, backoff = load_openai("a model at OpenAI"), Backoff(initial=0.5, maximum=8.0, jitter=0.25)
        while True:
            try:
                connection = await self._pool.take(client, target, frame.get("previous_response_id"))
                async with _close_on_error(connection):
                    message = await connection.receive(timeout) if await connection.send(frame) else None
                if message is not None and not (connection.is_reused and _CONNECTION_EXPIRED in message):
                    return connection, message
                await connection.close()  # it ended before it took the request
            except (library.APIConnectionError, library.InternalServerError):
                if backoff.attempt >= client.max_retries:
                    raise
                await asyncio.sleep(backoff.next_delay())


@asynccontextmanager
async def _close_on_error(connection: ResponsesConnection) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await connection.close()
        raise


def _parse_event(connection: ResponsesConnection, message: bytes, api_key: str) -> Any:
    event = connection.parse_event(message)
    if event.type in FAILURE_EVENTS or event.type == "response.error":
        raise ResponsesWebSocketError(mask(json.loads(message), api_key))
    return event
