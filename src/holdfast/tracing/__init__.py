"""Tracing: what a run did, as a tree of spans. Names are resolved on first use.

Nothing leaves the process by itself: spans go to the processors that the program adds and to OpenTelemetry when the
program has configured it. When neither is there, no span is made.
"""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "processors": [
        "TracingProcessor",
        "add_trace_processor",
        "flush_traces",
        "set_trace_processors",
        "set_tracing_disabled",
    ],
    "providing": ["TraceProvider", "set_trace_provider"],
    "span_data": [
        "AgentSpanData",
        "CustomSpanData",
        "FunctionSpanData",
        "GenerationSpanData",
        "GuardrailSpanData",
        "HandoffSpanData",
        "MCPListToolsSpanData",
        "ResponseSpanData",
        "SpanData",
        "TaskSpanData",
        "TurnSpanData",
    ],
    "spans": [
        "Span",
        "SpanError",
        "Trace",
        "gen_span_id",
        "gen_trace_id",
        "get_current_span",
        "get_current_trace",
    ],
    "starting": [
        "TracingConfig",
        "agent_span",
        "custom_span",
        "function_span",
        "generation_span",
        "guardrail_span",
        "handoff_span",
        "mcp_tools_span",
        "response_span",
        "task_span",
        "trace",
        "turn_span",
    ],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
