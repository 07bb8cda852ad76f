"""Conversion of tool outputs to items."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic_core import PydanticSerializationError

from standfast.agents.local_tools import make_rejection_item
from standfast.agents.tool_identity import ToolRef
from standfast.base.items import Item
from standfast.base.text import sanitize_json, sanitize_text

_PART_TYPES = {"text": "input_text", "image": "input_image", "file": "input_file"}
_PART_CONTENT_FIELDS = {
    "text": ("text",),
    "image": ("image_url", "file_id"),
    "file": ("file_data", "file_url", "file_id"),
}
_PART_OPTIONS: dict[str, tuple[str, ...]] = {"text": (), "image": ("detail",), "file": ("filename",)}


def make_output_item(call_id: str, output: Any, *, adapter: Any = None) -> Item:
    """Return the output of a call as an item."""
    return {"call_id": call_id, "output": format_output(output, adapter=adapter), "type": "function_call_output"}


def make_rejection(tool: ToolRef, call_id: str, message: str) -> Item:
    """Return the output of a call that is not made, in the format that its tool requires."""
    if tool.kind != "local":
        return make_output_item(call_id, message)
    return make_rejection_item(str(tool.namespace), call_id, sanitize_text(message))


def format_output(output: Any, *, adapter: Any = None) -> str | list[Item]:
    """Return the value of a tool as text, or as a list of parts if it consists of texts, images and files."""
    if isinstance(output, str):
        return sanitize_text(output)
    if adapter is not None:
        return _dump_json(output, adapter)
    if isinstance(output, list | tuple):
        parts = [_as_part(part) for part in output]
        if parts and all(part is not None for part in parts):
            return [sanitize_json(part) for part in parts]
    part = _as_part(output)
    return sanitize_text(str(output)) if part is None else [sanitize_json(part)]


def _dump_json(output: Any, adapter: Any) -> str:
    try:
        return str(adapter.dump_json(output).decode())
    except PydanticSerializationError:  # of lone surrogates, or of a value that is not JSON at all
        plain = sanitize_json(adapter.dump_python(output, mode="json"))
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)


def to_plain_value(value: Any) -> Any:
    """Return the value of a tool as JSON values; anything else is converted to a string."""
    if isinstance(value, str):
        return sanitize_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if hasattr(value, "model_dump"):
        return to_plain_value(value.model_dump(mode="json"))
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain_value(asdict(value))
    if isinstance(value, Mapping):
        return {sanitize_text(str(name)): to_plain_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain_value(part) for part in value]
    return sanitize_text(str(value))


def _as_part(value: Any) -> Item | None:
    """Return a text, image or file as a part of an output; ``None`` for any other value."""
    if hasattr(value, "model_dump") and getattr(value, "type", None) in _PART_TYPES:
        value = value.model_dump(exclude_none=True)
    if not isinstance(value, Mapping) or value.get("type") not in _PART_TYPES:
        return None
    kind = value["type"]
    if not any(isinstance(value.get(name), str) for name in _PART_CONTENT_FIELDS[kind]):
        return None
    fields = (*_PART_CONTENT_FIELDS[kind], *_PART_OPTIONS[kind])
    return {"type": _PART_TYPES[kind], **{name: value[name] for name in fields if value.get(name) is not None}}
