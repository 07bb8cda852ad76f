"""The trace spans of a run, of its agents and turns, and of its model calls."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.history.session import find_session_id
from standfast.models.interface import Model, ModelResponse, ModelTracing
from standfast.models.request import ModelRequest
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.conversion import usage_as_dict
from standfast.runs.core.state import ServerConversation, SessionConversation
from standfast.runs.core.steps import AskModel, Step
from standfast.runs.session_io import as_items
from standfast.tool_calls.output import to_plain_value
from standfast.tracing.create import NO_SPAN, OptionalSpan
from standfast.tracing.otel_attributes import build_trace_attributes, encode_instructions
from standfast.tracing.provider import new_span, new_trace
from standfast.tracing.registry import is_tracing_active
from standfast.tracing.span_data import AgentSpanData, GenerationSpanData, TaskSpanData, TurnSpanData
from standfast.tracing.spans import Span, Trace, get_current_trace, get_recorded_parent

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

    A nested run has only the spans of its agents; they are children of the span of its tool call.
    """

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._outer_stack, self._agent_stack, self._turn_stack = ExitStack(), ExitStack(), ExitStack()
        self._position: tuple[str | None, int] = (None, 0)
        self._task_span: Span[TaskSpanData] | None = None
        self._turn_data: TurnSpanData | None = None

    def __enter__(self) -> Self:
        try:
            if not self._run.route:
                self._start_task()
        except BaseException:
            self._outer_stack.close()
            raise
        return self

    def enter_step(self, step: Step) -> None:
        state = self._run.state
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
            self._turn_stack.enter_context(new_span(self._turn_data))

    def __exit__(self, *error: Any) -> None:
        if self._task_span is not None:
            self._task_span.span_data.usage = usage_as_dict(self._run.context.usage)
        self._end_turn(*error)
        self._agent_stack.__exit__(*error)
        self._outer_stack.__exit__(*error)

    def _end_turn(self, *error: Any) -> None:
        state, data = self._run.state, self._turn_data
        if data is not None and data.turn == state.turn:
            usage = state.responses[-1].usage
            data.usage = {"input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.total}
        self._turn_stack.__exit__(*(error or (None, None, None)))

    def _start_task(self) -> None:
        run, config = self._run, self._run.config
        saved = run.state.trace or {}
        carrier = {name: saved[name] for name in CARRIER_FIELDS if isinstance(saved.get(name), str)} or None
        trace, own = get_current_trace(), False
        if trace is None:
            trace, own = self._outer_stack.enter_context(_make_trace(run, saved)), True
        self._task_span = self._outer_stack.enter_context(
            new_span(
                TaskSpanData(config.workflow_name),
                include_sensitive_data=config.trace_include_sensitive_data,
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
            output_type="str" if agent.output_type is None else getattr(agent.output_type, "__name__", "object"),
        )
        return new_span(
            data,
            include_sensitive_data=self._run.config.trace_include_sensitive_data,
            attributes=self._build_attributes(None),
        )

    def _build_attributes(self, trace: Trace | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        if trace is not None:
            attributes.update(build_trace_attributes(trace))
        attributes["standfast.run.id"] = self._run.state.run_id
        conversation = get_conversation_id(self._run)
        if conversation is not None:
            attributes["gen_ai.conversation.id"] = conversation
        return attributes


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
        metadata=config.trace_metadata,
        tracing=config.tracing,
    )
    trace.resume_from(saved)
    return trace


def get_model_tracing(span: Span[GenerationSpanData]) -> ModelTracing:
    """Return how much the model may record inside this span."""
    return ModelTracing.ENABLED if span.include_sensitive_data else ModelTracing.ENABLED_WITHOUT_DATA


def start_generation_span(run: ActiveRun, model: Model, request: ModelRequest) -> OptionalSpan[GenerationSpanData]:
    """Return a span for a model call with all its retries."""
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
    return new_span(data, attributes={name: value for name, value in attributes.items() if value is not None})


def record_response(span: Span[GenerationSpanData], response: ModelResponse) -> None:
    """Add the response to the span."""
    span.span_data.usage = usage_as_dict(response.usage)
    if response.response_id is not None:
        span.attributes["gen_ai.response.id"] = response.response_id
    if span.include_sensitive_data:
        span.span_data.output = response.items


def _get_model_name(run: ActiveRun, model: Model) -> str:
    """Return the model's name: its own, the configured one, or that of its class."""
    configured: Any = run.config.model if run.config.model is not None else run.current_agent.model
    for name in (getattr(model, "model", None), configured):
        if isinstance(name, str):
            return name
    return type(model).__name__
