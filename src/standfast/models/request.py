"""Asking a model until it answers: attempts, their time limits, and the pauses between them.

One coroutine serves both ways of asking. With ``emit`` the model is asked for a stream and every event goes there.
"""

import asyncio
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
from standfast.models.validation import validate_response

if TYPE_CHECKING:
    from standfast.agents.handoffs import Handoff
    from standfast.agents.output import AgentOutputSchemaBase
    from standfast.agents.tools import Tool

ResponseEventSink: TypeAlias = Callable[[TResponseStreamEvent], Awaitable[None]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class ModelRequest:
    """Everything that a model is told in one request."""

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
        """Call one of a model's two ways of answering with this request."""
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


async def call_model(
    model: Model, request: ModelRequest, *, emit: ResponseEventSink | None = None, sleep: Sleep = asyncio.sleep
) -> ModelResponse:
    """The model's answer, after as many attempts as the settings allow.

    Nobody sees an event of an attempt that is repeated. Attempts that failed are counted in the answer's usage.
    """
    retries = resolve_retry_settings(request.model_settings.retry, stateful=_is_stateful(request))
    attempt, locked = 1, 0
    while True:
        shown = _EventForwarder(emit, buffer_prelude=bool(retries.max_retries) or _is_stateful(request))
        try:
            return _count_failed_attempts(
                validate_response(await _run_attempt(model, request, shown)), failed_attempts=attempt + locked - 1
            )
        except Exception as error:
            context = _build_policy_context(
                model, request, error, attempt=attempt, max_retries=retries.max_retries or 0, forwarder=shown
            )
            delay = get_locked_delay(context, locked_attempts=locked)
            if delay is not None:
                locked += 1
            elif retries.policy is None:
                raise
            else:
                wanted = RetryDecision.coerce(await maybe_await(retries.policy(context)))
                delay = decide_delay(context, wanted, backoff=retries.backoff)
                if delay is None:
                    raise
                attempt += 1
        await sleep(delay)


class _EventForwarder:
    """Passes events on, and remembers whether the model's own words were among them.

    A patient one holds back what comes before those words, until it is clear that the attempt counts.
    """

    def __init__(self, emit: ResponseEventSink | None, *, buffer_prelude: bool) -> None:
        self.emit = emit
        self.response_started = False
        self._buffer_prelude = buffer_prelude
        self._buffered: list[TResponseStreamEvent] = []

    async def forward(self, event: TResponseStreamEvent) -> None:
        assert self.emit is not None  # noqa: S101 - streams are only asked for when somebody listens
        if self._buffer_prelude and not self.response_started and get_field(event, "type") in PRELUDE_EVENTS:
            self._buffered.append(event)
            return
        self.response_started = self.response_started or get_field(event, "type") not in PRELUDE_EVENTS
        held, self._buffered = self._buffered, []
        for earlier in held:
            await self.emit(earlier)
        await self.emit(event)


async def _run_attempt(model: Model, request: ModelRequest, forwarder: _EventForwarder) -> ModelResponse:
    """One attempt within its time. A late one is cancelled and has ended when this raises."""
    seconds = request.model_settings.timeout
    try:
        async with asyncio.timeout(seconds) as clock:
            if forwarder.emit is None:
                response: ModelResponse = await request.send_to(model.get_response)
                return response
            return await _collect_stream(model, request, forwarder, clock)
    except TimeoutError as error:
        if seconds is None or not clock.expired():  # one of the model's own
            raise
        raise ModelTimeoutError(seconds) from error


async def _collect_stream(
    model: Model, request: ModelRequest, forwarder: _EventForwarder, timeout: asyncio.Timeout
) -> ModelResponse:
    answer: ModelResponse | None = None
    keep = bool(request.model_settings.preserve_raw_usage)
    async with aclosing(request.send_to(model.stream_response)) as events:
        async for event in events:
            # A failure is raised before its event is shown: it may be repeated, and then never happened.
            answer = parse_final_event(event, keep_raw_usage=keep) or answer
            if timeout.when() is None:
                await forwarder.forward(event)
                continue
            async with _pause_timeout(timeout):
                await forwarder.forward(event)
    if answer is None:
        raise IncompleteStream("the stream ended before the answer was complete")
    return answer


@asynccontextmanager
async def aclosing(events: AsyncIterator[TResponseStreamEvent]) -> AsyncIterator[AsyncIterator[TResponseStreamEvent]]:
    """A model's stream, which is closed at the end of the block."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)  # an iterator that is no generator may have none
        if close is not None:
            await close()


@asynccontextmanager
async def _pause_timeout(timeout: asyncio.Timeout) -> AsyncIterator[None]:
    """The time that listeners take is not the model's."""
    when = timeout.when() or 0.0
    loop = asyncio.get_running_loop()
    before = loop.time()
    timeout.reschedule(None)
    yield
    timeout.reschedule(when + loop.time() - before)


def _build_policy_context(
    model: Model, request: ModelRequest, error: Exception, *, attempt: int, max_retries: int, forwarder: _EventForwarder
) -> RetryPolicyContext:
    """The failed attempt with everything that is known about it."""
    ids = {"previous_response_id": request.previous_response_id, "conversation_id": request.conversation_id}
    stream = forwarder.emit is not None
    advise = getattr(model, "get_retry_advice", None)  # models of other make need not have it
    asked = ModelRetryAdviceRequest(error, attempt, stream, **ids)
    advice: ModelRetryAdvice | None = None if advise is None else advise(asked)
    if forwarder.response_started:
        advice = replace(advice or ModelRetryAdvice(), response_started=True)
    normalized = normalize_error(error).merge(None if advice is None else advice.normalized)
    return RetryPolicyContext(error, attempt, max_retries, stream, normalized, advice, **ids)


def _count_failed_attempts(response: ModelResponse, *, failed_attempts: int) -> ModelResponse:
    if not failed_attempts:
        return response
    usage = replace(response.usage, requests=response.usage.requests + failed_attempts)
    nothing = [RequestUsage(0, 0, 0, InputTokensDetails(), OutputTokensDetails()) for _ in range(failed_attempts)]
    usage.request_usage_entries = [*nothing, *(response.usage.request_usage_entries or [response.usage.as_request()])]
    return replace(response, usage=usage)


def _is_stateful(request: ModelRequest) -> bool:
    return bool(request.previous_response_id or request.conversation_id)
