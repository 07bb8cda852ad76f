"""Spans in the words of OpenTelemetry's semantic conventions for generative AI (as of 1.41, still in development)."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.tracing.span_data import (
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
from holdfast.tracing.spans import Trace

Attributes: TypeAlias = dict[str, Any]
Described: TypeAlias = tuple[str, Attributes]

_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}


def described(data: SpanData) -> Described:
    """The name and the attributes of a span about this."""
    describe = _KINDS.get(type(data), _unknown)
    name, attributes = describe(data)
    return name, {key: value for key, value in attributes.items() if value is not None}


def trace_attributes(trace: Trace) -> Attributes:
    """What is known about a trace as a whole, for its outermost span."""
    found: Attributes = {"holdfast.trace.id": trace.trace_id, "gen_ai.workflow.name": trace.name}
    if trace.group_id is not None:
        found["gen_ai.conversation.id"] = trace.group_id
    for name, value in (trace.metadata or {}).items():
        found[f"holdfast.trace.metadata.{name}"] = simple(value)
    return found


def messages(items: str | Sequence[Mapping[str, Any]]) -> str:
    """Items as the conventions' messages, in JSON."""
    given: Sequence[Mapping[str, Any]] = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return json.dumps([_message(item) for item in given], ensure_ascii=False, default=str)


def instructions(text: str | None) -> str | None:
    """What a model was told to be like, in JSON."""
    return json.dumps([{"type": "text", "content": text}], ensure_ascii=False) if text else None


def simple(value: Any) -> Any:
    """A value that an attribute can have: a scalar as it is, everything else as text."""
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(value)


def _message(item: Any) -> dict[str, Any]:
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
    return {"role": item["role"], "parts": [_part(part) for part in parts]}


def _part(part: Any) -> Any:
    return {"type": "text", "content": part["text"]} if isinstance(part, Mapping) and "text" in part else part


def _task(data: TaskSpanData) -> Described:
    words = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": data.name}
    return f"invoke_workflow {data.name}", {**words, **_metadata(data.metadata)}


def _agent(data: AgentSpanData) -> Described:
    words = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": data.name}
    return f"invoke_agent {data.name}", {**words, **_metadata(data.metadata)}


def _turn(data: TurnSpanData) -> Described:
    words = {"holdfast.turn": data.turn, "gen_ai.agent.name": data.agent_name}
    return f"turn {data.turn}", {**words, **_metadata(data.metadata)}


def _generation(data: GenerationSpanData) -> Described:
    config = data.model_config or {}
    words = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": data.model,
        **{key: config.get(name) for name, key in _SETTINGS.items()},
        **_usage(data.usage),
        "gen_ai.input.messages": None if data.input is None else messages(data.input),
        "gen_ai.output.messages": None if data.output is None else messages(data.output),
    }
    return f"chat {data.model}" if data.model else "chat", words


def _response(data: ResponseSpanData) -> Described:
    model = getattr(data.response, "model", None)
    words = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": getattr(data.response, "id", None),
        "gen_ai.response.model": model,
        **_usage(data.usage),
    }
    return f"chat {model}" if model else "chat", words


def _function(data: FunctionSpanData) -> Described:
    words = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": data.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": data.input,
        "gen_ai.tool.call.result": None if data.output is None else simple(data.output),
    }
    return f"execute_tool {data.name}", words


def _handoff(data: HandoffSpanData) -> Described:
    words = {"holdfast.handoff.from_agent": data.from_agent, "holdfast.handoff.to_agent": data.to_agent}
    return f"handoff {data.to_agent}" if data.to_agent else "handoff", words


def _guardrail(data: GuardrailSpanData) -> Described:
    words = {"holdfast.guardrail.name": data.name, "holdfast.guardrail.triggered": data.triggered}
    return f"guardrail {data.name}", words


def _mcp(data: MCPListToolsSpanData) -> Described:
    words = {"mcp.method.name": "tools/list", "holdfast.mcp.server": data.server, "holdfast.mcp.tools": data.result}
    return "tools/list", words


def _custom(data: CustomSpanData) -> Described:
    return data.name, {f"holdfast.data.{name}": simple(value) for name, value in data.data.items()}


def _unknown(data: SpanData) -> Described:
    return data.type, {}


def _metadata(metadata: Mapping[str, Any] | None) -> Attributes:
    return {f"holdfast.metadata.{name}": simple(value) for name, value in (metadata or {}).items()}


def _usage(usage: Mapping[str, Any] | None) -> Attributes:
    return {key: (usage or {}).get(name) for name, key in _USAGE.items()}


_KINDS: dict[type[SpanData], Callable[[Any], Described]] = {
    TaskSpanData: _task,
    AgentSpanData: _agent,
    TurnSpanData: _turn,
    GenerationSpanData: _generation,
    ResponseSpanData: _response,
    FunctionSpanData: _function,
    HandoffSpanData: _handoff,
    GuardrailSpanData: _guardrail,
    MCPListToolsSpanData: _mcp,
    CustomSpanData: _custom,
}
