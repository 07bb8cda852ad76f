"""Export of traces and spans to OpenTelemetry. Imported only if the program itself imports OpenTelemetry.

Span names and attributes follow its semantic conventions for generative AI (1.41, in development).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from typing import Any, TypeAlias

from opentelemetry import context as contexts
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from standfast.tracing.span_data import (
    AgentSpanData,
    CustomSpanData,
    FunctionSpanData,
    GenerationSpanData,
    GuardrailSpanData,
    HandoffSpanData,
    MCPListToolsSpanData,
    ResponseSpanData,
    SpanData,
    TaskSpanData,
    TurnSpanData,
)
from standfast.tracing.spans import Span, Trace

Attributes: TypeAlias = dict[str, Any]
SpanDescription: TypeAlias = tuple[str, Attributes]

_REQUEST_ATTRIBUTES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
_USAGE_ATTRIBUTES = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
PROPAGATOR = TraceContextTextMapPropagator()
PLACEHOLDER_PROVIDERS = (api.ProxyTracerProvider, api.NoOpTracerProvider)


def describe_span_data(data: SpanData) -> SpanDescription:
    """Return the span name and the attributes for ``data``."""
    describe = _DESCRIBERS.get(type(data), _describe_unknown)
    name, attributes = describe(data)
    return name, {key: value for key, value in attributes.items() if value is not None}


def build_trace_attributes(trace: Trace) -> Attributes:
    """Return the attributes of a trace, which its outermost span carries."""
    attributes: Attributes = {"standfast.trace.id": trace.trace_id, "gen_ai.workflow.name": trace.name}
    if trace.group_id is not None:
        attributes["gen_ai.conversation.id"] = trace.group_id
    for name, value in (trace.metadata or {}).items():
        attributes[f"standfast.trace.metadata.{name}"] = to_attribute_value(value)
    return attributes


def encode_messages(items: str | Sequence[Mapping[str, Any]]) -> str:
    """Encode items as JSON in the message format of the conventions."""
    sequence: Sequence[Mapping[str, Any]] = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return json.dumps([_to_message(item) for item in sequence], ensure_ascii=False, default=str)


def encode_instructions(text: str | None) -> str | None:
    """Encode the system instructions as JSON in the format of the conventions."""
    return json.dumps([{"type": "text", "content": text}], ensure_ascii=False) if text else None


def to_attribute_value(value: Any) -> Any:
    """Return a valid attribute value: scalars as they are, other values as JSON text."""
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(value)


def _to_message(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        return {"role": "user", "parts": [item]}
    kind = item.get("type")
    if kind == "function_call":
        call = {"type": "tool_call", "id": item.get("call_id"), "name": item.get("name")}
        return {"role": "assistant", "parts": [{**call, "arguments": item.get("arguments")}]}
    if kind == "function_call_output":
        part = {"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}
        return {"role": "tool", "parts": [part]}
    if "content" not in item or "role" not in item:
        return {"role": "assistant", "parts": [dict(item)]}
    content = item["content"]
    parts = content if isinstance(content, list | tuple) else [{"text": content}]
    return {"role": item["role"], "parts": [_to_part(part) for part in parts]}


def _to_part(part: Any) -> Any:
    return {"type": "text", "content": part["text"]} if isinstance(part, Mapping) and "text" in part else part


def _describe_task(data: TaskSpanData) -> SpanDescription:
    attributes = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": data.name}
    return f"invoke_workflow {data.name}", {**attributes, **_build_metadata_attributes(data.metadata)}


def _describe_agent(data: AgentSpanData) -> SpanDescription:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": data.name}
    return f"invoke_agent {data.name}", {**attributes, **_build_metadata_attributes(data.metadata)}


def _describe_turn(data: TurnSpanData) -> SpanDescription:
    attributes = {"standfast.turn": data.turn, "gen_ai.agent.name": data.agent_name}
    return f"turn {data.turn}", {**attributes, **_build_metadata_attributes(data.metadata)}


def _describe_generation(data: GenerationSpanData) -> SpanDescription:
    config = data.model_config or {}
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": data.model,
        **{key: config.get(name) for name, key in _REQUEST_ATTRIBUTES.items()},
        **_build_usage_attributes(data.usage),
        "gen_ai.input.messages": None if data.input is None else encode_messages(data.input),
        "gen_ai.output.messages": None if data.output is None else encode_messages(data.output),
    }
    return f"chat {data.model}" if data.model else "chat", attributes


def _describe_response(data: ResponseSpanData) -> SpanDescription:
    if data.request is not None:
        return _describe_generation(data.request)
    model = getattr(data.response, "model", None)
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": getattr(data.response, "id", None),
        "gen_ai.response.model": model,
        **_build_usage_attributes(data.usage),
    }
    return f"chat {model}" if model else "chat", attributes


def _describe_function(data: FunctionSpanData) -> SpanDescription:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": data.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": data.input,
        "gen_ai.tool.call.result": None if data.output is None else to_attribute_value(data.output),
    }
    return f"execute_tool {data.name}", attributes


def _describe_handoff(data: HandoffSpanData) -> SpanDescription:
    attributes = {"standfast.handoff.from_agent": data.from_agent, "standfast.handoff.to_agent": data.to_agent}
    return f"handoff {data.to_agent}" if data.to_agent else "handoff", attributes


def _describe_guardrail(data: GuardrailSpanData) -> SpanDescription:
    attributes = {"standfast.guardrail.name": data.name, "standfast.guardrail.triggered": data.triggered}
    return f"guardrail {data.name}", attributes


def _describe_mcp_list_tools(data: MCPListToolsSpanData) -> SpanDescription:
    attributes = {
        "mcp.method.name": "tools/list",
        "standfast.mcp.server": data.server,
        "standfast.mcp.tools": data.result,
    }
    return "tools/list", attributes


def _describe_custom(data: CustomSpanData) -> SpanDescription:
    return data.name, {f"standfast.data.{name}": to_attribute_value(value) for name, value in data.data.items()}


def _describe_unknown(data: SpanData) -> SpanDescription:
    return data.type, {}


def _build_metadata_attributes(metadata: Mapping[str, Any] | None) -> Attributes:
    return {f"standfast.metadata.{name}": to_attribute_value(value) for name, value in (metadata or {}).items()}


def _build_usage_attributes(usage: Mapping[str, Any] | None) -> Attributes:
    return {key: (usage or {}).get(name) for name, key in _USAGE_ATTRIBUTES.items()}


_DESCRIBERS: dict[type[SpanData], Callable[[Any], SpanDescription]] = {
    TaskSpanData: _describe_task,
    AgentSpanData: _describe_agent,
    TurnSpanData: _describe_turn,
    GenerationSpanData: _describe_generation,
    ResponseSpanData: _describe_response,
    FunctionSpanData: _describe_function,
    HandoffSpanData: _describe_handoff,
    GuardrailSpanData: _describe_guardrail,
    MCPListToolsSpanData: _describe_mcp_list_tools,
    CustomSpanData: _describe_custom,
}


class OtelBridge:
    """Creates OpenTelemetry spans with the program's tracer provider."""

    def __init__(self, provider: api.TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("standfast")

    def flush(self) -> None:
        flush = getattr(self.provider, "force_flush", None)  # part of the SDK, not of the API
        if flush is not None:
            flush()

    def start_trace_span(self, trace: Trace) -> "OtelSpan":
        return OtelSpan(self.tracer.start_span(trace.name, attributes=build_trace_attributes(trace)))

    def start_request_span(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> "OtelSpan":
        """Start the span of a request that a server received. Its parent is the span that the headers name."""
        context = PROPAGATOR.extract(headers)
        return OtelSpan(self.tracer.start_span(name, context=context, kind=SpanKind.SERVER, attributes=attributes))

    def start_span(self, span: Span[Any]) -> "OtelSpan":
        """Start an OpenTelemetry span for ``span``.

        Its parent is the current OpenTelemetry span, unless ``span`` has an explicit or a remote parent.
        """
        parent, remote_parent, remote_link = span.otel_parents
        name, attributes = describe_span_data(span.span_data)
        context, linked = None, [] if remote_link is None else [_extract_span_context(remote_link)]
        if remote_parent is not None:
            context, linked = PROPAGATOR.extract(remote_parent, Context()), [api.get_current_span().get_span_context()]
        elif parent is not None and parent.otel_span is not None:
            context = api.set_span_in_context(parent.otel_span.span)
        calls_model = isinstance(span.span_data, GenerationSpanData | ResponseSpanData)
        return OtelSpan(
            self.tracer.start_span(
                name,
                context=context,
                kind=SpanKind.CLIENT if calls_model else SpanKind.INTERNAL,
                attributes={**attributes, **span.attributes},
                links=[Link(other) for other in linked if other.is_valid],
            )
        )


class OtelSpan:
    """The OpenTelemetry span of a :class:`Span` or :class:`Trace`."""

    def __init__(self, span: api.Span) -> None:
        self.span = span
        self._token: Token[Context] | None = None

    def attach(self) -> None:
        """Make it the current OpenTelemetry span, so that spans of other libraries become its children."""
        self._token = contexts.attach(api.set_span_in_context(self.span))

    def detach(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def to_carrier(self) -> dict[str, str]:
        """Return the W3C ``traceparent`` header with which another process can refer to this span."""
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, api.set_span_in_context(self.span, Context()))
        return carrier

    def end_request(self, status: int, attributes: Mapping[str, str]) -> None:
        self.span.set_attributes({"http.response.status_code": status, **attributes})
        if status >= 500:
            self._set_error(str(status), None)
        self.span.end()

    def end_trace(self, trace: Trace) -> None:
        if trace.error_type is not None:
            self._set_error(trace.error_type, None)
        self.span.end()

    def end_span(self, span: Span[Any]) -> None:
        try:
            name, attributes = describe_span_data(span.span_data)
            self.span.update_name(name)
            self.span.set_attributes({**attributes, **span.attributes})
            if span.exception is not None:
                self.span.record_exception(span.exception)
            if span.failure is not None or span.error is not None:
                message = span.failure or (span.error["message"] if span.error is not None else None)
                self._set_error(span.error_type or "_OTHER", message)
        finally:
            self.span.end()

    def _set_error(self, error_type: str, message: str | None) -> None:
        self.span.set_attribute("error.type", error_type)
        self.span.set_status(Status(StatusCode.ERROR, message))


class _BridgeCache:
    bridge: OtelBridge | None = None


def get_otel_bridge() -> OtelBridge | None:
    """Return a bridge to the program's tracer provider, or None if the program has set none."""
    provider = api.get_tracer_provider()
    if type(provider) in PLACEHOLDER_PROVIDERS:
        return None
    if _BridgeCache.bridge is None or _BridgeCache.bridge.provider is not provider:
        _BridgeCache.bridge = OtelBridge(provider)
    return _BridgeCache.bridge


def _extract_span_context(carrier: Mapping[str, str]) -> api.SpanContext:
    return api.get_current_span(PROPAGATOR.extract(carrier, Context())).get_span_context()
