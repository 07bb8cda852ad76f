"""The spans that holdfast makes of its own work. Outside of a recorded trace they are nothing and cost nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from holdfast.tracing.providing import new_span
from holdfast.tracing.span_data import FunctionSpanData, GuardrailSpanData, HandoffSpanData, MCPListToolsSpanData
from holdfast.tracing.spans import Span, TSpanData, get_current_span, here

Maybe: TypeAlias = AbstractContextManager[Span[TSpanData] | None]

NOTHING: AbstractContextManager[Any] = nullcontext()


def tool_span(name: str, call_id: str, arguments: str, *, description: str | None = None) -> Maybe[FunctionSpanData]:
    """A call of a tool, with its guardrails and hooks."""
    above = here()
    if above is None:
        return NOTHING
    attributes = {"gen_ai.tool.call.id": call_id}
    if description:
        attributes["gen_ai.tool.description"] = description
    return new_span(FunctionSpanData(name, arguments if above.contents else None, None), attributes=attributes)


def guarding_span(name: str) -> Maybe[GuardrailSpanData]:
    """A guardrail looks at something."""
    return NOTHING if here() is None else new_span(GuardrailSpanData(name))


def handing_span(source: str) -> Maybe[HandoffSpanData]:
    """An agent hands over."""
    return NOTHING if here() is None else new_span(HandoffSpanData(source, None))


def listing_span(server: str) -> Maybe[MCPListToolsSpanData]:
    """An MCP server is asked for its tools."""
    return NOTHING if here() is None else new_span(MCPListToolsSpanData(server))


def note_failure(error: BaseException) -> None:
    """Mark the current span as failed by an error that does not leave it: a model is told of it instead."""
    span = get_current_span()
    if span is not None and span.recorded:
        span.fail(error)
