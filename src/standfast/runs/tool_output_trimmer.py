"""An input filter that shortens old tool outputs, so that a long conversation costs less."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from standfast.base.items import Item
from standfast.runs.config import CallModelData, ModelInputData

_PART_FIELDS = {
    "input_text": {"text"},
    "input_image": {"image_url", "file_id", "detail"},
    "input_file": {"file_data", "file_url", "file_id", "filename", "detail"},
}
_MAPS_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_SCHEMAS = {
    *("items", "prefixItems", "additionalItems", "contains", "additionalProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
}


@dataclass
class ToolOutputTrimmer:
    """A ``call_model_input_filter`` that shortens the outputs of function tools in older turns.

    Outputs of the ``recent_turns`` latest user turns stay as they are, and so do outputs of at most
    ``max_output_chars`` characters. Others are replaced by a note and their first ``preview_chars`` characters; images
    and files are dropped and counted, in a text that fits ``max_output_chars``. With ``trimmable_tools`` only the
    outputs of these tools are shortened. Nothing that is stored changes: the filter returns new items.
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
            if isinstance(names, bytes | bytearray):
                raise ValueError("trimmable_tools must be a name or names, got bytes")
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
        return (
            self._trim_output(item, names[0] if names else "unknown_tool") if kind == "function_call_output" else item
        )

    def _trim_output(self, item: Item, name: str) -> Item:
        output = item.get("output")
        if isinstance(output, str):
            short = self._shorten(name, output)
            return {**item, "output": short} if self.max_output_chars < len(output) > len(short) else item
        if isinstance(output, list) and all(map(_is_content_part, output)):
            size = sum(len(value) for part in output for key, value in part.items() if key not in ("type", "detail"))
            if size > self.max_output_chars:
                return {**item, "output": self._summarize_parts(name, output, size)}
        return item

    def _shorten(self, name: str, text: str) -> str:
        note = f"[Trimmed: {name} output — {len(text)} chars → {self.preview_chars} char preview]\n"
        return f"{note}{text[: self.preview_chars]}..."

    def _summarize_parts(self, name: str, parts: list[Any], size: int) -> str:
        """Return a text that fits: as much of the preview as possible, then as many facts as possible."""
        text = "\n".join(part["text"] for part in parts if "text" in part)
        kinds = Counter(part["type"] for part in parts if "text" not in part)
        preview = text[: self.preview_chars]
        facts = [f"Trimmed: {name}", f"payload {size}", *([f"preview {len(preview)}"] if text else [])]
        dropped = [f"dropped {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"] if kinds else []
        notes = [
            f"[{'; '.join([*facts, *dropped])}]",
            f"[{'; '.join(facts)}]",
            f"[Trimmed: {', '.join(sorted(kinds))}]",
        ]
        if not text:
            fitting = (note for note in (notes[0], notes[2], "[Trimmed]") if len(note) <= self.max_output_chars)
            return next(fitting, "[Trimmed]"[: self.max_output_chars])
        body = preview if preview == text else f"{preview}..."
        for note in (*notes[:2], "[Trimmed]"):
            if len(note) + 1 + len(body) <= self.max_output_chars:
                return f"{note}\n{body}"
        room = self.max_output_chars - len("[Trimmed]\n...")
        return f"[Trimmed]\n{text[:room]}..." if room > 0 else text[: min(self.preview_chars, self.max_output_chars)]

    def _trim_found_tools(self, item: Item) -> Item:
        for name, found in (("tools", item.get("tools")), ("results", item.get("results"))):
            text = json.dumps(found, ensure_ascii=False)
            if not isinstance(found, list) or len(text) <= self.max_output_chars:
                continue
            if name == "tools":
                return {**item, name: [self._trim_declaration(tool) for tool in found]}
            short = [{"text": self._shorten("tool_search", text)}]
            return {**item, name: short} if len(json.dumps(short, ensure_ascii=False)) < len(text) else item
        return item

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


def _is_content_part(part: Any) -> bool:
    """Return whether a part has the form in which texts, images and files are sent to a model."""
    if not isinstance(part, Mapping) or part.get("type") not in _PART_FIELDS:
        return False
    fields = part.keys() - {"type"}
    known = fields <= _PART_FIELDS[part["type"]] and all(isinstance(part[name], str) for name in fields)
    return known and part.get("detail", "auto") in ("auto", "high", "low", "original") and bool(fields - {"detail"})


def _drop_prose(schema: Any) -> Any:
    """Return a schema without titles and descriptions; values such as defaults and constants stay as they are."""
    if not isinstance(schema, Mapping):
        return schema
    short: dict[str, Any] = {}
    for name, part in schema.items():
        if name in ("description", "title") and isinstance(part, str):
            continue
        if name in _MAPS_OF_SCHEMAS and isinstance(part, Mapping):
            short[name] = {key: _drop_prose(each) for key, each in part.items()}
        elif name in _SCHEMAS:
            short[name] = [_drop_prose(each) for each in part] if isinstance(part, list) else _drop_prose(part)
        else:
            short[name] = part
    return short
