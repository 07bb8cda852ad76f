"""The model of the Responses API over WebSockets, and the reuse of their connections."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict
from weakref import WeakKeyDictionary

from standfast.agents.errors import UserError
from standfast.base.errors import MissingExtra
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
from standfast.models.request import ModelRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_CLOSE_TIMEOUT = 1.0
# The server ends a connection after an hour by refusing the next request on it.
_CONNECTION_EXPIRED = b"websocket_connection_limit_reached"


@dataclass(frozen=True)
class ConnectionTarget:
    """What a connection is opened with; only requests with the same target can share it."""

    headers: tuple[tuple[str, Any], ...] = ()
    query: tuple[tuple[str, Any], ...] = ()


class ResponsesConnection:
    """An open connection, which serves one request at a time. ``last_response_id`` is what its server remembers."""

    def __init__(self, client: "AsyncOpenAI", target: ConnectionTarget, socket: Any) -> None:
        self.target, self.is_reused, self.last_response_id = target, False, None
        self._client, self._socket = client, socket

    @classmethod
    async def open(
        cls, client: "AsyncOpenAI", target: ConnectionTarget, options: Mapping[str, Any]
    ) -> "ResponsesConnection":
        """Connect to the server of the client. Raises the errors that the client raises for a request over HTTP."""
        load_openai("a model at OpenAI")
        try:
            from websockets.exceptions import InvalidHandshake, InvalidStatus
        except ImportError as error:
            raise MissingExtra("realtime", "a model over WebSockets") from error
        if not hasattr(client.responses, "connect"):
            raise UserError("the installed openai package has no WebSockets for responses: install a newer one")
        manager = client.responses.connect(
            extra_headers=dict(target.headers),
            extra_query=dict(target.query),
            websocket_connection_options={"close_timeout": _CLOSE_TIMEOUT, "max_size": None, **options},  # type: ignore[typeddict-item]
            max_retries=0,
        )
        try:
            return cls(client, target, await manager.enter())
        except InvalidStatus as error:
            raise _make_status_error(client, error.response) from error
        except (OSError, InvalidHandshake) as error:
            raise _make_connection_error(client, error) from error

    async def send(self, frame: Item) -> bool:
        """Send a message; return False if that is impossible because the connection is closed."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send_raw(json.dumps(frame))
        except ConnectionClosed:
            return False
        return True

    async def receive(self, timeout: float | None) -> bytes:
        """Return the next message. Raises the client's errors if none comes."""
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(timeout):
                message: bytes = await self._socket.recv_bytes()
        except (ConnectionClosed, TimeoutError) as error:
            raise _make_connection_error(self._client, error) from error
        return message

    def parse_event(self, message: bytes) -> Any:
        """Return a message as the object that the client makes of an event."""
        return self._socket.parse_event(message)

    async def close(self) -> None:
        """Close the connection within a second, whatever the server does."""
        await self._socket.close()


class ConnectionPool:
    """The connections of a model that no request uses, for each event loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._idle: WeakKeyDictionary[asyncio.AbstractEventLoop, list[ResponsesConnection]] = WeakKeyDictionary()

    async def take(
        self, client: "AsyncOpenAI", target: ConnectionTarget, previous_response_id: str | None
    ) -> ResponsesConnection:
        """Return an idle connection, preferably the one that has the previous response, or open one."""
        idle = self._idle.get(asyncio.get_running_loop(), [])
        fitting = [connection for connection in idle if connection.target == target]
        if not fitting:
            return await ResponsesConnection.open(client, target, self._options)
        having = [connection for connection in fitting if connection.last_response_id == previous_response_id]
        chosen = (having or fitting)[-1]
        idle.remove(chosen)
        chosen.is_reused = True
        return chosen

    def put_back(self, connection: ResponsesConnection) -> None:
        """Keep a connection whose response has been read to its end."""
        self._idle.setdefault(asyncio.get_running_loop(), []).append(connection)

    async def close(self) -> None:
        """Close the idle connections of this event loop."""
        idle = self._idle.pop(asyncio.get_running_loop(), [])
        await asyncio.gather(*(connection.close() for connection in idle))


def _make_status_error(client: "AsyncOpenAI", answer: Any) -> Exception:
    """Return the error of the client for an answer to the handshake that refuses it."""
    request = _make_request(client)
    # httpx or its successor, whichever the client is built on
    http = importlib.import_module(type(request).__module__.partition(".")[0])
    headers = list(answer.headers.raw_items())
    response = http.Response(answer.status_code, headers=headers, content=bytes(answer.body or b""), request=request)
    return client._make_status_error_from_response(response)


def _make_connection_error(client: "AsyncOpenAI", error: Exception) -> Exception:
    library, request = load_openai("a model at OpenAI"), _make_request(client)
    if isinstance(error, TimeoutError):
        timed_out: Exception = library.APITimeoutError(request)
        return timed_out
    failed: Exception = library.APIConnectionError(message=f"the WebSocket connection failed: {error}", request=request)
    return failed


def _make_request(client: "AsyncOpenAI") -> Any:
    return client._client.build_request("GET", f"{client.base_url}responses")


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
