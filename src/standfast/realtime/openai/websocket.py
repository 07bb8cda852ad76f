"""Realtime models behind a WebSocket."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote, urlsplit

import msgspec

from standfast import __version__
from standfast.agents.errors import UserError
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.errors import MissingExtra
from standfast.models.openai.provider import get_default_openai_key
from standfast.realtime.errors import ApiKeyMissing, ConnectFailed
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.openai._protocol.session_settings import DEFAULT_REALTIME_MODEL
from standfast.realtime.openai.protocol_model import RealtimeProtocolModel
from standfast.realtime.openai.recording import Recording
from standfast.realtime.openai.transport import Transport, WebSocketTransport

_DEFAULT_URL = "wss://api.openai.com/v1/realtime"
_MAX_SIZE = 16 * 2**20
_MAX_PUBLIC_WORD_LENGTH = 7  # "Bearer" is no secret.
_wire_log = logging.getLogger("standfast.realtime.wire")
_wire_log.setLevel(logging.INFO)  # Below that the library logs every header, with the key, and all that is said.
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class TransportConfig(TypedDict):
    """How the connection is kept. Times are in seconds; ``None`` for a ping switches it off."""

    ping_interval: NotRequired[float | None]
    ping_timeout: NotRequired[float | None]
    handshake_timeout: NotRequired[float]
    """How long the server may take to accept the connection, and a function to give the key for it."""
    max_size: NotRequired[int | None]
    close_timeout: NotRequired[float]
    """How long the server may take to say goodbye; then the connection is cut."""
    acknowledge_timeout: NotRequired[float]
    """How long the server may take to accept settings or to begin a response."""


async def get_api_key(key: str | Callable[[], MaybeAwaitable[str]] | None) -> str | None:
    """The key itself, what the function gives, or else the default one."""
    if key is None:
        return get_default_openai_key()
    found = await maybe_await(key()) if callable(key) else key
    if not isinstance(found, str | None):
        raise UserError(f"api_key must be a string or a function that gives one, not {type(found).__name__}")
    return found


class OpenAIRealtimeWebSocketModel(RealtimeProtocolModel):
    """OpenAI's realtime models, or a server like them. One object serves one session at a time.

    With a ``recording``, everything that passes is written down there.
    """

    def __init__(self, *, transport_config: TransportConfig | None = None, recording: Recording | None = None) -> None:
        self._transport_config: TransportConfig = transport_config or {}
        super().__init__(
            acknowledge_timeout=self._transport_config.get("acknowledge_timeout", 10.0),
            close_timeout=self._transport_config.get("close_timeout", 1.0),
            recording=recording,
        )

    async def open_transport(self, options: RealtimeModelConfig) -> Transport:
        library, transport = _import_websockets(), self._transport_config
        url, patience = build_realtime_url(options), transport.get("handshake_timeout", 10.0)
        _validate_url(url, library)
        headers = await _build_headers_with_timeout(patience, options)
        try:
            socket = await library.asyncio.client.connect(
                url,
                additional_headers=headers,
                logger=_wire_log,
                user_agent_header=f"standfast/{__version__}",
                compression=None,  # Audio does not get smaller, only later.
                open_timeout=patience,
                ping_interval=None,  # The link asks itself: it knows whether it is the one who does not read.
                close_timeout=self._close_timeout,
                max_size=transport.get("max_size", _MAX_SIZE),
            )
        except library.exceptions.InvalidProxy as error:  # It has the whole address, with the password.
            raise ConnectFailed(f"the environment names a proxy that is none: {error.msg}") from None
        except (OSError, TimeoutError, library.exceptions.WebSocketException) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            host = urlsplit(url).netloc.rpartition("@")[2]
            raise ConnectFailed(
                f"no realtime connection to {host}: {error}{_describe_rejection(error, headers)}", status=status
            ) from error
        return WebSocketTransport(
            socket,
            close_timeout=self._close_timeout,
            ping_interval=transport.get("ping_interval", 20.0),
            ping_timeout=transport.get("ping_timeout", 20.0),
        )


def build_realtime_url(options: RealtimeModelConfig) -> str:
    """Where to connect."""
    settings: Mapping[str, Any] = options.get("initial_model_settings") or {}
    call_id, model = options.get("call_id"), settings.get("model_name")
    if call_id and model:
        raise UserError("a call has its model already: leave out either call_id or model_name")
    if (url := options.get("url")) is not None:
        return url
    return (
        f"{_DEFAULT_URL}?call_id={quote(call_id)}"
        if call_id
        else f"{_DEFAULT_URL}?model={quote(model or DEFAULT_REALTIME_MODEL)}"
    )


def _validate_url(url: str, library: ModuleType) -> None:
    # Checked here because whoever connects would tell the whole address, with the password in it.
    try:
        library.uri.parse_uri(url)
    except (ValueError, library.exceptions.InvalidURI):
        raise UserError("the url of a realtime model must be like wss://host/path or ws://host:port/path") from None


async def build_request_headers(options: RealtimeModelConfig) -> dict[str, str]:
    """The headers that were given, else an authorization with the key."""
    if (headers := options.get("headers")) is not None:
        return _validate_headers(dict(headers))
    key = await get_api_key(options.get("api_key"))
    if not key:
        raise ApiKeyMissing("there is no API key: pass api_key, call set_default_openai_key or set OPENAI_API_KEY")
    return _validate_headers({"Authorization": f"Bearer {key}"})


async def _build_headers_with_timeout(timeout: float, options: RealtimeModelConfig) -> dict[str, str]:
    try:
        async with asyncio.timeout(timeout) as clock:
            return await build_request_headers(options)
    except TimeoutError as error:
        if not clock.expired():  # one of the program's own
            raise
        raise ConnectFailed(f"the function that gives the API key was not done after {timeout:g} s") from error


def _validate_headers(headers: dict[str, str]) -> dict[str, str]:
    # Checked here because whoever writes the request would log the whole header, with the key in it.
    for name, value in headers.items():
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise UserError(
                f"the header {name} cannot be sent: it has a line break or another character that none may have"
            )
    return headers


def _describe_rejection(error: Exception, headers: Mapping[str, str]) -> str:
    """Why the server turned us away, in its own words, as far as it gave any, and without what is ours to keep."""
    body = getattr(getattr(error, "response", None), "body", None) or b""
    try:
        said = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        said = body.decode(errors="replace")
    for secret in {word for value in headers.values() for word in value.split() if len(word) > _MAX_PUBLIC_WORD_LENGTH}:
        said = said.replace(secret, "***")
    said = " ".join(said.split())[:300]
    return f": {said}" if said else ""


def _import_websockets() -> ModuleType:
    try:
        import websockets.asyncio.client
        import websockets.exceptions
        import websockets.uri
    except ImportError as error:
        raise MissingExtra("realtime", "a realtime connection") from error
    return websockets
