"""Items as messages of the Chat Completions API, and its answers as items again."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.agents.errors import UserError
from holdfast.agents.handoffs import Handoff
from holdfast.agents.model_settings import MCPToolChoice
from holdfast.agents.output import AgentOutputSchemaBase
from holdfast.agents.tool_refs import part_of
from holdfast.agents.tools import FunctionTool, Tool
from holdfast.base.ids import new_id
from holdfast.base.items import Item
from holdfast.models.events import text_part
from holdfast.models.openai_items import MADE_UP

Message: TypeAlias = dict[str, Any]

_ROLES = frozenset(["user", "system", "developer", "assistant"])
# What hosted tools of another API left behind: of no use to a model that has none.
_HOSTED_TRACES = frozenset(
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
_BETWEEN = "__"


@dataclass(frozen=True)
class ReasoningContentReplayContext:
    """A thought of an earlier answer, for a program to decide whether the server wants to see it again."""

    model: str
    base_url: str | None
    reasoning: Item


ShouldReplayReasoningContent: TypeAlias = Callable[[ReasoningContentReplayContext], bool]


def replays_reasoning(context: ReasoningContentReplayContext) -> bool:
    """DeepSeek's models refuse tool outputs without the thoughts that led to the calls; others refuse the thoughts."""
    return "deepseek" in context.model.lower()


class Transcript:
    """Builds messages from items. An assistant's words, thoughts and calls go into one message."""

    def __init__(
        self, *, model: str = "", base_url: str | None = None, strict: bool = False,
        should_replay: ShouldReplayReasoningContent | None = None,
    ) -> None:  # fmt: skip
        self.messages: list[Message] = []
        self._model, self._base_url, self._strict = model, base_url, strict
        self._should_replay = should_replay or replays_reasoning
        self._assistant: Message | None = None
        self._thought: str | None = None
        # Pictures that tools returned: tool messages hold text only, and nothing may come between those.
        self._pictures: list[Item] = []

    def add(self, item: Item, where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "function_call":
                call = {"name": wire_name(item["name"], item.get("namespace")), "arguments": item["arguments"] or "{}"}
                calls = self._speaking().setdefault("tool_calls", [])
                calls.append({"id": item["call_id"], "type": "function", "function": call})
            case "function_call_output":
                self._hush()
                content = self._tool_output(item["output"], where)
                self.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case "reasoning":
                self._reasoning(item)
            case kind if kind in _HOSTED_TRACES and not self._strict:
                return
            case kind:
                raise UserError(f"{where}: the Chat Completions API has nothing like an item of type {kind!r}")

    def finish(self) -> list[Message]:
        self._hush()
        self._show_pictures()
        return self.messages

    def _message(self, item: Item, where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES:
            raise UserError(f"{where}: a message needs one of the roles {', '.join(sorted(_ROLES))}, not {role!r}")
        if role != "assistant":
            self._hush()
            self._show_pictures()
            self.messages.append({"role": role, "content": _content(content, where)})
            return
        # Words after words are another message; words before calls belong to them.
        if self._assistant is not None and ("content" in self._assistant or "tool_calls" in self._assistant):
            self._hush()
        speaking = self._speaking()
        if isinstance(content, str):
            speaking["content"] = content
            return
        texts = [
            part.get("text", "") for part in content or [] if part.get("type") in ("output_text", "input_text", "text")
        ]
        refusals = [part["refusal"] for part in content or [] if part.get("type") == "refusal"]
        if texts:
            speaking["content"] = "".join(texts)
        if refusals:
            speaking["refusal"] = "".join(refusals)

    def _reasoning(self, item: Item) -> None:
        text = "\n".join(part["text"] for part in item.get("content") or item.get("summary") or [])
        if text and self._should_replay(ReasoningContentReplayContext(self._model, self._base_url, item)):
            self._hush()
            self._thought = text

    def _tool_output(self, output: Any, where: str) -> str:
        if isinstance(output, str):
            return output
        texts = []
        for number, part in enumerate(output):
            if part.get("type") in ("input_text", "text", "output_text"):
                texts.append(part["text"])
            elif self._strict:
                raise UserError(f"{where}: the output of a tool can be text only here, not {part.get('type')!r}")
            else:
                self._pictures.append(_part(part, f"{where}.output[{number}]"))
                texts.append(f"[see {part.get('type', '').removeprefix('input_')} below]")
        return "\n".join(texts)

    def _speaking(self) -> Message:
        if self._assistant is None:
            self._show_pictures()
            self._assistant = {"role": "assistant"}
            if self._thought is not None:
                self._assistant["reasoning_content"] = self._thought
                self._thought = None
            self.messages.append(self._assistant)
        return self._assistant

    def _hush(self) -> None:
        if self._assistant is not None and "content" not in self._assistant:
            self._assistant["content"] = None
        self._assistant = None

    def _show_pictures(self) -> None:
        if self._pictures:
            self.messages.append({"role": "user", "content": self._pictures})
            self._pictures = []


def chat_messages(system_instructions: str | None, given: str | Iterable[Item], **options: Any) -> list[Message]:
    """The conversation as the API takes it."""
    transcript = Transcript(**options)
    if system_instructions:
        transcript.messages.append({"role": "system", "content": system_instructions})
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    for number, item in enumerate(given):
        transcript.add(item, f"input[{number}]")
    return transcript.finish()


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where}: the content of a message is a text or a list of parts, not {type(content).__name__}")
    return [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]


def _part(part: Mapping[str, Any], where: str) -> Item:
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
    raise UserError(f"{where}: the Chat Completions API cannot be shown this {part.get('type')!r}")


def wire_name(name: str, namespace: str | None) -> str:
    """The name of a tool where there are no namespaces. A deferred tool is its own namespace."""
    return name if not namespace or namespace == name else f"{namespace}{_BETWEEN}{name}"


def chat_tools(tools: Iterable[Tool], handoffs: Iterable[Handoff[Any, Any]]) -> list[Item]:
    """Everything the model may call. It can only be what the program itself runs."""
    found = []
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            raise UserError(f"the Chat Completions API has no hosted tools: {tool.name} needs the Responses API")
        name = wire_name(tool.name, tool.namespace)
        found.append(_callable(name, tool.description, tool.params_json_schema, tool.strict_json_schema))
    return found + [
        _callable(way.tool_name, way.tool_description, way.input_json_schema, way.strict_json_schema)
        for way in handoffs
    ]


def _callable(name: str, description: str, parameters: Item, strict: bool) -> Item:
    function = {"name": name, "description": description or "", "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def chat_choice(choice: Any) -> Any | None:
    if choice is None or choice in ("auto", "required", "none"):
        return choice
    if isinstance(choice, MCPToolChoice):
        raise UserError("the Chat Completions API has no MCP tools to choose")
    return {"type": "function", "function": {"name": choice}}


def chat_format(schema: AgentOutputSchemaBase | None) -> Item | None:
    if schema is None or schema.is_plain_text():
        return None
    shape = {"name": "final_output", "strict": schema.is_strict_json_schema(), "schema": schema.json_schema()}
    return {"type": "json_schema", "json_schema": shape}


class Names:
    """From the names that the model calls back to those of the tools."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._namespaces = {
            wire_name(tool.name, tool.namespace): (tool.name, tool.namespace)
            for tool in tools
            if isinstance(tool, FunctionTool) and tool.namespace is not None
        }

    def call(self, *, item_id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Item:
        """A call of the model's as an item."""
        name, namespace = self._namespaces.get(name, (name, None))
        item = {
            "id": item_id,
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": status,
        }
        return item if namespace is None else {**item, "namespace": namespace}


def output_items(message: Any, names: Names) -> list[Item]:
    """A message of the model's as items: its thoughts, its words, its calls."""
    found: list[Item] = []
    thought = thought_in(message)
    if thought:
        found.append(reasoning_item(made_up("rs"), thought))
    parts = []
    if part_of(message, "content"):
        parts.append(text_part(message.content))
    if part_of(message, "refusal"):
        parts.append({"type": "refusal", "refusal": message.refusal})
    if parts:
        found.append(message_item(made_up("msg"), parts))
    for call in part_of(message, "tool_calls") or []:
        function = part_of(call, "function")
        if function is None:
            raise UserError(f"the model made a call that is none of a function: {part_of(call, 'type')!r}")
        call_id, arguments = (
            part_of(call, "id") or made_up("call"),
            arguments_text(part_of(function, "arguments")) or "{}",
        )
        found.append(
            names.call(item_id=made_up("fc"), call_id=call_id, name=part_of(function, "name"), arguments=arguments)
        )
    return found


def thought_in(message: Any) -> str | None:
    """What the model thought aloud. Servers do not agree on a name for it."""
    for name in ("reasoning_content", "reasoning"):
        found = part_of(message, name)
        if isinstance(found, str) and found:
            return found
    return None


def arguments_text(arguments: Any) -> str:
    """Arguments as JSON text. Some servers send the object itself."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def message_item(item_id: str, parts: list[Item], *, status: str = "completed") -> Item:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": parts}


def reasoning_item(item_id: str, thought: str) -> Item:
    return {"id": item_id, "type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}


def made_up(kind: str) -> str:
    """An id for what the server named not at all; it is never sent to anybody."""
    return new_id(f"{MADE_UP}{kind}")


def chat_usage(usage: Any) -> Item | None:
    """The usage as a response of the other API reports it."""
    if usage is None:
        return None
    asked, answered = part_of(usage, "prompt_tokens_details"), part_of(usage, "completion_tokens_details")
    sent, received = part_of(usage, "prompt_tokens") or 0, part_of(usage, "completion_tokens") or 0
    return {
        "input_tokens": sent,
        "input_tokens_details": {
            "cached_tokens": _count(asked, "cached_tokens"),
            "cache_write_tokens": _count(asked, "cache_write_tokens"),
        },
        "output_tokens": received,
        "output_tokens_details": {"reasoning_tokens": _count(answered, "reasoning_tokens")},
        "total_tokens": part_of(usage, "total_tokens") or sent + received,
    }


def _count(details: Any, name: str) -> int:
    return 0 if details is None else part_of(details, name) or 0
