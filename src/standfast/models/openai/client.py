"""The OpenAI client library: importing it, its arguments, its objects, its retries and its errors."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from standfast.agents.errors import UserError
from standfast.agents.model_settings import ModelSettings
from standfast.agents.types import maybe_await
from standfast.base.errors import MissingExtra
from standfast.base.items import Item
from standfast.base.log import MAX_PLACEHOLDER_LENGTH, get_logger, hide_in_logs
from standfast.models.interface import IncompleteStream, ResponseFailed, to_plain
from standfast.models.retry import (
    CONVERSATION_LOCKED,
    ModelRetryAdvice,
    ModelRetryAdviceRequest,
    ModelRetryNormalizedError,
    parse_retry_after,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_log = get_logger("standfast.models")

# The prefix of ids that were generated here because the provider gave none.
LOCAL_ID_PREFIX = "local_"

# Failures before the request was sent: the server has not received it.
_UNSENT_ERRORS = frozenset(["ConnectError", "ConnectTimeout", "PoolTimeout"])
# Connection errors that the client does not wrap while it reads a stream.
_CONNECTION_LOST_ERRORS = frozenset(
    ["RemoteProtocolError", "ReadError", "ReadTimeout", "WriteError", "ProtocolError", "NetworkError"]
)
_TRANSIENT_CODES = frozenset(["server_error", "server_is_overloaded", "rate_limit_exceeded"])


def load_openai(purpose: str) -> Any:
    """Return the client library; raise :class:`MissingExtra` if it is not installed."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", purpose) from error
    return openai


@contextmanager
def hide_api_key(client: "AsyncOpenAI") -> Iterator[None]:
    """Replace the key in errors that are raised inside and in what the libraries log.

    A server may repeat it, and errors are stored and shown.
    """
    key = get_api_key(client)
    hide_in_logs(key)
    try:
        yield
    except Exception as error:
        error.args = mask(error.args, key)
        for name in ("message", "body"):
            if hasattr(error, name):
                setattr(error, name, mask(getattr(error, name), key))
        raise


def get_api_key(client: Any) -> str:
    """Return the key of a client; a program's own client may have none."""
    key = getattr(client, "api_key", None)
    return key if isinstance(key, str) else ""


def is_library_client(client: Any) -> bool:
    """Return whether the client is one of the ``openai`` package, and not an object of the program that acts as one."""
    return isinstance(client, load_openai("a model at OpenAI").AsyncOpenAI)


@asynccontextmanager
async def open_stream(stream: Any) -> AsyncIterator[Any]:
    """Close a stream of the client when the block ends. It may be any asynchronous iterable of a program's own client.

    An error of closing it is logged: what was read before is complete, or its own error says why not.
    """
    try:
        yield stream
    finally:
        close = getattr(stream, "close", None) or getattr(stream, "aclose", None)
        try:
            if close is not None:
                await maybe_await(close())
        except Exception:  # noqa: BLE001 - see the docstring
            _log.warning("closing the stream of a response failed", exc_info=True)


def get_request_id(stream: Any) -> str | None:
    """Return the id that the server gave the request of a stream."""
    headers = getattr(getattr(stream, "response", None), "headers", None)
    return headers.get("x-request-id") if isinstance(headers, Mapping) else None


def mask(value: Any, secret: str) -> Any:
    """Return a JSON value with asterisks in place of a secret. Short keys are placeholders such as ``test``."""
    if len(secret) <= MAX_PLACEHOLDER_LENGTH:
        return value
    if isinstance(value, str):
        return value.replace(secret, "***")
    if isinstance(value, Mapping):
        return {name: mask(part, secret) for name, part in value.items()}
    return type(value)(mask(part, secret) for part in value) if isinstance(value, list | tuple) else value


def resolve_parallel_calls(settings: ModelSettings, tools: list[Item]) -> bool | None:
    """Return the setting, or ``None`` without tools, with which the API rejects it."""
    return settings.parallel_tool_calls if tools else None


def omit_none(**parts: Any) -> Item:
    """Return the parts that are not ``None``: the API distinguishes absent from null."""
    simple = (str, bool, int, float, list)
    return {
        name: part if isinstance(part, simple) else to_plain(part) for name, part in parts.items() if part is not None
    }


def build_client_arguments(request: Item, raw_body: Item, settings: ModelSettings, *, as_body: bool = True) -> Item:
    """Return the client's arguments for a request, including the user's ``extra_*`` settings.

    ``raw_body`` is sent as ``extra_body``, which the client does not transform. It searches all other arguments for
    names to translate, which takes milliseconds for each item, and the items already have the names of the API.
    Without ``as_body`` they are arguments, for a client that is not of the ``openai`` package.
    Raises :class:`UserError` if ``extra_args`` repeats an argument.
    """
    extra = settings.extra_args or {}
    repeated = sorted(extra.keys() & (request.keys() | raw_body.keys()))
    if repeated:
        raise UserError(f"extra_args repeats arguments of the request: {', '.join(repeated)}")
    arguments = {**request, **extra}
    for name in ("extra_headers", "extra_query"):
        if getattr(settings, name) is not None:
            arguments[name] = dict(getattr(settings, name))
    body = settings.extra_body
    if not as_body:
        return {**arguments, **raw_body, **({} if body is None else {"extra_body": body})}
    if body is None or isinstance(body, Mapping):
        return {**arguments, "extra_body": {**raw_body, **(body or {})}}
    return {**arguments, **raw_body, "extra_body": body}


def to_typed_item(item: Item) -> Any:
    """Return the item as the object that the OpenAI client creates for it."""
    kind = _get_item_constructors().get(item["type"])
    return item if kind is None else kind(**item)


def to_typed_event(event: Item) -> Any:
    """Return the event as the object that the OpenAI client creates for it."""
    kind = _get_event_constructors().get(event["type"])
    return event if kind is None else kind(**event)


@cache
def _get_item_constructors() -> dict[str, Callable[..., Any]]:
    load_openai("a model with an OpenAI API")
    from openai.types import responses as kinds

    return {
        "message": kinds.ResponseOutputMessage.construct,
        "function_call": kinds.ResponseFunctionToolCall.construct,
        "reasoning": kinds.ResponseReasoningItem.construct,
    }


@cache
def _get_event_constructors() -> dict[str, Callable[..., Any]]:
    load_openai("a model with an OpenAI API")
    from openai.types import responses as kinds

    # ``model_construct`` is faster and suffices for events without nested objects, which are the most frequent.
    return {
        "response.created": kinds.ResponseCreatedEvent.construct,
        "response.in_progress": kinds.ResponseInProgressEvent.construct,
        "response.completed": kinds.ResponseCompletedEvent.construct,
        "response.output_item.added": kinds.ResponseOutputItemAddedEvent.construct,
        "response.output_item.done": kinds.ResponseOutputItemDoneEvent.construct,
        "response.content_part.added": kinds.ResponseContentPartAddedEvent.construct,
        "response.content_part.done": kinds.ResponseContentPartDoneEvent.construct,
        "response.output_text.delta": kinds.ResponseTextDeltaEvent.model_construct,
        "response.output_text.done": kinds.ResponseTextDoneEvent.model_construct,
        "response.refusal.delta": kinds.ResponseRefusalDeltaEvent.model_construct,
        "response.refusal.done": kinds.ResponseRefusalDoneEvent.model_construct,
        "response.function_call_arguments.delta": kinds.ResponseFunctionCallArgumentsDeltaEvent.model_construct,
        "response.function_call_arguments.done": kinds.ResponseFunctionCallArgumentsDoneEvent.model_construct,
        "response.reasoning_summary_part.added": kinds.ResponseReasoningSummaryPartAddedEvent.construct,
        "response.reasoning_summary_part.done": kinds.ResponseReasoningSummaryPartDoneEvent.construct,
        "response.reasoning_summary_text.delta": kinds.ResponseReasoningSummaryTextDeltaEvent.model_construct,
        "response.reasoning_summary_text.done": kinds.ResponseReasoningSummaryTextDoneEvent.model_construct,
        "response.reasoning_text.delta": kinds.ResponseReasoningTextDeltaEvent.model_construct,
        "response.reasoning_text.done": kinds.ResponseReasoningTextDoneEvent.model_construct,
    }


def configure_client_retries(client: "AsyncOpenAI", settings: ModelSettings, *, stateful: bool) -> "AsyncOpenAI":
    """Return the client, with its own retries turned off where standfast decides on retries.

    That is the case if the settings configure retries, and for stateful requests, which the client would repeat
    without knowing whether the first one had an effect.
    """
    if (settings.retry is None and not stateful) or not hasattr(client, "with_options"):
        return client
    return client.with_options(max_retries=0)


def make_retry_advice(request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
    """Return the advice for an error of the server or the client; ``None`` for any other error."""
    error = request.error
    if isinstance(error, ResponseFailed):
        code = error.error_code or getattr(error, "error_type", None)
        return ModelRetryAdvice(suggested=code in _TRANSIENT_CODES, replay_safety=_get_replay_safety(request.stateful))
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
        normalized=ModelRetryNormalizedError(
            status_code=status, error_code=_get_error_code(error), request_id=error.request_id
        ),
    )


def _get_error_code(error: Any) -> str | None:
    body = error.body.get("error", error.body) if isinstance(error.body, Mapping) else None
    for code in (error.code, body.get("code") if isinstance(body, Mapping) else None):
        if isinstance(code, str):
            return code
    # Some gateways forward the body in another format.
    return CONVERSATION_LOCKED if CONVERSATION_LOCKED in str(error.message) else None


def _get_replay_safety(uncertain: bool) -> Any:
    return None if uncertain else "safe"
