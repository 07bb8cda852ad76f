"""Spans of standfast's own work. Without a recorded trace the functions return :data:`NO_SPAN`, which costs nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from standfast.tracing.provider import new_span
from standfast.tracing.span_data import FunctionSpanData, GuardrailSpanData, HandoffSpanData, MCPListToolsSpanData
from standfast.tracing.spans import Span, TSpanData, get_current_span, get_recorded_parent

OptionalSpan: TypeAlias = AbstractContextManager[Span[TSpanData] | None]

NO_SPAN: AbstractContextManager[Any] = nullcontext()


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
    return new_span(
        FunctionSpanData(name, arguments if parent.include_sensitive_data else None, None), attributes=attributes
    )


def maybe_guardrail_span(name: str) -> OptionalSpan[GuardrailSpanData]:
    """Create a span for a guardrail check."""
    return NO_SPAN if get_recorded_parent() is None else new_span(GuardrailSpanData(name))


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
