"""Conversion of what a model answers in the Chat Completions API to items."""

import json
from collections.abc import Iterable
from typing import Any

from standfast.agents.errors import AgentsException, ModelBehaviorError
from standfast.agents.tool_identity import get_field
from standfast.agents.tools import FunctionTool, Tool
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.models.interface import to_plain
from standfast.models.openai.chat_conversion import flatten_tool_name
from standfast.models.openai.client import LOCAL_ID_PREFIX
from standfast.models.stream_events import make_text_part

WITHHELD_TEXT = "Response withheld by the provider's content filter."


class ToolNameResolver:
    """Maps the flattened names in a model's calls to the names and namespaces of the tools."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._namespaces = {
            flatten_tool_name(tool.name, tool.namespace): (tool.name, tool.namespace)
            for tool in tools
            if isinstance(tool, FunctionTool) and tool.namespace is not None
        }

    def make_call_item(
        self,
        *,
        item_id: str,
        call_id: str,
        name: str,
        arguments: str,
        provider_data: Item | None = None,
    ) -> Item:
        """Return a call of the model as an item."""
        name, namespace = self._namespaces.get(name, (name, None))
        item: Item = {
            "id": item_id,
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
        }
        if provider_data:
            item["provider_data"] = provider_data
        return item if namespace is None else {**item, "namespace": namespace}


def items_from_choice(choice: Any, resolver: ToolNameResolver) -> list[Item]:
    """Return the reasoning, text and calls in a choice of the model as items."""
    message, finish_reason = get_field(choice, "message"), get_field(choice, "finish_reason")
    logprobs = get_field(get_field(choice, "logprobs"), "content")
    items: list[Item] = []
    reasoning, raw = get_reasoning_text(message)
    thinking = to_plain(get_field(message, "thinking_blocks"))
    if reasoning or thinking:
        items.append(make_reasoning_item(make_local_id("rs"), reasoning, thinking, raw=raw))
    if get_field(message, "audio"):
        raise AgentsException("the model answered with audio, which is not supported: ask for text")
    parts = _make_parts(message, logprobs)
    if parts:
        items.append(make_message_item(make_local_id("msg"), parts))
    for call in get_field(message, "tool_calls") or []:
        function = get_field(call, "function")
        if function is None:
            raise AgentsException(f"the model made a call of unsupported type {get_field(call, 'type')!r}")
        items.append(
            resolver.make_call_item(
                item_id=make_local_id("fc"),
                call_id=get_field(call, "id") or make_local_id("call"),
                name=get_field(function, "name"),
                arguments=arguments_to_json(get_field(function, "arguments")) or "{}",
                provider_data=get_call_data(call),
            )
        )
    if not items:
        items += make_withheld_items(finish_reason)
    return items


def make_withheld_items(finish_reason: str | None) -> list[Item]:
    """Return the items of a response without any: a refusal if its provider filtered it, an error if it was cut off."""
    if finish_reason == "content_filter":
        return [make_message_item(make_local_id("msg"), [{"type": "refusal", "refusal": WITHHELD_TEXT}])]
    if finish_reason == "length":
        raise ModelBehaviorError("the model reached its limit of tokens before it answered")
    return []


def _make_parts(message: Any, logprobs: Any) -> list[Item]:
    parts: list[Item] = []
    if get_field(message, "content"):
        text = make_text_part(message.content)
        text["annotations"] = [convert_annotation(each) for each in get_field(message, "annotations") or []]
        text["logprobs"] = to_plain(logprobs or [])
        parts.append(text)
    if get_field(message, "refusal"):
        parts.append({"type": "refusal", "refusal": message.refusal})
    return parts


def convert_annotation(annotation: Any) -> Item:
    """Return an annotation of a text in the form of the Responses API."""
    kind = get_field(annotation, "type")
    return {"type": kind, **to_plain(get_field(annotation, kind) or {})}


def get_reasoning_text(message: Any) -> tuple[str, bool]:
    """Return the reasoning in a message, and whether it is the model's own text and not a summary.

    Servers use different fields for the two.
    """
    for name in ("reasoning_content", "reasoning"):
        text = get_field(message, name)
        if isinstance(text, str) and text:
            return text, name == "reasoning"
    return "", False


def arguments_to_json(arguments: Any) -> str:
    """Return the arguments as JSON text. Some servers send an object instead."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def make_message_item(item_id: str, parts: list[Item], *, status: str = "completed") -> Item:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": parts}


def make_reasoning_item(item_id: str, text: str, thinking: list[Item] | None = None, *, raw: bool = False) -> Item:
    """Return reasoning as an item. ``thinking`` are signed blocks, which some providers want back."""
    item: Item = {"id": item_id, "summary": [], "type": "reasoning"}
    if raw:
        item["content"] = [{"text": text, "type": "reasoning_text"}]
    else:
        item["summary"] = [{"text": text, "type": "summary_text"}]
    return {**item, "provider_data": {"thinking_blocks": thinking}} if thinking else item


def get_call_data(call: Any) -> Item | None:
    """Return the fields of a call that its provider wants back, such as the signatures of Gemini."""
    names = ("provider_specific_fields", "extra_content")
    found = {name: to_plain(value) for name in names if (value := get_field(call, name))}
    return found or None


def make_local_id(kind: str) -> str:
    """Return an id for an item to which the server gave none. It is never sent to a server."""
    return new_id(f"{LOCAL_ID_PREFIX}{kind}")


def usage_from_chat(usage: Any) -> Item | None:
    """Return the usage in the format of the Responses API."""
    if usage is None:
        return None
    prompt_details = get_field(usage, "prompt_tokens_details")
    completion_details = get_field(usage, "completion_tokens_details")
    input_tokens = get_field(usage, "prompt_tokens") or 0
    output_tokens = get_field(usage, "completion_tokens") or 0
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": _get_count(prompt_details, "cached_tokens"),
            "cache_write_tokens": _get_count(prompt_details, "cache_write_tokens"),
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": _get_count(completion_details, "reasoning_tokens")},
        "total_tokens": get_field(usage, "total_tokens") or input_tokens + output_tokens,
    }


def _get_count(details: Any, name: str) -> int:
    return 0 if details is None else get_field(details, name) or 0
