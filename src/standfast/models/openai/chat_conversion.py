"""Conversion of items, tools and settings to requests of the Chat Completions API."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import MCPToolChoice
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import FunctionTool, Tool
from standfast.base.items import Item

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
class ReasoningContentSource:
    """Reasoning of an earlier response: its item, the model that wrote it, and what its provider added."""

    item: Item
    origin_model: str | None
    provider_data: Mapping[str, Any]


@dataclass(frozen=True)
class ReasoningContentReplayContext:
    """The argument of ``should_replay_reasoning_content``: where reasoning would be sent, and where it comes from."""

    model: str
    base_url: str | None
    reasoning: ReasoningContentSource


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
        if not isinstance(item, Mapping):
            raise UserError(f"{where}: an item must be a dict, not {item!r}")
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
                if not item.get("call_id"):
                    raise UserError(f"{where}: the Chat Completions API has no outputs without a call: use Responses")
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
            self.messages.append({"role": role, "content": convert_content(content, where)})
            return
        if isinstance(content, str):
            self._close_assistant_message()
            self._open_assistant_message()["content"] = content
            self._assistant_message = None
            return
        # Text after text starts a new message. Text beside calls goes into theirs, which the outputs must follow.
        if self._assistant_message is not None and "content" in self._assistant_message:
            self._close_assistant_message()
        message = self._open_assistant_message()
        texts = [
            part.get("text", "") for part in content or [] if part.get("type") in ("output_text", "input_text", "text")
        ]
        refusals = [part["refusal"] for part in content or [] if part.get("type") == "refusal"]
        if texts:
            message["content"] = "\n".join(texts)
        if refusals:
            message["refusal"] = "".join(refusals)

    def _add_reasoning(self, item: Item) -> None:
        text = "\n".join(part["text"] for part in item.get("content") or item.get("summary") or [])
        extra = item.get("provider_data") or {}
        source = ReasoningContentSource(item, extra.get("model"), extra)
        if text and self._should_replay(ReasoningContentReplayContext(self._model, self._base_url, source)):
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
        if not texts and self._strict:
            raise UserError(f"{where}: the Chat Completions API needs a text as the output of a tool")
        return "\n".join(texts) if texts else "[tool output omitted]"

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


def convert_content(content: Any, where: str) -> Any:
    """Return the content of a message: text, or parts of the API."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where}: content must be a string or a list of parts, got {type(content).__name__}")
    return [_convert_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]


def _convert_part(part: Mapping[str, Any], where: str) -> Item:
    converted = _convert_content_part(part, where)
    if part.get("prompt_cache_breakpoint") is not None:
        converted["prompt_cache_breakpoint"] = part["prompt_cache_breakpoint"]
    return converted


def _convert_content_part(part: Mapping[str, Any], where: str) -> Item:
    match part.get("type"):
        case "input_text" | "text" | "output_text":
            return {"type": "text", "text": part["text"]}
        case "image_url" if isinstance(part.get("image_url"), Mapping) and part["image_url"].get("url"):
            return {"type": "image_url", "image_url": {"detail": "auto", **part["image_url"]}}
        case "input_image" | "image" if isinstance(part.get("image_url"), str) and part["image_url"]:
            return {
                "type": "image_url",
                "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"},
            }
        case "input_audio" if all((part.get("input_audio") or {}).get(name) for name in ("data", "format")):
            return {"type": "input_audio", "input_audio": dict(part["input_audio"])}
        case "input_file" | "file" if part.get("file_data") or part.get("file_id"):
            names = ("file_data" if part.get("file_data") else "file_id", "filename")
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
