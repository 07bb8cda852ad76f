"""Realtime models behind a WebSocket."""

import asyncio
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict
from urllib.parse import quote, urlsplit

from holdfast import __version__
from holdfast.agents.errors import UserError
from holdfast.agents.types import MaybeAwaitable, resolved
from holdfast.base.errors import MissingExtra
from holdfast.models.openai_provider import default_openai_key
from holdfast.realtime.errors import ConnectFailed, KeyMissing
from holdfast.realtime.model import RealtimeModelConfig
from holdfast.realtime.openai.link import Link, LinkClosed
from holdfast.realtime.openai.recording import Recording
from holdfast.realtime.openai.settings import DEFAULT_MODEL
from holdfast.realtime.openai.wire_model import WireModel

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_URL = "wss://api.openai.com/v1/realtime"
_MAX_SIZE = 16 * 2**20


class TransportConfig(TypedDict):
    """How the connection is kept. Times are in seconds; ``None`` for a ping switches it off."""

    ping_interval: NotRequired[float | None]
    ping_timeout: NotRequired[float | None]
    handshake_timeout: NotRequired[float]
    max_size: NotRequired[int | None]
    close_timeout: NotRequired[float]
    """How long the server may take to say goodbye; then the connection is cut."""
    acknowledge_timeout: NotRequired[float]
    """How long the server may take to accept settings or to begin a response."""


async def get_api_key(key: str | Callable[[], MaybeAwaitable[str]] | None) -> str | None:
    """The key itself, what the function gives, or else the default one."""
    if key is None:
        return default_openai_key()
    return key if isinstance(key, str) else await resolved(key())


class OpenAIRealtimeWebSocketModel(WireModel):
    """OpenAI's realtime models, or a server like them. One object serves one session at a time.

    With a ``recording``, everything that passes is written down there.
    """

    def __init__(self, *, transport_config: TransportConfig | None = None, recording: Recording | None = None) -> None:
        self._transport: TransportConfig = transport_config or {}
        super().__init__(
            acknowledge_within=self._transport.get("acknowledge_timeout", 10.0),
            close_within=self._transport.get("close_timeout", 1.0),
            recording=recording,
        )

    async def dial(self, options: RealtimeModelConfig) -> Link:
        url, headers = realtime_url(options), await request_headers(options)
        library = _websockets()
        transport = self._transport
        try:
            socket = await library.asyncio.client.connect(
                url,
                additional_headers=headers,
                user_agent_header=f"holdfast/{__version__}",
                compression=None,  # Audio does not get smaller, only later.
                open_timeout=transport.get("handshake_timeout", 10.0),
                ping_interval=transport.get("ping_interval", 20.0),
                ping_timeout=transport.get("ping_timeout", 20.0),
                close_timeout=self._close_within,
                max_size=transport.get("max_size", _MAX_SIZE),
            )
        except (OSError, TimeoutError, library.exceptions.WebSocketException) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            host = urlsplit(url).netloc.rpartition("@")[2]
            raise ConnectFailed(f"no realtime connection to {host}: {error}", status=status) from error
        return SocketLink(socket, close_within=self._close_within)


def realtime_url(options: RealtimeModelConfig) -> str:
    """Where to connect."""
    settings: Mapping[str, Any] = options.get("initial_model_settings") or {}
    call_id, model = options.get("call_id"), settings.get("model_name")
    if call_id and model:
        raise UserError("a call has its model already: leave out either call_id or model_name")
    if (url := options.get("url")) is not None:
        return url
    return f"{_URL}?call_id={quote(call_id)}" if call_id else f"{_URL}?model={quote(model or DEFAULT_MODEL)}"


async def request_headers(options: RealtimeModelConfig) -> dict[str, str]:
    """The headers that were given, else an authorization with the key."""
    if (headers := options.get("headers")) is not None:
        return dict(headers)
    key = await get_api_key(options.get("api_key"))
    if not key:
        raise KeyMissing("there is no API key: pass api_key, call set_default_openai_key or set OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"}


class SocketLink:
    """Frames over a WebSocket."""

    def __init__(self, socket: "ClientConnection", *, close_within: float) -> None:
        self._socket, self._close_within = socket, close_within
        self._closed_error = _websockets().exceptions.ConnectionClosed

    async def send(self, frame: bytes) -> None:
        try:
            await self._socket.send(frame, text=True)
        except self._closed_error as error:
            raise _closed(error) from error

    async def receive(self) -> bytes | str:
        try:
            return await self._socket.recv(decode=False)
        except self._closed_error as error:
            raise _closed(error) from error

    async def close(self) -> None:
        """Say goodbye, and cut the connection if that takes too long or is interrupted."""
        try:
            async with asyncio.timeout(self._close_within):
                await self._socket.close()
        except TimeoutError:
            pass
        finally:
            self._socket.transport.abort()
        await self._socket.wait_closed()


def _closed(error: Any) -> LinkClosed:
    """A connection that was ended properly has no error, whatever the reason."""
    frame = error.rcvd
    proper = frame is not None and frame.code in (1000, 1001)
    code, reason = (frame.code, frame.reason) if frame is not None else (1006, str(error))
    return LinkClosed(code, reason, None if proper else error)


def _websockets() -> ModuleType:
    try:
        import websockets.asyncio.client
        import websockets.exceptions
    except ImportError as error:
        raise MissingExtra("realtime", "a realtime connection") from error
    return websockets
