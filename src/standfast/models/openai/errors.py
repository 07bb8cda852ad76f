"""What an error of the OpenAI client means for the next attempt."""

from typing import TYPE_CHECKING, Any

from standfast.base.errors import MissingExtra
from standfast.models.interface import IncompleteStream, ResponseFailed
from standfast.models.retry import (
    CONVERSATION_LOCKED,
    ModelRetryAdvice,
    ModelRetryAdviceRequest,
    ModelRetryNormalizedError,
    parse_retry_after,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from standfast.agents.model_settings import ModelSettings

# Failures before the request was on its way: the server has not seen it.
_UNSENT_ERRORS = frozenset(["ConnectError", "ConnectTimeout", "PoolTimeout"])
# Failures of the connection that the client lets through as they are while it reads a stream.
_CONNECTION_LOST_ERRORS = frozenset(
    ["RemoteProtocolError", "ReadError", "ReadTimeout", "WriteError", "ProtocolError", "NetworkError"]
)
_TRANSIENT_CODES = frozenset(["server_error", "rate_limit_exceeded"])


def load_openai(purpose: str) -> Any:
    """The client library, or :class:`MissingExtra`."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", purpose) from error
    return openai


def configure_client_retries(client: "AsyncOpenAI", settings: "ModelSettings", *, stateful: bool) -> "AsyncOpenAI":
    """The client, without retries of its own where retries are decided here.

    They are when the settings mention them, and when a request adds to what the server remembers: the client would
    repeat such a request without knowing whether it had been done.
    """
    return client.with_options(max_retries=0) if settings.retry is not None or stateful else client


def make_retry_advice(request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
    """What the server or the failure itself says about trying again; ``None`` if it is none of the client's."""
    error = request.error
    if isinstance(error, ResponseFailed):
        return ModelRetryAdvice(
            suggested=error.error_code in _TRANSIENT_CODES, replay_safety=_get_replay_safety(request.stateful)
        )
    if isinstance(error, MissingExtra):  # perhaps the client itself
        return None
    library = load_openai("asking for advice")
    if isinstance(error, library.APIStatusError):
        return _advise_on_status(error, request)
    if isinstance(error, library.APIConnectionError):
        late = isinstance(error, library.APITimeoutError)
        unsent = type(error.__cause__).__name__ in _UNSENT_ERRORS
        return ModelRetryAdvice(
            suggested=True,
            replay_safety=_get_replay_safety(request.stateful and not unsent),
            reason="no answer in time" if late else "no connection",
            normalized=ModelRetryNormalizedError(is_network_error=not late, is_timeout=late),
        )
    if isinstance(error, IncompleteStream) or {kind.__name__ for kind in type(error).__mro__} & _CONNECTION_LOST_ERRORS:
        return ModelRetryAdvice(
            suggested=True,
            replay_safety=_get_replay_safety(request.stateful),
            reason="the connection was cut",
            normalized=ModelRetryNormalizedError(is_network_error=True),
        )
    if isinstance(error, library.APIError):  # an error event inside a stream
        return ModelRetryAdvice(
            suggested=error.code in _TRANSIENT_CODES or error.type in _TRANSIENT_CODES,
            replay_safety=_get_replay_safety(request.stateful),
        )
    return None


def _advise_on_status(error: Any, request: ModelRetryAdviceRequest) -> ModelRetryAdvice:
    headers, status = error.response.headers, error.status_code
    word = headers.get("x-should-retry")
    transient = status in (408, 409, 429) or status >= 500
    # Turned away at the door (rate limit, lock): nothing was done. A gateway's 5xx does not say.
    refused = status < 500 and status != 408
    return ModelRetryAdvice(
        suggested=transient if word is None else word.lower() == "true",
        retry_after=parse_retry_after(headers),
        replay_safety=_get_replay_safety(request.stateful and not refused),
        reason=f"the server answered {status}",
        normalized=ModelRetryNormalizedError(error_code=_get_error_code(error), request_id=error.request_id),
    )


def _get_error_code(error: Any) -> str | None:
    if isinstance(error.code, str):
        return error.code
    # Some gateways pass the body on and lose its shape.
    return CONVERSATION_LOCKED if CONVERSATION_LOCKED in str(error.message) else None


def _get_replay_safety(uncertain: bool) -> Any:
    return None if uncertain else "safe"
