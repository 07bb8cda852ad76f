"""Span names and attributes by OpenTelemetry's semantic conventions for generative AI (1.41, in development)."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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
from standfast.tracing.spans import Trace

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
