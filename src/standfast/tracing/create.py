"""Functions that create traces and spans, for programs and for standfast's own work.

Use the result with ``with``, or call ``start()`` and ``finish()``.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias, TypedDict

from standfast.tracing.provider import new_span, new_trace
from standfast.tracing.span_data import (
    AgentSpanData,
    CustomSpanData,
    FunctionSpanData,
    GenerationSpanData,
    GuardrailSpanData,
    HandoffSpanData,
    MCPListToolsSpanData,
    ResponseSpanData,
    SpeechGroupSpanData,
    SpeechSpanData,
    TaskSpanData,
    TranscriptionSpanData,
    TurnSpanData,
)
from standfast.tracing.spans import (
    Span,
    SpanError,
    Trace,
    TSpanData,
    get_current_span,
    get_current_trace,
    get_recorded_parent,
)


class TracingConfig(TypedDict, total=False):
    """Settings of a trace. ``api_key`` is passed to processors; standfast itself does not use it.

    Without ``include_task_and_turn_spans`` a run has no spans of its own and of its turns.
    """

    api_key: str
    include_task_and_turn_spans: bool


def trace(
    workflow_name: str,
    trace_id: str | None = None,
    group_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    tracing: TracingConfig | None = None,
    disabled: bool = False,
) -> Trace:
    """Create a trace. Runs inside of it become part of it. A ``disabled`` trace records nothing."""
    return new_trace(
        workflow_name,
        trace_id=trace_id,
        group_id=group_id,
        metadata=metadata,
        tracing=tracing,
        recorded=not disabled,
        emit_otel_span=True,
    )


SpanParent = Trace | Span[Any] | None
"""The parent of a new span; ``None`` means the current span or trace."""


def agent_span(
    name: str,
    handoffs: list[str] | None = None,
    tools: list[str] | None = None,
    output_type: str | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[AgentSpanData]:
    """Create a span for an agent's part of a run."""
    data = AgentSpanData(name, handoffs, tools, output_type)
    return new_span(data, span_id=span_id, parent=parent, recorded=not disabled)


def task_span(
    name: str, span_id: str | None = None, parent: SpanParent = None, disabled: bool = False
) -> Span[TaskSpanData]:
    """Create a span for a run, from its start or resumption until it ends or waits."""
    return new_span(TaskSpanData(name), span_id=span_id, parent=parent, recorded=not disabled)


def turn_span(
    turn: int, agent_name: str, span_id: str | None = None, parent: SpanParent = None, disabled: bool = False
) -> Span[TurnSpanData]:
    """Create a span for one turn of an agent: a model response and the tool calls it requests."""
    return new_span(TurnSpanData(turn, agent_name), span_id=span_id, parent=parent, recorded=not disabled)


def function_span(
    name: str,
    input: str | None = None,
    output: str | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[FunctionSpanData]:
    """Create a span for a function call.

    ``input`` and ``output`` are always recorded; ``trace_include_sensitive_data`` only affects spans that standfast
    creates itself.
    """
    return new_span(FunctionSpanData(name, input, output), span_id=span_id, parent=parent, recorded=not disabled)


def generation_span(
    input: Sequence[Mapping[str, Any]] | None = None,
    output: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    model_config: Mapping[str, Any] | None = None,
    usage: dict[str, Any] | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[GenerationSpanData]:
    """Create a span for a model call. Its contents are always recorded, as in :func:`function_span`."""
    data = GenerationSpanData(input, output, model, model_config, usage)
    return new_span(data, span_id=span_id, parent=parent, recorded=not disabled)


def response_span(
    response: Any | None = None, span_id: str | None = None, parent: SpanParent = None, disabled: bool = False
) -> Span[ResponseSpanData]:
    """Create a span for a response of the Responses API."""
    return new_span(ResponseSpanData(response), span_id=span_id, parent=parent, recorded=not disabled)


def handoff_span(
    from_agent: str | None = None,
    to_agent: str | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[HandoffSpanData]:
    """Create a span for a handoff between agents."""
    return new_span(HandoffSpanData(from_agent, to_agent), span_id=span_id, parent=parent, recorded=not disabled)


def guardrail_span(
    name: str, triggered: bool = False, span_id: str | None = None, parent: SpanParent = None, disabled: bool = False
) -> Span[GuardrailSpanData]:
    """Create a span for a guardrail check."""
    return new_span(GuardrailSpanData(name, triggered), span_id=span_id, parent=parent, recorded=not disabled)


def mcp_tools_span(
    server: str | None = None,
    result: list[str] | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[MCPListToolsSpanData]:
    """Create a span for listing the tools of an MCP server."""
    return new_span(MCPListToolsSpanData(server, result), span_id=span_id, parent=parent, recorded=not disabled)


def custom_span(
    name: str,
    data: dict[str, Any] | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[CustomSpanData]:
    """Create a span with any data. The data is always recorded, as in :func:`function_span`."""
    return new_span(CustomSpanData(name, data or {}), span_id=span_id, parent=parent, recorded=not disabled)


def transcription_span(
    model: str | None = None,
    input: str | None = None,
    input_format: str | None = "pcm",
    output: str | None = None,
    model_config: Mapping[str, Any] | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[TranscriptionSpanData]:
    """Create a span for speech to text. ``input`` is audio in Base64."""
    data = TranscriptionSpanData(input, input_format, output, model, model_config)
    return new_span(data, span_id=span_id, parent=parent, recorded=not disabled)


def speech_span(
    model: str | None = None,
    input: str | None = None,
    output: str | None = None,
    output_format: str | None = "pcm",
    model_config: Mapping[str, Any] | None = None,
    first_content_at: str | None = None,
    span_id: str | None = None,
    parent: SpanParent = None,
    disabled: bool = False,
) -> Span[SpeechSpanData]:
    """Create a span for text to speech. ``output`` is audio in Base64."""
    data = SpeechSpanData(input, output, output_format, model, model_config, first_content_at)
    return new_span(data, span_id=span_id, parent=parent, recorded=not disabled)


def speech_group_span(
    input: str | None = None, span_id: str | None = None, parent: SpanParent = None, disabled: bool = False
) -> Span[SpeechGroupSpanData]:
    """Create a span for several texts to speech that belong together."""
    return new_span(SpeechGroupSpanData(input), span_id=span_id, parent=parent, recorded=not disabled)


class TraceCtxManager:
    """Starts a trace for the block, unless one is current already."""

    def __init__(
        self,
        workflow_name: str,
        trace_id: str | None = None,
        group_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        tracing: TracingConfig | None = None,
        disabled: bool = False,
    ) -> None:
        self.trace: Trace | None = None
        self._arguments = (workflow_name, trace_id, group_id, metadata, tracing, disabled)

    def __enter__(self) -> "TraceCtxManager":
        if get_current_trace() is None:
            self.trace = trace(*self._arguments)
            self.trace.start(mark_as_current=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self.trace is not None:
            self.trace.finish(reset_current=True)


OptionalSpan: TypeAlias = AbstractContextManager[Span[TSpanData] | None]

NO_SPAN: AbstractContextManager[Any] = nullcontext()
"""What the functions below return without a recorded trace; it costs nothing."""


def maybe_tool_span(
    name: str, call_id: str, arguments: str, *, description: str | None = None
) -> OptionalSpan[FunctionSpanData]:
    """Create a span for a tool call, including its guardrails and hooks."""
    parent = get_recorded_parent()
    if parent is None:
        return NO_SPAN
    attributes = {"gen_ai.tool.call.id": call_id}
    if description:
        attributes["gen_ai.tool.description"] = description
    span = new_span(
        FunctionSpanData(name, arguments if parent.include_sensitive_data else None, None), attributes=attributes
    )
    span.explain_error = partial(_explain_tool_error, name)
    return span


def _explain_tool_error(name: str, error: BaseException, with_text: bool) -> SpanError:
    text = str(error.__cause__ or error) if with_text else "Tool execution failed. Error details are redacted."
    return SpanError(message="Error running tool", data={"tool_name": name, "error": text})


def maybe_guardrail_span(name: str) -> OptionalSpan[GuardrailSpanData]:
    """Create a span for a guardrail check."""
    if get_recorded_parent() is None:
        return NO_SPAN
    span = new_span(GuardrailSpanData(name))
    span.explain_error = _explain_nothing
    return span


def _explain_nothing(error: BaseException, with_text: bool) -> None:
    """Leave the error to the spans around."""


def maybe_handoff_span(source: str) -> OptionalSpan[HandoffSpanData]:
    """Create a span for a handoff; the caller sets its target."""
    return NO_SPAN if get_recorded_parent() is None else new_span(HandoffSpanData(source, None))


def maybe_mcp_tools_span(server: str) -> OptionalSpan[MCPListToolsSpanData]:
    """Create a span for listing the tools of an MCP server."""
    return NO_SPAN if get_recorded_parent() is None else new_span(MCPListToolsSpanData(server))


def record_span_exception(error: BaseException) -> None:
    """Mark the current span as failed by an error that is returned to the model instead of being raised."""
    span = get_current_span()
    if span is not None and span.recorded:
        span.record_exception(error)
        if isinstance(span.span_data, FunctionSpanData):
            text = "Tool execution failed. Error details are redacted."
            data = {"tool_name": span.span_data.name, "error": text}
            span.set_error(SpanError(message="Error running tool (non-fatal)", data=data))
