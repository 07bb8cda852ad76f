"""An input filter that shortens old tool outputs, so that a long conversation costs less."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from standfast.base.items import Item
from standfast.runs.config import CallModelData, ModelInputData


@dataclass
class ToolOutputTrimmer:
    """A ``call_model_input_filter`` that shortens the outputs of function tools in older turns.

    Outputs of the ``recent_turns`` latest user turns stay as they are, and so do outputs of at most
    ``max_output_chars`` characters. Others are replaced by a note and their first ``preview_chars`` characters; images
    and files are dropped and counted. With ``trimmable_tools`` only the outputs of these tools are shortened. Nothing
    that is stored changes: the filter returns new items.
    """

    recent_turns: int = 2
    max_output_chars: int = 500
    preview_chars: int = 200
    trimmable_tools: str | Iterable[str] | None = None

    def __post_init__(self) -> None:
        for name, least in (("recent_turns", 1), ("max_output_chars", 1), ("preview_chars", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if self.trimmable_tools is not None:
            names = self.trimmable_tools
            self.trimmable_tools = frozenset([names] if isinstance(names, str) else names)

    def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        items = data.model_data.input
        turns = [place for place, item in enumerate(items) if item.get("role") == "user"]
        if len(turns) <= self.recent_turns:
            return data.model_data
        boundary = turns[-self.recent_turns]
        names = {str(item.get("call_id")): _get_names(item) for item in items if item.get("type") == "function_call"}
        older = [self._trim_item(item, names.get(str(item.get("call_id")), ())) for item in items[:boundary]]
        return ModelInputData([*older, *items[boundary:]], data.model_data.instructions)

    def _trim_item(self, item: Item, names: tuple[str, ...]) -> Item:
        kind = item.get("type")
        if kind == "tool_search_output":
            names = ("tool_search",)
        if self.trimmable_tools is not None and not set(names) & set(self.trimmable_tools):
            return item
        if kind == "tool_search_output":
            return self._trim_found_tools(item)
        return self._trim_output(item, names[0] if names else "tool") if kind == "function_call_output" else item

    def _trim_output(self, item: Item, name: str) -> Item:
        output = item.get("output")
        if isinstance(output, str):
            size, text = len(output), output
            note = f"[Trimmed: {name} output — {size} chars → {self.preview_chars} char preview]\n"
            short = f"{note}{text[: self.preview_chars]}..."
        elif isinstance(output, list):
            size, short = self._summarize_parts(name, output)
        else:
            return item
        return {**item, "output": short} if size > self.max_output_chars and len(short) < size else item

    def _summarize_parts(self, name: str, parts: list[Any]) -> tuple[int, str]:
        texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        dropped: dict[str, int] = {}
        size = sum(map(len, texts))
        for part in parts:
            if isinstance(part, Mapping) and not isinstance(part.get("text"), str):
                kind = str(part.get("type"))
                dropped[kind] = dropped.get(kind, 0) + 1
                size += sum(len(value) for key, value in part.items() if key != "type" and isinstance(value, str))
        text = "\n".join(texts)
        facts = [f"Trimmed: {name}", f"payload {size}"]
        if text:
            facts.append(f"preview {self.preview_chars}")
        if dropped:
            facts.append("dropped " + ", ".join(f"{count} {kind}" for kind, count in dropped.items()))
        note = f"[{'; '.join(facts)}]"
        return size, f"{note}\n{text[: self.preview_chars]}..." if text else note

    def _trim_found_tools(self, item: Item) -> Item:
        if len(json.dumps(item.get("tools"), ensure_ascii=False)) <= self.max_output_chars:
            return item
        return {**item, "tools": [self._trim_declaration(tool) for tool in item["tools"]]}

    def _trim_declaration(self, tool: Any) -> Any:
        if not isinstance(tool, Mapping):
            return tool
        short = dict(tool)
        description = short.get("description")
        if isinstance(description, str) and len(description) > self.preview_chars:
            short["description"] = f"{description[: self.preview_chars]}..."
        if isinstance(short.get("parameters"), Mapping):
            short["parameters"] = _drop_prose(short["parameters"])
        if isinstance(short.get("tools"), list):
            short["tools"] = [self._trim_declaration(each) for each in short["tools"]]
        return short


def _get_names(call: Item) -> tuple[str, ...]:
    """Return the names by which a call may be listed, the most precise one first."""
    name, namespace = str(call.get("name")), call.get("namespace")
    return (name,) if not namespace or namespace == name else (f"{namespace}.{name}", name)


def _drop_prose(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        prose = ("description", "title")
        return {
            name: _drop_prose(part) for name, part in schema.items() if name not in prose or not isinstance(part, str)
        }
    return [_drop_prose(part) for part in schema] if isinstance(schema, list) else schema
