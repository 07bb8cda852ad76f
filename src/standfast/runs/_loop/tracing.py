"""The trace spans of a run, of its agents and turns, and of its model calls."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self, TypeAlias

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.errors import (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OutputGuardrailTripwireTriggered,
    ToolMissing,
)
from standfast.agents.output import AgentOutputSchemaBase, name_type
from standfast.history.session import find_session_id
from standfast.models.interface import AttributeDict, Model, ModelResponse, ModelTracing
from standfast.models.openai.agent_registration import add_harness_id
from standfast.models.request import ModelRequest
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import RunConfig
from standfast.runs.core.conversion import usage_as_dict
from standfast.runs.core.state import ServerConversation, SessionConversation
from standfast.runs.core.steps import AskModel, Finish, Step
from standfast.runs.session_io import as_items
from standfast.tool_calls.output import to_plain_value
from standfast.tracing.create import NO_SPAN, OptionalSpan
from standfast.tracing.otel_attributes import build_trace_attributes, encode_instructions
from standfast.tracing.provider import new_span, new_trace
from standfast.tracing.registry import is_tracing_active
from standfast.tracing.span_data import (
    AgentSpanData,
    GenerationSpanData,
    ResponseSpanData,
    TaskSpanData,
    TurnSpanData,
)
from standfast.tracing.spans import Span, SpanError, Trace, get_current_trace, get_recorded_parent

ModelSpan: TypeAlias = Span[GenerationSpanData] | Span[ResponseSpanData]
CARRIER_FIELDS = ("traceparent", "tracestate")


class NoSpans:
    """Spans of a run that is not traced: every method does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        return

    def enter_step(self, step: Step) -> None:
        """Open and close spans for the step that the run is about to execute."""


NO_SPANS = NoSpans()


def make_run_spans(run: ActiveRun) -> NoSpans:
    """Return the spans of a run. ``tracing_disabled`` also suppresses the spans of everything inside the run."""
    if run.config.tracing_disabled:
        return SuppressedSpans()
    if run.route or get_current_trace() is not None:
        return NO_SPANS if get_recorded_parent() is None else RunSpans(run)
    return RunSpans(run) if is_tracing_active() else NO_SPANS


class SuppressedSpans(NoSpans):
    """Suppresses all spans inside the run, even within an outer trace."""

    def __init__(self) -> None:
        self._trace = Trace(recorded=False)

    def __enter__(self) -> Self:
        self._trace.start(mark_as_current=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._trace.finish(reset_current=True)


class RunSpans(NoSpans):
    """Opens and closes spans when the run switches to another agent or starts another turn.

    Those of a nested run are children of the span of its tool call.
    """

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._outer_stack, self._agent_stack, self._turn_stack = ExitStack(), ExitStack(), ExitStack()
        self._position: tuple[str | None, int] = (None, 0)
        self._task_span: Span[TaskSpanData] | None = None
        self._turn_data: TurnSpanData | None = None
        self._usage_before = self._usage_before_turn = usage_as_dict(run.context.usage)
        tracing = run.config.tracing or {}
        self._is_brief = tracing.get("include_task_and_turn_spans") is False

    def __enter__(self) -> Self:
        try:
            if self._run.route:
                self._task_span = self._outer_stack.enter_context(self._make_task_span())
            else:
                self._start_task()
        except BaseException:
            self._outer_stack.close()
            raise
        return self

    def enter_step(self, step: Step) -> None:
        state = self._run.state
        if isinstance(step, Finish):  # output guardrails and hooks are not part of the turn
            self._run.on_output_parsed = self._end_turn
            return
        agent, turn = state.agent, state.turn + isinstance(step, AskModel)
        if (agent, turn) == self._position:
            return
        before, self._position = self._position, (agent, turn)
        self._end_turn()
        if agent != before[0]:
            self._agent_stack.close()
            self._agent_stack.enter_context(self._make_agent_span(self._run.current_agent))
        if turn:
            self._turn_data = TurnSpanData(turn, self._run.current_agent.name)
            self._usage_before_turn = usage_as_dict(self._run.context.usage)
            span = new_span(self._turn_data)
            # A resumed run makes the calls of a turn whose span has ended.
            span.explain_error, span.is_quiet = _explain_turn_error, self._is_brief or not isinstance(step, AskModel)
            self._turn_stack.enter_context(span)

    def __exit__(self, *error: Any) -> None:
        if self._task_span is not None:
            self._task_span.span_data.usage = self._measure_usage(self._usage_before, with_totals=True)
        self._end_turn(*error)
        self._agent_stack.__exit__(*error)
        self._outer_stack.__exit__(*error)

    def _end_turn(self, *error: Any) -> None:
        data = self._turn_data
        if data is not None and (error or data.turn == self._run.state.turn):
            data.usage = self._measure_usage(self._usage_before_turn)
        self._turn_stack.__exit__(*(error or (None, None, None)))

    def _measure_usage(self, before: dict[str, Any], *, with_totals: bool = False) -> dict[str, Any] | None:
        """Return what the run has used since then; None if that is nothing."""
        now = usage_as_dict(self._run.context.usage)
        used = {name: count - before[name] for name, count in now.items()}
        if not used["requests"]:
            return None
        totals = {"requests": used["requests"], "total_tokens": used["total_tokens"]} if with_totals else {}
        return {
            "input_tokens": used["input_tokens"],
            "output_tokens": used["output_tokens"],
            "cached_input_tokens": used["cached_tokens"],
            "cache_write_input_tokens": used["cache_write_tokens"],
            **totals,
        }

    def _make_task_span(self, **options: Any) -> Span[TaskSpanData]:
        config = self._run.config
        options.setdefault("attributes", self._build_attributes(None))
        span = new_span(
            TaskSpanData(config.workflow_name),
            include_sensitive_data=config.trace_include_sensitive_data,
            **options,
        )
        span.explain_error, span.is_quiet = _explain_nothing, self._is_brief
        return span

    def _start_task(self) -> None:
        run = self._run
        saved = run.state.trace or {}
        name = run.config.workflow_name
        if name not in (RunConfig.workflow_name, saved.get("workflow_name", name)):
            saved = {}  # the program has given this part of the run a name of its own
        carrier = {name: saved[name] for name in CARRIER_FIELDS if isinstance(saved.get(name), str)} or None
        trace, own = get_current_trace(), False
        if trace is None:
            trace, own = self._outer_stack.enter_context(_make_trace(run, saved)), True
        self._task_span = self._outer_stack.enter_context(
            self._make_task_span(
                attributes=self._build_attributes(trace if own else None),
                remote_parent=carrier if own else None,
                remote_link=None if own else carrier,
            )
        )
        if carrier is None or not own:
            carrier = {} if self._task_span.otel_span is None else self._task_span.otel_span.to_carrier()
        run.state = replace(run.state, trace={**to_plain_value(trace.to_json()), **carrier})

    def _make_agent_span(self, agent: Agent[Any]) -> Span[AgentSpanData]:
        data = AgentSpanData(
            agent.name,
            handoffs=[one.name if isinstance(one, Agent) else one.agent_name for one in agent.handoffs],
            tools=[tool.name for tool in agent.tools],
            output_type="str" if agent.output_type is None else _name_output(agent.output_type),
        )
        span = new_span(
            data,
            include_sensitive_data=self._run.config.trace_include_sensitive_data,
            attributes=self._build_attributes(None),
        )
        span.explain_error = partial(_explain_agent_error, self._run)
        return span

    def _build_attributes(self, trace: Trace | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        if trace is not None:
            attributes.update(build_trace_attributes(trace))
        attributes["standfast.run.id"] = self._run.state.run_id
        conversation = get_conversation_id(self._run)
        if conversation is not None:
            attributes["gen_ai.conversation.id"] = conversation
        return attributes


def _name_output(output_type: Any) -> str:
    return output_type.name() if isinstance(output_type, AgentOutputSchemaBase) else name_type(output_type)


REDACTED = "Error details are redacted."


def _explain_nothing(error: BaseException, with_text: bool) -> None:
    """Leave the error to the spans inside."""


def _explain_turn_error(error: BaseException, with_text: bool) -> SpanError | None:
    if isinstance(error, InputGuardrailTripwireTriggered):
        return _explain_tripwire(error)
    if isinstance(error, ModelBehaviorError):
        missing = error.key if isinstance(error, ToolMissing) else error.missing_tool
        if missing is not None:
            return SpanError(message="Tool not found", data={"tool_name": missing})
        return SpanError(message="Invalid JSON provided", data={})
    return None


def _explain_agent_error(run: ActiveRun, error: BaseException, with_text: bool) -> SpanError | None:
    if isinstance(error, MaxTurnsExceeded):
        return SpanError(message="Max turns exceeded", data={"max_turns": run.state.max_turns})
    if isinstance(error, OutputGuardrailTripwireTriggered):
        return _explain_tripwire(error)
    if isinstance(error, InputGuardrailTripwireTriggered | ModelBehaviorError) or not isinstance(error, Exception):
        return None
    return SpanError(message="Error in agent run", data={"error": str(error) if with_text else REDACTED})


def _explain_tripwire(error: InputGuardrailTripwireTriggered | OutputGuardrailTripwireTriggered) -> SpanError:
    name = error.guardrail_result.guardrail.get_name()
    return SpanError(message="Guardrail tripwire triggered", data={"guardrail": name})


def _explain_model_error(error: BaseException, with_text: bool) -> SpanError:
    return SpanError(message="Error getting response", data={"error": str(error) if with_text else REDACTED})


def get_conversation_id(run: ActiveRun) -> str | None:
    """Return the id of the conversation: the trace's group id, the provider's conversation id, or the session id."""
    trace = get_current_trace()
    group = run.config.group_id if trace is None or trace.group_id is None else trace.group_id
    if group is not None:
        return group
    conversation = run.state.conversation
    if isinstance(conversation, ServerConversation) and conversation.conversation_id is not None:
        return conversation.conversation_id
    if isinstance(conversation, SessionConversation):
        return conversation.session_id
    return find_session_id(run.session)


def _make_trace(run: ActiveRun, saved: Mapping[str, Any]) -> Trace:
    config = run.config
    trace = new_trace(
        config.workflow_name,
        trace_id=config.trace_id,
        group_id=config.group_id,
        metadata=add_harness_id(config.trace_metadata, config.model_provider),
        tracing=config.tracing,
    )
    trace.resume_from(saved)
    return trace


def get_model_tracing(span: ModelSpan) -> ModelTracing:
    """Return how much the model may record inside this span."""
    return ModelTracing.ENABLED if span.include_sensitive_data else ModelTracing.ENABLED_WITHOUT_DATA


def start_model_span(run: ActiveRun, model: Model, request: ModelRequest) -> OptionalSpan[Any]:
    """Return a span for a model call with all its retries: of a response for a model of the Responses API.

    Processors do not get the span of a model of the program, which may make spans of its own. A scripted model
    can opt out, too.
    """
    parent = get_recorded_parent()
    if parent is None:
        return NO_SPAN
    data = GenerationSpanData(
        model=_get_model_name(run, model), model_config=request.model_settings.to_traceable_dict()
    )
    attributes: dict[str, Any] = {
        "gen_ai.provider.name": getattr(model, "provider_name", None),  # models outside standfast need not have it
        "gen_ai.conversation.id": get_conversation_id(run),
        "gen_ai.request.stream": True if run.emit is not None else None,
    }
    if parent.include_sensitive_data:
        data.input = as_items(request.input)
        attributes["gen_ai.system_instructions"] = encode_instructions(request.system_instructions)
    given = {name: value for name, value in attributes.items() if value is not None}
    span: ModelSpan
    if getattr(model, "answers_with_responses", False):
        shown: Any = data.input
        response = ResponseSpanData(input=shown)
        response.request = data
        span = new_span(response, attributes=given)
    else:
        span = new_span(data, attributes=given)
    span.explain_error, span.is_quiet = _explain_model_error, not _is_traced_by_us(model)
    return span


def _is_traced_by_us(model: Model) -> bool:
    own = any(base is not Model and base.__module__.startswith("standfast.") for base in type(model).__mro__)
    return own and getattr(model, "emit_traces", True) is not False


def record_response(span: ModelSpan, response: ModelResponse) -> None:
    """Add the response to the span."""
    data = span.span_data
    if response.response_id is not None:
        span.attributes["gen_ai.response.id"] = response.response_id
    request = data if isinstance(data, GenerationSpanData) else data.request
    assert request is not None  # noqa: S101 - set when the span was made
    request.usage = usage_as_dict(response.usage)
    if span.include_sensitive_data:
        request.output = response.items
    if isinstance(data, ResponseSpanData):
        data.usage = _nest_usage(request.usage)
        if span.include_sensitive_data:
            data.response = AttributeDict({"id": response.response_id, "output": response.items, "usage": data.usage})


def _nest_usage(usage: dict[str, Any]) -> dict[str, Any]:
    cached = {"cached_tokens": usage["cached_tokens"], "cache_write_tokens": usage["cache_write_tokens"]}
    return {
        **{name: usage[name] for name in ("requests", "input_tokens", "output_tokens", "total_tokens")},
        "input_tokens_details": cached,
        "output_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
    }


def _get_model_name(run: ActiveRun, model: Model) -> str:
    """Return the model's name: its own, the configured one, or that of its class."""
    configured: Any = run.config.model if run.config.model is not None else run.current_agent.model
    for name in (getattr(model, "model", None), configured):
        if isinstance(name, str):
            return name
    return type(model).__name__
