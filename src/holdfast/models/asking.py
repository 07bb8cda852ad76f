"""Asking a model until it answers: attempts, their time limits, and the pauses between them.

One coroutine serves both ways of asking. With ``emit`` the model is asked for a stream and every event goes there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.agents.errors import ModelTimeoutError
from holdfast.agents.model_settings import ModelSettings
from holdfast.agents.tool_refs import part_of
from holdfast.agents.types import resolved
from holdfast.base.items import Item
from holdfast.base.usage import InputTokensDetails, OutputTokensDetails, RequestUsage
from holdfast.models.checking import checked
from holdfast.models.contract import Model, ModelResponse, ModelTracing, StreamCut, TResponseStreamEvent, completed
from holdfast.models.events import PRELUDE
from holdfast.models.retry import (
    ModelRetryAdvice,
    ModelRetryAdviceRequest,
    RetryDecision,
    RetryPolicyContext,
    decide,
    locked_delay,
    normalized_error,
    wanted_retries,
)

if TYPE_CHECKING:
    from holdfast.agents.handoffs import Handoff
    from holdfast.agents.output import AgentOutputSchemaBase
    from holdfast.agents.tools import Tool

Emit: TypeAlias = Callable[[TResponseStreamEvent], Awaitable[None]]
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

    def put_to(self, method: Callable[..., Any]) -> Any:
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


async def ask(
    model: Model, request: ModelRequest, *, emit: Emit | None = None, sleep: Sleep = asyncio.sleep
) -> ModelResponse:
    """The model's answer, after as many attempts as the settings allow.

    Nobody sees an event of an attempt that is repeated. Attempts that failed are counted in the answer's usage.
    """
    retries = wanted_retries(request.model_settings.retry, stateful=_stateful(request))
    attempt, locked = 1, 0
    while True:
        shown = _Shown(emit, patient=bool(retries.max_retries) or _stateful(request))
        try:
            return _counting(checked(await _attempt(model, request, shown)), failed=attempt + locked - 1)
        except Exception as error:
            context = _judged(model, request, error, attempt=attempt, max_retries=retries.max_retries or 0, shown=shown)
            delay = locked_delay(context, locked_before=locked)
            if delay is not None:
                locked += 1
            elif retries.policy is None:
                raise
            else:
                wanted = RetryDecision.of(await resolved(retries.policy(context)))
                delay = decide(context, wanted, backoff=retries.backoff)
                if delay is None:
                    raise
                attempt += 1
        await sleep(delay)


class _Shown:
    """Passes events on, and remembers whether the model's own words were among them.

    A patient one holds back what comes before those words, until it is clear that the attempt counts.
    """

    def __init__(self, emit: Emit | None, *, patient: bool) -> None:
        self.emit = emit
        self.started = False
        self._patient = patient
        self._held: list[TResponseStreamEvent] = []

    async def show(self, event: TResponseStreamEvent) -> None:
        assert self.emit is not None  # noqa: S101 - streams are only asked for when somebody listens
        if self._patient and not self.started and part_of(event, "type") in PRELUDE:
            self._held.append(event)
            return
        self.started = self.started or part_of(event, "type") not in PRELUDE
        held, self._held = self._held, []
        for earlier in held:
            await self.emit(earlier)
        await self.emit(event)


async def _attempt(model: Model, request: ModelRequest, shown: _Shown) -> ModelResponse:
    """One attempt within its time. A late one is cancelled and has ended when this raises."""
    seconds = request.model_settings.timeout
    try:
        async with asyncio.timeout(seconds) as clock:
            if shown.emit is None:
                response: ModelResponse = await request.put_to(model.get_response)
                return response
            return await _streamed(model, request, shown, clock)
    except TimeoutError as error:
        if seconds is None or not clock.expired():  # one of the model's own
            raise
        raise ModelTimeoutError(seconds) from error


async def _streamed(model: Model, request: ModelRequest, shown: _Shown, clock: asyncio.Timeout) -> ModelResponse:
    answer: ModelResponse | None = None
    keep = bool(request.model_settings.preserve_raw_usage)
    async with closing(request.put_to(model.stream_response)) as events:
        async for event in events:
            # A failure is raised before its event is shown: it may be repeated, and then never happened.
            answer = completed(event, keep_raw_usage=keep) or answer
            if clock.when() is None:
                await shown.show(event)
                continue
            async with _stopped(clock):
                await shown.show(event)
    if answer is None:
        raise StreamCut("the stream ended before the answer was complete")
    return answer


@asynccontextmanager
async def closing(events: AsyncIterator[TResponseStreamEvent]) -> AsyncIterator[AsyncIterator[TResponseStreamEvent]]:
    """A model's stream, which is closed at the end of the block."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)  # an iterator that is no generator may have none
        if close is not None:
            await close()


@asynccontextmanager
async def _stopped(clock: asyncio.Timeout) -> AsyncIterator[None]:
    """The time that listeners take is not the model's."""
    when = clock.when() or 0.0
    loop = asyncio.get_running_loop()
    before = loop.time()
    clock.reschedule(None)
    yield
    clock.reschedule(when + loop.time() - before)


def _judged(
    model: Model, request: ModelRequest, error: Exception, *, attempt: int, max_retries: int, shown: _Shown
) -> RetryPolicyContext:
    """The failed attempt with everything that is known about it."""
    ids = {"previous_response_id": request.previous_response_id, "conversation_id": request.conversation_id}
    stream = shown.emit is not None
    advise = getattr(model, "get_retry_advice", None)  # models of other make need not have it
    asked = ModelRetryAdviceRequest(error, attempt, stream, **ids)
    advice: ModelRetryAdvice | None = None if advise is None else advise(asked)
    if shown.started:
        advice = replace(advice or ModelRetryAdvice(), response_started=True)
    normalized = normalized_error(error).corrected_by(None if advice is None else advice.normalized)
    return RetryPolicyContext(error, attempt, max_retries, stream, normalized, advice, **ids)


def _counting(response: ModelResponse, *, failed: int) -> ModelResponse:
    if not failed:
        return response
    usage = replace(response.usage, requests=response.usage.requests + failed)
    nothing = [RequestUsage(0, 0, 0, InputTokensDetails(), OutputTokensDetails()) for _ in range(failed)]
    usage.request_usage_entries = [*nothing, *(response.usage.request_usage_entries or [response.usage.as_request()])]
    return replace(response, usage=usage)


def _stateful(request: ModelRequest) -> bool:
    return bool(request.previous_response_id or request.conversation_id)
