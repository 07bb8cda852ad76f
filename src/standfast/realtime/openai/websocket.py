"""OpenAI's realtime models over a WebSocket, also in telephone calls (SIP)."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict
from urllib.parse import quote, urlsplit

import msgspec

from standfast import __version__
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.errors import MissingExtra
from standfast.base.log import get_logger
from standfast.base.network import make_websocket_connector
from standfast.models.openai.provider import get_default_openai_key
from standfast.realtime._session.resolved_agent import build_base_settings, resolve_agent
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings
from standfast.realtime.errors import ApiKeyMissing, ConnectFailed
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.openai._protocol.session_settings import DEFAULT_REALTIME_MODEL, build_session_payload
from standfast.realtime.openai.protocol_model import RealtimeProtocolModel
from standfast.realtime.openai.recording import Recording
from standfast.realtime.openai.transport import Transport, WebSocketTransport

if TYPE_CHECKING:
    from openai.types.realtime.realtime_session_create_request import (
        RealtimeSessionCreateRequest as OpenAISessionCreateRequest,
    )

_DEFAULT_URL = "wss://api.openai.com/v1/realtime"
_MAX_SIZE = 16 * 2**20
_MAX_PUBLIC_WORD_LENGTH = 7  # longer words of a header may be secrets; "Bearer" is not one
_wire_log = get_logger("standfast.realtime.wire")
_wire_log.setLevel(logging.INFO)  # At DEBUG, websockets logs all headers, including the API key, and all frames.
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class TransportConfig(TypedDict):
    """Options of the WebSocket connection. Times are in seconds; ``None`` for a ping option switches it off."""

    ping_interval: NotRequired[float | None]
    ping_timeout: NotRequired[float | None]
    handshake_timeout: NotRequired[float]
    """How long the server may take to accept the connection, and an ``api_key`` function to return the key."""
    max_size: NotRequired[int | None]
    close_timeout: NotRequired[float]
    """How long the close handshake may take; then the connection is aborted."""
    acknowledge_timeout: NotRequired[float]
    """How long the server may take to accept settings or to start a response."""


async def get_api_key(key: str | Callable[[], MaybeAwaitable[str]] | None) -> str | None:
    """Return the key, the result of the function or, without ``key``, the default key."""
    if key is None:
        return get_default_openai_key()
    value = await maybe_await(key()) if callable(key) else key
    if not isinstance(value, str | None):
        raise UserError(f"api_key must be a string or a function that returns one, got {type(value).__name__}")
    return value


class OpenAIRealtimeWebSocketModel(RealtimeProtocolModel):
    """OpenAI's realtime models, or a compatible server. One object serves one session at a time.

    With a ``recording``, all frames of the connections are written to it.
    """

    def __init__(self, *, transport_config: TransportConfig | None = None, recording: Recording | None = None) -> None:
        self._transport_config: TransportConfig = transport_config or {}
        self.model: str = DEFAULT_REALTIME_MODEL
        """The model of the last connection."""
        super().__init__(
            acknowledge_timeout=self._transport_config.get("acknowledge_timeout", 10.0),
            close_timeout=self._transport_config.get("close_timeout", 1.0),
            recording=recording,
        )

    async def open_transport(self, options: RealtimeModelConfig) -> Transport:
        library, transport = _import_websockets(), self._transport_config
        url, handshake_timeout = build_realtime_url(options), transport.get("handshake_timeout", 10.0)
        self.model = (options.get("initial_model_settings") or {}).get("model_name") or DEFAULT_REALTIME_MODEL
        _validate_url(url, library)
        headers = await _build_headers_with_timeout(handshake_timeout, options)
        try:
            socket = await make_websocket_connector(library)(
                url,
                additional_headers=headers,
                logger=_wire_log,
                user_agent_header=f"standfast/{__version__}",
                compression=None,  # Compressing audio saves no bytes and adds latency.
                open_timeout=handshake_timeout,
                ping_interval=None,  # WebSocketTransport pings itself: it knows whether it was reading.
                close_timeout=self._close_timeout,
                max_size=transport.get("max_size", _MAX_SIZE),
            )
        except library.exceptions.InvalidProxy as error:  # str(error) has the whole URL, including a password.
            raise ConnectFailed(f"the proxy in the environment is invalid: {error.msg}") from None
        except (OSError, TimeoutError, library.exceptions.WebSocketException) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            host = urlsplit(url).netloc.rpartition("@")[2]
            raise ConnectFailed(
                f"connecting to {host} failed: {error}{_describe_rejection(error, headers)}", status=status
            ) from error
        return WebSocketTransport(
            socket,
            close_timeout=self._close_timeout,
            ping_interval=transport.get("ping_interval", 20.0),
            ping_timeout=transport.get("ping_timeout", 20.0),
        )


def build_realtime_url(options: RealtimeModelConfig) -> str:
    """Return the URL to connect to. Raises :class:`UserError` for a call with a model name."""
    settings: Mapping[str, Any] = options.get("initial_model_settings") or {}
    call_id, model = options.get("call_id"), settings.get("model_name")
    if call_id and model:
        raise UserError("call_id and model_name exclude each other: an accepted call already has a model")
    if (url := options.get("url")) is not None:
        return url
    return (
        f"{_DEFAULT_URL}?call_id={quote(call_id)}"
        if call_id
        else f"{_DEFAULT_URL}?model={quote(model or DEFAULT_REALTIME_MODEL)}"
    )


def _validate_url(url: str, library: ModuleType) -> None:
    # Checked here because the error of the library would contain the whole URL, including a password.
    try:
        library.uri.parse_uri(url)
    except (ValueError, library.exceptions.InvalidURI):
        raise UserError("the url of a realtime model must look like wss://host/path or ws://host:port/path") from None


async def build_request_headers(options: RealtimeModelConfig) -> dict[str, str]:
    """Return the configured headers, or else an authorization header with the API key."""
    if (headers := options.get("headers")) is not None:
        return _validate_headers(dict(headers))
    key = await get_api_key(options.get("api_key"))
    if not key:
        raise ApiKeyMissing("no API key: pass api_key, call set_default_openai_key() or set OPENAI_API_KEY")
    return _validate_headers({"Authorization": f"Bearer {key}"})


async def _build_headers_with_timeout(timeout: float, options: RealtimeModelConfig) -> dict[str, str]:
    try:
        async with asyncio.timeout(timeout) as clock:
            return await build_request_headers(options)
    except TimeoutError as error:
        if not clock.expired():  # raised by the function itself
            raise
        raise ConnectFailed(f"the api_key function did not return within {timeout:g} s") from error


def _validate_headers(headers: dict[str, str]) -> dict[str, str]:
    # Checked here because the error of the library would contain the whole header, including the API key.
    for name, value in headers.items():
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise UserError(
                f"the header {name} cannot be sent: a header value must be a string without control characters"
            )
    return headers


def _describe_rejection(error: Exception, headers: Mapping[str, str]) -> str:
    """Return the error message of the server's response, with the secrets of our headers replaced."""
    response = getattr(error, "response", None)
    if response is not None and 300 <= response.status_code < 400:
        return ": redirects are not followed, because they would carry the credentials to another address"
    body = getattr(response, "body", None) or b""
    try:
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body.decode(errors="replace")
    for secret in {word for value in headers.values() for word in value.split() if len(word) > _MAX_PUBLIC_WORD_LENGTH}:
        message = message.replace(secret, "***")
    message = " ".join(message.split())[:300]
    return f": {message}" if message else ""


def _import_websockets() -> ModuleType:
    try:
        import websockets.asyncio.client
        import websockets.exceptions
        import websockets.uri
    except ImportError as error:
        raise MissingExtra("realtime", "a realtime connection") from error
    return websockets


class OpenAIRealtimeSIPModel(OpenAIRealtimeWebSocketModel):
    """Joins the accepted call that ``call_id`` in the model config names."""

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Join the call. Raises :class:`UserError` without a ``call_id``."""
        if not options.get("call_id"):
            raise UserError("OpenAIRealtimeSIPModel needs the call_id of an accepted call in the model config")
        await super().connect(options)

    @staticmethod
    async def build_initial_session_payload(
        agent: RealtimeAgent[Any],
        *,
        context: Any = None,
        model_config: RealtimeModelConfig | None = None,
        run_config: RealtimeRunConfig | None = None,
        overrides: RealtimeSessionModelSettings | None = None,
    ) -> "OpenAISessionCreateRequest":
        """Build the payload to accept a call with, so that the agent answers from the first word.

        It has the settings that a session with this agent would send; ``overrides`` replace them.
        """
        config = run_config or {}
        initial = (model_config or {}).get("initial_model_settings") or {}
        wrapper = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        snapshot = await resolve_agent(
            agent,
            wrapper,
            config,
            base=build_base_settings(config, initial),
            overrides={**initial, **(overrides or {})},
        )
        try:
            from openai.types.realtime.realtime_session_create_request import RealtimeSessionCreateRequest
        except ImportError as error:
            raise MissingExtra("openai", "the payload of a SIP call") from error
        payload = build_session_payload(snapshot.settings, joins_call=True, include_model=True)
        return RealtimeSessionCreateRequest.model_validate(payload)
