"""The trace of a session: one span per response, next to the spans of tools, guardrails and handoffs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings
from standfast.tracing.provider import new_span, new_trace
from standfast.tracing.span_data import AgentSpanData
from standfast.tracing.spans import Span, Trace, get_current_trace

DEFAULT_WORKFLOW_NAME = "Realtime session"


def open_session_trace(
    run_config: RealtimeRunConfig, base: RealtimeSessionModelSettings
) -> AbstractContextManager[Trace | None]:
    """Open the trace of a session: the current trace if there is one, else a new one as set by ``tracing``."""
    if run_config.get("tracing_disabled"):
        return Trace(recorded=False)
    if get_current_trace() is not None:
        return nullcontext()
    setting: Any = base.get("tracing")
    options: dict[str, Any] = setting if isinstance(setting, dict) else {}
    return new_trace(
        options.get("workflow_name") or DEFAULT_WORKFLOW_NAME,
        group_id=options.get("group_id"),
        metadata=options.get("metadata"),
        emit_otel_span=True,
    )


def start_response_span(parent: Trace | Span[Any] | None, resolved_agent: ResolvedAgent) -> Span[AgentSpanData] | None:
    """Start the span of a response. It is never the current span: events meanwhile may belong to another response."""
    if parent is None:
        return None
    data = AgentSpanData(
        resolved_agent.agent.name, handoffs=list(resolved_agent.handoffs), tools=list(resolved_agent.tools)
    )
    span = new_span(data, parent=parent)
    span.start()
    return span
