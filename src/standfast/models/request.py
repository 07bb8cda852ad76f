"""Requests to models: the request itself, models that take one, and ``call_model`` with timeouts and retries."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.agents.errors import ModelTimeoutError
from standfast.agents.model_settings import ModelSettings
from standfast.agents.tool_identity import get_field
from standfast.agents.types import maybe_await
from standfast.base.items import Item
from standfast.base.usage import InputTokensDetails, OutputTokensDetails, RequestUsage
from standfast.models.interface import (
    IncompleteStream,
    Model,
    ModelResponse,
    ModelTracing,
    TResponseStreamEvent,
    parse_final_event,
    validate_response,
)
from standfast.models.retry import (
    ModelRetryAdvice,
    ModelRetryAdviceRequest,
    RetryDecision,
    RetryPolicyContext,
    decide_delay,
    get_locked_delay,
    normalize_error,
    resolve_retry_settings,
)
from standfast.models.stream_events import PRELUDE_EVENTS

if TYPE_CHECKING:
    from standfast.agents.handoffs import Handoff
    from standfast.agents.output import AgentOutputSchemaBase
    from standfast.agents.tools import Tool

ResponseEventSink: TypeAlias = Callable[[TResponseStreamEvent], Awaitable[None]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class ModelRequest:
    """All parameters of one request to a model."""

    input: str | list[Item]
    system_instructions: str | None = None
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    tools: "list[Tool] | tuple[()]" = ()
    output_schema: "AgentOutputSchemaBase | None" = None
    handoffs: "list[Handoff[Any, Any]] | tuple[()]" = ()
    tracing: ModelTracing = ModelTracing.DISABLED
    previous_response_id: str | None = None
    conversation_id: str | None = None
    prompt: Any | None = None

    def send_to(self, method: Callable[..., Any]) -> Any:
        """Call ``Model.get_response`` or ``Model.stream_response`` with this request."""
        return method(
            self.system_instructions,
            self.input,
            self.model_settings,
            list(self.tools),
            self.output_schema,
            list(self.handoffs),
            self.tracing,
            previous_response_id=self.previous_response_id,
            conversation_id=self.conversation_id,
            prompt=self.prompt,
        )

    @property
    def is_stateful(self) -> bool:
        """Whether the server adds this request to a conversation that it keeps."""
        return bool(self.previous_response_id or self.conversation_id)


class RequestModel(Model):
    """Base class of models: subclasses implement :meth:`respond` and :meth:`stream` for a :class:`ModelRequest`.

    The two methods of :class:`Model`, with their ten arguments, are implemented here once for all of them.
    """

    @abstractmethod
    async def respond(self, request: ModelRequest) -> ModelResponse:
        """Return the complete response; see :meth:`Model.get_response`."""

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the events of the response; see :meth:`Model.stream_response`."""

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: "list[Tool]",
        output_schema: "AgentOutputSchemaBase | None",
        handoffs: "list[Handoff[Any, Any]]",
        tracing: ModelTracing,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> ModelResponse:
        request = ModelRequest(
            input, system_instructions, model_settings, tools, output_schema, handoffs, tracing,
            previous_response_id, conversation_id, prompt,
        )  # fmt: skip
        return await self.respond(request)

    def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: "list[Tool]",
        output_schema: "AgentOutputSchemaBase | None",
        handoffs: "list[Handoff[Any, Any]]",
        tracing: ModelTracing,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        request = ModelRequest(
            input, system_instructions, model_settings, tools, output_schema, handoffs, tracing,
            previous_response_id, conversation_id, prompt,
        )  # fmt: skip
        return self.stream(request)


async def call_model(
    model: Model, request: ModelRequest, *, emit: ResponseEventSink | None = None, sleep: Sleep = asyncio.sleep
) -> ModelResponse:
    """Return the response of the model, after as many attempts as the settings allow.

    With ``emit``, the response is streamed and every event is passed to ``emit``, except the events of attempts that
    are retried. The usage of the response includes the failed attempts.
    """
    retries = resolve_retry_settings(request.model_settings.retry, stateful=request.is_stateful)
    attempt, locked_attempts = 1, 0
    while True:
        forwarder = _EventForwarder(emit, buffer_prelude=bool(retries.max_retries) or request.is_stateful)
        try:
            return _count_failed_attempts(
                validate_response(await _run_attempt(model, request, forwarder)),
                failed_attempts=attempt + locked_attempts - 1,
            )
        except Exception as error:
            context = _build_policy_context(
                model, request, error, attempt=attempt, max_retries=retries.max_retries or 0, forwarder=forwarder
            )
            delay = get_locked_delay(context, locked_attempts=locked_attempts)
            if delay is not None:
                locked_attempts += 1
            elif retries.policy is None:
                raise
            else:
                decision = RetryDecision.coerce(await maybe_await(retries.policy(context)))
                delay = decide_delay(context, decision, backoff=retries.backoff)
                if delay is None:
                    raise
                attempt += 1
        await sleep(delay)


class _EventForwarder:
    """Passes the events of one attempt to ``emit`` and records whether the response has started.

    With ``buffer_prelude`` it holds back the events before the first output, as the attempt may still be retried.
    """

    def __init__(self, emit: ResponseEventSink | None, *, buffer_prelude: bool) -> None:
        self.emit = emit
        self.response_started = False
        self._buffer_prelude = buffer_prelude
        self._buffered: list[TResponseStreamEvent] = []

    async def forward(self, event: TResponseStreamEvent) -> None:
        assert self.emit is not None  # noqa: S101 - only a request with emit is streamed
        if self._buffer_prelude and not self.response_started and get_field(event, "type") in PRELUDE_EVENTS:
            self._buffered.append(event)
            return
        self.response_started = self.response_started or get_field(event, "type") not in PRELUDE_EVENTS
        buffered, self._buffered = self._buffered, []
        for earlier in buffered:
            await self.emit(earlier)
        await self.emit(event)


async def _run_attempt(model: Model, request: ModelRequest, forwarder: _EventForwarder) -> ModelResponse:
    """Make one attempt within the time limit. After :class:`ModelTimeoutError` it has been cancelled and has ended."""
    seconds = request.model_settings.timeout
    response: ModelResponse
    if seconds is None and forwarder.emit is None:
        response = await request.send_to(model.get_response)
        return response
    try:
        async with asyncio.timeout(seconds) as limit:
            if forwarder.emit is None:
                response = await request.send_to(model.get_response)
                return response
            return await _collect_stream(model, request, forwarder, limit)
    except TimeoutError as error:
        if seconds is None or not limit.expired():  # the model itself raised it
            raise
        raise ModelTimeoutError(seconds) from error


async def _collect_stream(
    model: Model, request: ModelRequest, forwarder: _EventForwarder, timeout: asyncio.Timeout
) -> ModelResponse:
    response: ModelResponse | None = None
    items: dict[int, Any] = {}
    keep_raw_usage = bool(request.model_settings.preserve_raw_usage)
    async with closing_stream(request.send_to(model.stream_response)) as events:
        async for event in events:
            # A failure is raised before its event is forwarded, because the attempt may be retried.
            response = parse_final_event(event, keep_raw_usage=keep_raw_usage) or response
            if get_field(event, "type") == "response.output_item.done":
                items[get_field(event, "output_index")] = get_field(event, "item")
            if timeout.when() is None:
                await forwarder.forward(event)
                continue
            async with _pause_timeout(timeout):
                await forwarder.forward(event)
    if response is None:
        raise IncompleteStream("the stream ended before the response was complete")
    if items and not response.output:  # some servers leave it out at the end
        return replace(response, output=[items[index] for index in sorted(items)])
    return response


@asynccontextmanager
async def closing_stream(
    events: AsyncIterator[TResponseStreamEvent],
) -> AsyncIterator[AsyncIterator[TResponseStreamEvent]]:
    """Close a model's stream at the end of the block; an iterator without ``aclose`` is left as it is."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


@asynccontextmanager
async def _pause_timeout(timeout: asyncio.Timeout) -> AsyncIterator[None]:
    """Suspend the time limit during the block: the time that ``emit`` takes is not the model's."""
    when = timeout.when() or 0.0
    loop = asyncio.get_running_loop()
    started = loop.time()
    timeout.reschedule(None)
    yield
    timeout.reschedule(when + loop.time() - started)


def _build_policy_context(
    model: Model, request: ModelRequest, error: Exception, *, attempt: int, max_retries: int, forwarder: _EventForwarder
) -> RetryPolicyContext:
    """Return the description of a failed attempt for the retry policy."""
    ids = {"previous_response_id": request.previous_response_id, "conversation_id": request.conversation_id}
    stream = forwarder.emit is not None
    advise = getattr(model, "get_retry_advice", None)  # models that do not inherit from Model may not have it
    advice_request = ModelRetryAdviceRequest(error, attempt, stream, **ids)
    advice: ModelRetryAdvice | None = None if advise is None else advise(advice_request)
    if forwarder.response_started:
        advice = replace(advice or ModelRetryAdvice(), response_started=True)
    normalized = normalize_error(error).merge(None if advice is None else advice.normalized)
    return RetryPolicyContext(error, attempt, max_retries, stream, normalized, advice, **ids)


def _count_failed_attempts(response: ModelResponse, *, failed_attempts: int) -> ModelResponse:
    if not failed_attempts:
        return response
    usage = replace(response.usage, requests=response.usage.requests + failed_attempts)
    failed = [RequestUsage(0, 0, 0, InputTokensDetails(), OutputTokensDetails()) for _ in range(failed_attempts)]
    usage.request_usage_entries = [*failed, *(response.usage.request_usage_entries or [response.usage.as_request()])]
    return replace(response, usage=usage)
