"""WebSocket connections to the Responses API, and their reuse."""

import asyncio
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from standfast.agents.errors import UserError
from standfast.base.errors import MissingExtra
from standfast.base.items import Item
from standfast.models.openai.client import load_openai

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_CLOSE_TIMEOUT = 1.0


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
