"""The OpenAI client library: importing it, its retries, and the retry advice for its errors."""

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

# Failures before the request was sent: the server has not received it.
_UNSENT_ERRORS = frozenset(["ConnectError", "ConnectTimeout", "PoolTimeout"])
# Connection errors that the client does not wrap while it reads a stream.
_CONNECTION_LOST_ERRORS = frozenset(
    ["RemoteProtocolError", "ReadError", "ReadTimeout", "WriteError", "ProtocolError", "NetworkError"]
)
_TRANSIENT_CODES = frozenset(["server_error", "rate_limit_exceeded"])


def load_openai(purpose: str) -> Any:
    """Return the client library; raise :class:`MissingExtra` if it is not installed."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", purpose) from error
    return openai


def configure_client_retries(client: "AsyncOpenAI", settings: "ModelSettings", *, stateful: bool) -> "AsyncOpenAI":
    """Return the client, with its own retries turned off where standfast decides on retries.

    That is the case if the settings configure retries, and for stateful requests, which the client would repeat
    without knowing whether the first one had an effect.
    """
    return client.with_options(max_retries=0) if settings.retry is not None or stateful else client


def make_retry_advice(request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
    """Return the advice for an error of the server or the client; ``None`` for any other error."""
    error = request.error
    if isinstance(error, ResponseFailed):
        return ModelRetryAdvice(
            suggested=error.error_code in _TRANSIENT_CODES, replay_safety=_get_replay_safety(request.stateful)
        )
    if isinstance(error, MissingExtra):  # the library may be what is missing
        return None
    library = load_openai("retry advice")
    if isinstance(error, library.APIStatusError):
        return _advise_on_status(error, request)
    if isinstance(error, library.APIConnectionError):
        is_timeout = isinstance(error, library.APITimeoutError)
        unsent = type(error.__cause__).__name__ in _UNSENT_ERRORS
        return ModelRetryAdvice(
            suggested=True,
            replay_safety=_get_replay_safety(request.stateful and not unsent),
            reason="the request timed out" if is_timeout else "the connection failed",
            normalized=ModelRetryNormalizedError(is_network_error=not is_timeout, is_timeout=is_timeout),
        )
    if isinstance(error, IncompleteStream) or {kind.__name__ for kind in type(error).__mro__} & _CONNECTION_LOST_ERRORS:
        return ModelRetryAdvice(
            suggested=True,
            replay_safety=_get_replay_safety(request.stateful),
            reason="the connection was lost",
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
    should_retry = headers.get("x-should-retry")
    transient = status in (408, 409, 429) or status >= 500
    # A rejected request (rate limit, lock) had no effect. After a 5xx of a gateway that is unknown.
    rejected = status < 500 and status != 408
    return ModelRetryAdvice(
        suggested=transient if should_retry is None else should_retry.lower() == "true",
        retry_after=parse_retry_after(headers),
        replay_safety=_get_replay_safety(request.stateful and not rejected),
        reason=f"the server responded with status {status}",
        normalized=ModelRetryNormalizedError(error_code=_get_error_code(error), request_id=error.request_id),
    )


def _get_error_code(error: Any) -> str | None:
    if isinstance(error.code, str):
        return error.code
    # Some gateways forward the body in another format.
    return CONVERSATION_LOCKED if CONVERSATION_LOCKED in str(error.message) else None


def _get_replay_safety(uncertain: bool) -> Any:
    return None if uncertain else "safe"
