"""A call as a trace: a span for each response, and beside them those of its tools, guardrails and handoffs."""

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
    """The trace of a session: the program's if there is one around it, else one by the words of ``tracing``."""
    if run_config.get("tracing_disabled"):
        return Trace(recorded=False)
    if get_current_trace() is not None:
        return nullcontext()
    wanted: Any = base.get("tracing")
    named: dict[str, Any] = wanted if isinstance(wanted, dict) else {}
    return new_trace(
        named.get("workflow_name") or DEFAULT_WORKFLOW_NAME,
        group_id=named.get("group_id"),
        metadata=named.get("metadata"),
        emit_otel_span=True,
    )


def start_response_span(parent: Trace | Span[Any] | None, resolved_agent: ResolvedAgent) -> Span[AgentSpanData] | None:
    """A response that begins. It is nobody's current span: what happens meanwhile may belong to another one."""
    if parent is None:
        return None
    data = AgentSpanData(
        resolved_agent.agent.name, handoffs=list(resolved_agent.handoffs), tools=list(resolved_agent.tools)
    )
    span = new_span(data, parent=parent)
    span.start()
    return span
