"""What an error of the OpenAI client means for the next attempt."""

from typing import TYPE_CHECKING, Any

from holdfast.base.errors import MissingExtra
from holdfast.models.contract import ResponseFailed, StreamCut
from holdfast.models.retry import (
    LOCKED,
    ModelRetryAdvice,
    ModelRetryAdviceRequest,
    ModelRetryNormalizedError,
    retry_after_in,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from holdfast.agents.model_settings import ModelSettings

# Failures before the request was on its way: the server has not seen it.
_NOT_SENT = frozenset(["ConnectError", "ConnectTimeout", "PoolTimeout"])
# Failures of the connection that the client lets through as they are while it reads a stream.
_CUT_OFF = frozenset(["RemoteProtocolError", "ReadError", "ReadTimeout", "WriteError", "ProtocolError", "NetworkError"])
_TRANSIENT = frozenset(["server_error", "rate_limit_exceeded"])


def load_openai(why: str) -> Any:
    """The client library, or :class:`MissingExtra`."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", why) from error
    return openai


def quiet(client: "AsyncOpenAI", settings: "ModelSettings", *, stateful: bool) -> "AsyncOpenAI":
    """The client, without retries of its own where retries are decided here.

    They are when the settings mention them, and when a request adds to what the server remembers: the client would
    repeat such a request without knowing whether it had been done.
    """
    return client.with_options(max_retries=0) if settings.retry is not None or stateful else client


def advice_on(request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
    """What the server or the failure itself says about trying again; ``None`` if it is none of the client's."""
    error = request.error
    if isinstance(error, ResponseFailed):
        return ModelRetryAdvice(suggested=error.error_code in _TRANSIENT, replay_safety=_safe_unless(request.stateful))
    if isinstance(error, MissingExtra):  # perhaps the client itself
        return None
    library = load_openai("asking for advice")
    if isinstance(error, library.APIStatusError):
        return _on_status(error, request)
    if isinstance(error, library.APIConnectionError):
        late = isinstance(error, library.APITimeoutError)
        unsent = type(error.__cause__).__name__ in _NOT_SENT
        return ModelRetryAdvice(
            suggested=True,
            replay_safety=_safe_unless(request.stateful and not unsent),
            reason="no answer in time" if late else "no connection",
            normalized=ModelRetryNormalizedError(is_network_error=not late, is_timeout=late),
        )
    if isinstance(error, StreamCut) or {kind.__name__ for kind in type(error).__mro__} & _CUT_OFF:
        return ModelRetryAdvice(
            suggested=True,
            replay_safety=_safe_unless(request.stateful),
            reason="the connection was cut",
            normalized=ModelRetryNormalizedError(is_network_error=True),
        )
    if isinstance(error, library.APIError):  # an error event inside a stream
        return ModelRetryAdvice(
            suggested=error.code in _TRANSIENT or error.type in _TRANSIENT, replay_safety=_safe_unless(request.stateful)
        )
    return None


def _on_status(error: Any, request: ModelRetryAdviceRequest) -> ModelRetryAdvice:
    headers, status = error.response.headers, error.status_code
    word = headers.get("x-should-retry")
    transient = status in (408, 409, 429) or status >= 500
    # Turned away at the door (rate limit, lock): nothing was done. A gateway's 5xx does not say.
    refused = status < 500 and status != 408
    return ModelRetryAdvice(
        suggested=transient if word is None else word.lower() == "true",
        retry_after=retry_after_in(headers),
        replay_safety=_safe_unless(request.stateful and not refused),
        reason=f"the server answered {status}",
        normalized=ModelRetryNormalizedError(error_code=_code(error), request_id=error.request_id),
    )


def _code(error: Any) -> str | None:
    if isinstance(error.code, str):
        return error.code
    # Some gateways pass the body on and lose its shape.
    return LOCKED if LOCKED in str(error.message) else None


def _safe_unless(doubtful: bool) -> Any:
    return None if doubtful else "safe"
