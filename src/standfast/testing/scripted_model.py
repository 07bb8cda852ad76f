"""A model for tests that returns scripted responses and records its calls."""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict

from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.agents.types import maybe_await
from standfast.base.items import Item
from standfast.base.usage import InputTokensDetails, OutputTokensDetails, Usage
from standfast.models.event_objects import make_event_object
from standfast.models.interface import (
    AttributeDict,
    Model,
    ModelResponse,
    ModelTracing,
    TResponseOutputItem,
    TResponseStreamEvent,
    as_item,
    wrap_attributes,
)
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from standfast.models.stream_events import (
    ResponseEvent,
    ResponseEventBuilder,
    make_response_events,
    make_text_part,
    usage_to_dict,
)

ModelStepReason: TypeAlias = Literal[
    "invalid_input",
    "unsupported_field",
    "invalid_error",
    "invalid_responder",
    "invalid_stream_events",
    "conflicting_outcomes",
    "invalid_retry_advice",
]


class ModelScriptError(Exception):
    """The program used the script in a way that does not match it."""


class InvalidModelStep(ModelScriptError):
    """A step of the script is invalid. ``input_index`` counts from 0."""

    def __init__(self, message: str, *, reason: ModelStepReason, input_index: int) -> None:
        super().__init__(message)
        self.reason, self.input_index = reason, input_index


class UnexpectedModelCall(ModelScriptError):
    """The model was called more often than the script has steps. ``call_index`` counts from 0."""

    def __init__(self, message: str, *, call: "ModelCall", call_index: int) -> None:
        super().__init__(message)
        self.call, self.call_index = call, call_index


class UnconsumedModelSteps(ModelScriptError):
    """Steps of the script were not used."""

    def __init__(self, message: str, *, remaining_steps: int) -> None:
        super().__init__(message)
        self.remaining_steps = remaining_steps


@dataclass(frozen=True)
class ModelCall:
    """The arguments of one call of the model. Lists are copied, the items in them are not."""

    system_instructions: str | None
    input: Any
    model_settings: ModelSettings
    tools: list[Tool]
    output_schema: AgentOutputSchemaBase | None
    handoffs: list[Handoff[Any, Any]]
    tracing: ModelTracing
    previous_response_id: str | None
    conversation_id: str | None
    prompt: Any | None
    streamed: bool


ModelStreamFactory: TypeAlias = Callable[[ModelCall], AsyncIterator[TResponseStreamEvent]]


@dataclass
class ModelStep:
    """One step of the script: output, an error to raise, or a function that is called with the request.

    ``stream_events`` are the events of a streamed call; without them, events are generated from the output.
    """

    output: Sequence[TResponseOutputItem] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    response_id: str | None = "resp-789"
    request_id: str | None = None
    raw_usage: dict[str, Any] | None = None
    error: Exception | None = None
    responder: "ModelResponder | None" = None
    stream_events: Sequence[TResponseStreamEvent] | ModelStreamFactory | None = None
    retry_advice: ModelRetryAdvice | None = None

    @classmethod
    def raise_error(cls, error: Exception, *, retry_advice: ModelRetryAdvice | None = None) -> "ModelStep":
        """A step that raises."""
        return cls(error=error, retry_advice=retry_advice)

    @classmethod
    def respond(cls, responder: "ModelResponder") -> "ModelStep":
        """A step whose response a function makes."""
        return cls(responder=responder)

    @classmethod
    def stream(
        cls,
        events: Sequence[TResponseStreamEvent] | ModelStreamFactory,
        *,
        output: Sequence[TResponseOutputItem] = (),
        usage: Usage | None = None,
        response_id: str | None = "resp-789",
    ) -> "ModelStep":
        """A step that streams these events."""
        return cls(output=output, usage=usage or Usage(), response_id=response_id, stream_events=events)


class ModelStepSpec(TypedDict, total=False):
    """A :class:`ModelStep` as a dict."""

    output: Sequence[TResponseOutputItem]
    usage: Usage
    response_id: str | None
    request_id: str | None
    raw_usage: dict[str, Any] | None
    error: Exception | None
    responder: "ModelResponder | None"
    stream_events: Sequence[TResponseStreamEvent] | ModelStreamFactory | None
    retry_advice: ModelRetryAdvice | None


ModelScriptItem: TypeAlias = (
    ModelStep | ModelStepSpec | ModelResponse | Mapping[str, Any] | Sequence[TResponseOutputItem] | Exception
)
ModelResponder: TypeAlias = Callable[[ModelCall], ModelScriptItem | Awaitable[ModelScriptItem]]


class ScriptedModel(Model):
    """A model that takes the next step of a script for each call. A call without a step left is an error.

    A step is a :class:`ModelStep` (or a dict of its fields), a :class:`ModelResponse`, a list of output items, or an
    exception to raise. An invalid step is refused when it is added, not when it is reached.
    """

    def __init__(
        self,
        steps: Iterable[ModelScriptItem] = (),
        *,
        emit_traces: bool = False,
        default_usage: Usage | None = None,
    ) -> None:
        self.emit_traces = emit_traces
        self._steps: deque[ModelStep] = deque()
        self._calls: list[ModelCall] = []
        self._advice: deque[tuple[Exception, ModelRetryAdvice]] = deque(maxlen=16)
        self._default_usage = default_usage
        self.extend(steps)

    @property
    def calls(self) -> list[ModelCall]:
        """The calls so far, as a new list."""
        return list(self._calls)

    @property
    def first_call(self) -> ModelCall | None:
        """The first call, None before it."""
        return self._calls[0] if self._calls else None

    @property
    def last_call(self) -> ModelCall | None:
        """The latest call, None before the first."""
        return self._calls[-1] if self._calls else None

    @property
    def remaining_steps(self) -> int:
        """How many steps of the script are left."""
        return len(self._steps)

    def enqueue(self, step: ModelScriptItem) -> None:
        """Append a step to the script."""
        self._steps.append(_validate_step(step, 0))

    def extend(self, steps: Iterable[ModelScriptItem]) -> None:
        """Append steps to the script: all of them, or none if one is invalid."""
        self._steps.extend([_validate_step(step, index) for index, step in enumerate(steps)])

    def set_default_usage(self, usage: Usage | None) -> None:
        """Set the usage of steps without their own."""
        self._default_usage = usage

    def assert_complete(self) -> None:
        """Raise :class:`UnconsumedModelSteps` if there are steps left."""
        if self._steps:
            raise UnconsumedModelSteps(
                f"{len(self._steps)} scripted model step(s) were not consumed.", remaining_steps=len(self._steps)
            )

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any | None,
    ) -> ModelResponse:
        call = ModelCall(
            system_instructions, _copy_input(input), model_settings, list(tools), output_schema, list(handoffs),
            tracing, previous_response_id, conversation_id, prompt, streamed=False,
        )  # fmt: skip
        step = await self._take_step(call)
        items, usage = [wrap_attributes(item) for item in step.output], self._make_usage(step)
        return ModelResponse(items, usage, step.response_id, step.request_id, step.raw_usage)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any | None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        call = ModelCall(
            system_instructions, _copy_input(input), model_settings, list(tools), output_schema, list(handoffs),
            tracing, previous_response_id, conversation_id, prompt, streamed=True,
        )  # fmt: skip
        step = await self._take_step(call)
        if callable(step.stream_events):
            async for event in step.stream_events(call):
                yield wrap_attributes(event)
            return
        if step.stream_events is not None:
            for event in step.stream_events:
                yield wrap_attributes(event)
            return
        for event in self._make_events(step):
            yield make_event_object(event)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return next((advice for error, advice in self._advice if error is request.error), None)

    async def close(self) -> None:
        """Do nothing; the model can still be used."""

    async def _take_step(self, call: ModelCall) -> ModelStep:
        """Record the call and return its step, after calling its responder. Raises the error of the step, if any."""
        self._calls.append(call)
        if not self._steps:
            how = "streaming" if call.streamed else "non-streaming"
            number = len(self._calls)
            raise UnexpectedModelCall(
                f"Unexpected {how} model call #{number}: no scripted steps remain.", call=call, call_index=number - 1
            )
        step = self._steps.popleft()
        while step.responder is not None:
            step = _validate_step(await maybe_await(step.responder(call)), 0)
        if step.error is not None:
            if step.retry_advice is not None:
                self._advice.append((step.error, step.retry_advice))
            raise step.error
        return step

    def _make_usage(self, step: ModelStep) -> Usage:
        """Return a new usage for each response, with one request unless the step sets another number."""
        usage = step.usage if step.usage != Usage() else self._default_usage or Usage()
        return replace(
            usage,
            requests=usage.requests or 1,
            input_tokens_details=InputTokensDetails.coerce(usage.input_tokens_details),
            output_tokens_details=OutputTokensDetails.coerce(usage.output_tokens_details),
            request_usage_entries=list(usage.request_usage_entries),
        )

    def _make_events(self, step: ModelStep) -> Iterable[ResponseEvent]:
        """Yield the events of a step. Items that are objects of another library stay what they are."""
        builder = ResponseEventBuilder(step.response_id, model="scripted-model")
        more = {} if step.request_id is None else {"_request_id": step.request_id}
        usage = usage_to_dict(self._make_usage(step))
        for event in make_response_events(builder, map(as_item, step.output), usage=usage, **more):
            match event["type"]:
                case "response.output_item.done":
                    event["item"] = step.output[event["output_index"]]
                case "response.completed":
                    event["response"]["output"] = list(step.output)
            yield event


def assistant_message(text: str, *, item_id: str = "scripted-message") -> TResponseOutputItem:
    """Return a message item as a model produces it."""
    content = [make_text_part(text)]
    return AttributeDict(id=item_id, content=content, role="assistant", status="completed", type="message")


def function_call(
    name: str,
    arguments: str | Mapping[str, Any],
    *,
    call_id: str,
    item_id: str | None = None,
    namespace: str | None = None,
) -> TResponseOutputItem:
    """Return a function call item as a model produces it. Arguments given as a string are used unchanged."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, separators=(",", ":"))
    call = AttributeDict(arguments=text, call_id=call_id, name=name, type="function_call", id=item_id or call_id)
    if namespace is not None:
        call["namespace"] = namespace
    return call


def _copy_input(input: str | list[Item]) -> Any:
    # Not a deep copy: that would dominate tests of many turns, and items are never modified.
    return list(input) if isinstance(input, list) else input


_STEP_FIELDS = frozenset(f.name for f in fields(ModelStep))


def _validate_step(step: Any, index: int) -> ModelStep:
    """Return the step as a :class:`ModelStep`, or raise :class:`InvalidModelStep`."""

    def make_error(reason: ModelStepReason, problem: str) -> InvalidModelStep:
        return InvalidModelStep(f"Scripted model step #{index + 1} {problem}.", reason=reason, input_index=index)

    if isinstance(step, Exception):
        return ModelStep(error=step)
    if isinstance(step, ModelResponse):
        return ModelStep(step.output, step.usage, step.response_id, step.request_id, step.raw_usage)
    if isinstance(step, Mapping) and "type" not in step:
        unknown = sorted(set(step) - _STEP_FIELDS)
        if unknown:
            raise make_error("unsupported_field", f"has unknown fields: {', '.join(unknown)}")
        step = ModelStep(**step)
    result = step if isinstance(step, ModelStep) else ModelStep(output=step)
    if isinstance(result.output, str | bytes | Mapping) or not isinstance(result.output, Sequence):
        raise make_error("invalid_input", "must use a sequence for output")
    for item in result.output:
        if not isinstance(item, Mapping) and not hasattr(item, "model_dump"):
            raise make_error("invalid_input", f"has an output item that is not a JSON object: {item!r}")
    if result.error is not None and not isinstance(result.error, Exception):
        raise make_error("invalid_error", f"must raise an exception, not {result.error!r}")
    if result.responder is not None and not callable(result.responder):
        raise make_error("invalid_responder", "must have a function as its responder")
    events = result.stream_events
    if isinstance(events, str | bytes | Mapping) or not (
        events is None or callable(events) or isinstance(events, Sequence)
    ):
        raise make_error("invalid_stream_events", "must have a sequence of events, or a function that makes them")
    if result.retry_advice is not None and not isinstance(result.retry_advice, ModelRetryAdvice):
        raise make_error("invalid_retry_advice", "must have a ModelRetryAdvice as its retry advice")
    if sum(outcome is not None for outcome in (result.error, result.responder, result.stream_events)) > 1:
        raise make_error("conflicting_outcomes", "can have only one of error, responder and stream_events")
    return result
