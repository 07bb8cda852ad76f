"""Conversion between items and the messages of the Chat Completions API."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import MCPToolChoice
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tool_identity import get_field
from standfast.agents.tools import FunctionTool, Tool
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.models.interface import to_plain
from standfast.models.openai.client import LOCAL_ID_PREFIX
from standfast.models.stream_events import make_text_part

ChatMessage: TypeAlias = dict[str, Any]

_ROLES = frozenset(["user", "system", "developer", "assistant"])
# Items of hosted tools of the Responses API, which are dropped: this API has no hosted tools.
_HOSTED_TOOL_ITEMS = frozenset(
    [
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
    ]
)
_NAMESPACE_SEPARATOR = "__"


@dataclass(frozen=True)
class ReasoningContentReplayContext:
    """The argument of ``should_replay_reasoning_content``: reasoning of an earlier response."""

    model: str
    base_url: str | None
    reasoning: Item


ShouldReplayReasoningContent: TypeAlias = Callable[[ReasoningContentReplayContext], bool]


def default_should_replay_reasoning_content(context: ReasoningContentReplayContext) -> bool:
    """Return True for DeepSeek, which requires the reasoning with the calls; other models reject it."""
    return "deepseek" in context.model.lower()


class ChatMessageBuilder:
    """Builds messages from items. Text, reasoning and calls of the assistant are combined in one message."""

    def __init__(
        self, *, model: str = "", base_url: str | None = None, strict: bool = False,
        should_replay: ShouldReplayReasoningContent | None = None, replay_provider_data: bool = False,
    ) -> None:  # fmt: skip
        self.messages: list[ChatMessage] = []
        self._model, self._base_url, self._strict = model, base_url, strict
        self._should_replay = should_replay or default_should_replay_reasoning_content
        self._replay_provider_data = replay_provider_data
        self._assistant_message: ChatMessage | None = None
        self._pending_reasoning: str | None = None
        self._pending_thinking: list[Item] | None = None
        # Images that tools returned. Tool messages hold only text and must be contiguous, so images follow later.
        self._pending_images: list[Item] = []

    def add(self, item: Item, where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._add_message(item, where)
            case "function_call":
                call = {
                    "name": flatten_tool_name(item["name"], item.get("namespace")),
                    "arguments": item["arguments"] or "{}",
                }
                calls = self._open_assistant_message().setdefault("tool_calls", [])
                calls.append({"id": item["call_id"], "type": "function", "function": call, **self._get_extra(item)})
            case "function_call_output":
                self._close_assistant_message()
                content = self._convert_tool_output(item["output"], where)
                self.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case "reasoning":
                self._add_reasoning(item)
            case kind if kind in _HOSTED_TOOL_ITEMS and not self._strict:
                return
            case kind:
                raise UserError(f"{where}: the Chat Completions API does not support items of type {kind!r}")

    def finish(self) -> list[ChatMessage]:
        self._close_assistant_message()
        self._flush_images()
        return self.messages

    def _add_message(self, item: Item, where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES:
            raise UserError(f"{where}: the role must be one of {', '.join(sorted(_ROLES))}, got {role!r}")
        if role != "assistant":
            self._close_assistant_message()
            self._flush_images()
            self.messages.append({"role": role, "content": _convert_content(content, where)})
            return
        # Text after text or calls starts a new message; text before calls goes into the same message.
        if self._assistant_message is not None and (
            "content" in self._assistant_message or "tool_calls" in self._assistant_message
        ):
            self._close_assistant_message()
        message = self._open_assistant_message()
        if isinstance(content, str):
            message["content"] = content
            return
        texts = [
            part.get("text", "") for part in content or [] if part.get("type") in ("output_text", "input_text", "text")
        ]
        refusals = [part["refusal"] for part in content or [] if part.get("type") == "refusal"]
        if texts:
            message["content"] = "".join(texts)
        if refusals:
            message["refusal"] = "".join(refusals)

    def _add_reasoning(self, item: Item) -> None:
        text = "\n".join(part["text"] for part in item.get("content") or item.get("summary") or [])
        if text and self._should_replay(ReasoningContentReplayContext(self._model, self._base_url, item)):
            self._close_assistant_message()
            self._pending_reasoning = text
        thinking = self._get_extra(item).get("thinking_blocks")
        if thinking:
            self._close_assistant_message()
            self._pending_thinking = thinking

    def _get_extra(self, item: Item) -> Item:
        """Return the fields that the provider wants back with this item."""
        return (item.get("provider_data") or {}) if self._replay_provider_data else {}

    def _convert_tool_output(self, output: Any, where: str) -> str:
        if isinstance(output, str):
            return output
        texts = []
        for number, part in enumerate(output):
            if part.get("type") in ("input_text", "text", "output_text"):
                texts.append(part["text"])
            elif self._strict:
                raise UserError(
                    f"{where}: the Chat Completions API supports only text in tool outputs, got {part.get('type')!r}"
                )
            else:
                self._pending_images.append(_convert_part(part, f"{where}.output[{number}]"))
                texts.append(f"[see {part.get('type', '').removeprefix('input_')} below]")
        return "\n".join(texts)

    def _open_assistant_message(self) -> ChatMessage:
        if self._assistant_message is None:
            self._flush_images()
            self._assistant_message = {"role": "assistant"}
            if self._pending_reasoning is not None:
                self._assistant_message["reasoning_content"] = self._pending_reasoning
                self._pending_reasoning = None
            if self._pending_thinking is not None:
                self._assistant_message["thinking_blocks"] = self._pending_thinking
                self._pending_thinking = None
            self.messages.append(self._assistant_message)
        return self._assistant_message

    def _close_assistant_message(self) -> None:
        if self._assistant_message is not None and "content" not in self._assistant_message:
            self._assistant_message["content"] = None
        self._assistant_message = None

    def _flush_images(self) -> None:
        if self._pending_images:
            self.messages.append({"role": "user", "content": self._pending_images})
            self._pending_images = []


def to_chat_messages(system_instructions: str | None, items: str | Iterable[Item], **options: Any) -> list[ChatMessage]:
    """Return the conversation as messages of the API. ``options`` are those of :class:`ChatMessageBuilder`."""
    builder = ChatMessageBuilder(**options)
    if system_instructions:
        builder.messages.append({"role": "system", "content": system_instructions})
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for number, item in enumerate(items):
        builder.add(item, f"input[{number}]")
    return builder.finish()


def _convert_content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where}: content must be a string or a list of parts, got {type(content).__name__}")
    return [_convert_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]


def _convert_part(part: Mapping[str, Any], where: str) -> Item:
    match part.get("type"):
        case "input_text" | "text" | "output_text":
            return {"type": "text", "text": part["text"]}
        case "input_image" | "image" if part.get("image_url"):
            return {
                "type": "image_url",
                "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"},
            }
        case "input_audio" if part.get("input_audio"):
            return {"type": "input_audio", "input_audio": dict(part["input_audio"])}
        case "input_file" | "file" if part.get("file_data") or part.get("file_id"):
            names = ("file_data", "file_id", "filename")
            return {"type": "file", "file": {name: part[name] for name in names if part.get(name)}}
    raise UserError(f"{where}: the Chat Completions API does not support this part of type {part.get('type')!r}")


def flatten_tool_name(name: str, namespace: str | None) -> str:
    """Return the name of a tool for an API without namespaces. A deferred tool has its own name as namespace."""
    return name if not namespace or namespace == name else f"{namespace}{_NAMESPACE_SEPARATOR}{name}"


def to_chat_tools(tools: Iterable[Tool], handoffs: Iterable[Handoff[Any, Any]]) -> list[Item]:
    """Return the tools and handoffs as functions of the API; raise :class:`UserError` for a hosted tool."""
    functions = []
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            raise UserError(f"the Chat Completions API has no hosted tools: {tool.name} needs the Responses API")
        name = flatten_tool_name(tool.name, tool.namespace)
        functions.append(_to_chat_function(name, tool.description, tool.params_json_schema, tool.strict_json_schema))
    return functions + [
        _to_chat_function(each.tool_name, each.tool_description, each.input_json_schema, each.strict_json_schema)
        for each in handoffs
    ]


def _to_chat_function(name: str, description: str, parameters: Item, strict: bool) -> Item:
    function = {"name": name, "description": description or "", "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def to_chat_tool_choice(choice: Any) -> Any | None:
    if choice is None or choice in ("auto", "required", "none"):
        return choice
    if isinstance(choice, MCPToolChoice):
        raise UserError("the Chat Completions API has no MCP tools: tool_choice cannot be an MCPToolChoice")
    return {"type": "function", "function": {"name": choice}}


def to_chat_response_format(schema: AgentOutputSchemaBase | None) -> Item | None:
    if schema is None or schema.is_plain_text():
        return None
    json_schema = {"name": "final_output", "strict": schema.is_strict_json_schema(), "schema": schema.json_schema()}
    return {"type": "json_schema", "json_schema": json_schema}


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
        status: str = "completed",
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
            "status": status,
        }
        if provider_data:
            item["provider_data"] = provider_data
        return item if namespace is None else {**item, "namespace": namespace}


def items_from_chat_message(message: Any, resolver: ToolNameResolver) -> list[Item]:
    """Return the reasoning, text and calls in a message of the model as items."""
    items: list[Item] = []
    reasoning = get_reasoning_text(message)
    thinking = to_plain(get_field(message, "thinking_blocks"))
    if reasoning or thinking:
        items.append(make_reasoning_item(make_local_id("rs"), reasoning or "", thinking))
    parts = []
    if get_field(message, "content"):
        parts.append(make_text_part(message.content))
    if get_field(message, "refusal"):
        parts.append({"type": "refusal", "refusal": message.refusal})
    if parts:
        items.append(make_message_item(make_local_id("msg"), parts))
    for call in get_field(message, "tool_calls") or []:
        function = get_field(call, "function")
        if function is None:
            raise UserError(f"the model made a call of unsupported type {get_field(call, 'type')!r}")
        items.append(
            resolver.make_call_item(
                item_id=make_local_id("fc"),
                call_id=get_field(call, "id") or make_local_id("call"),
                name=get_field(function, "name"),
                arguments=arguments_to_json(get_field(function, "arguments")) or "{}",
                provider_data=get_call_data(call),
            )
        )
    return items


def get_reasoning_text(message: Any) -> str | None:
    """Return the reasoning in a message, for which servers use different field names."""
    for name in ("reasoning_content", "reasoning"):
        text = get_field(message, name)
        if isinstance(text, str) and text:
            return text
    return None


def arguments_to_json(arguments: Any) -> str:
    """Return the arguments as JSON text. Some servers send an object instead."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def make_message_item(item_id: str, parts: list[Item], *, status: str = "completed") -> Item:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": parts}


def make_reasoning_item(item_id: str, text: str, thinking: list[Item] | None = None) -> Item:
    """Return reasoning as an item. ``thinking`` are signed blocks, which some providers want back."""
    item: Item = {"id": item_id, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
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
