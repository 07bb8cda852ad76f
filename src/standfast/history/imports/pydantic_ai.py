"""Read the messages that ``ModelMessagesTypeAdapter`` of pydantic-ai wrote as JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.imports.sources import (
    MALFORMED,
    SourceSession,
    describe_malformed,
    make_call,
    make_image,
    make_output,
    make_text_message,
    to_text,
)


def read_pydantic_ai(session_id: str, data: bytes) -> SourceSession:
    """Return the conversation in a JSON array of messages. What has no counterpart here is named in ``notes``."""
    try:
        messages = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"it is not JSON: {error}") from None
    if not isinstance(messages, list) or not all(isinstance(entry, dict) and "parts" in entry for entry in messages):
        raise InvalidInput("it is not a list of messages of pydantic-ai, as ModelMessagesTypeAdapter writes them")
    left_out: dict[str, int] = {}
    try:
        items = [item for message in messages for part in message["parts"] for item in _read_part(part, left_out)]
    except MALFORMED as error:
        raise InvalidInput(f"it is not a list of messages of pydantic-ai: {describe_malformed(error)}") from None
    notes = tuple(f"{count} parts of the kind {kind!r} are left out" for kind, count in left_out.items())
    return SourceSession(session_id=session_id, items=items, notes=notes)


def _read_part(part: Mapping[str, Any], left_out: dict[str, int]) -> Iterator[Item]:
    kind = part.get("part_kind")
    match kind:
        case "system-prompt":
            yield {"role": "system", "content": part["content"]}
        case "user-prompt":
            yield {"role": "user", "content": _read_content(part["content"], left_out)}
        case "text":
            yield make_text_message(part["content"])
        case "tool-call":
            yield make_call(part["tool_call_id"], part["tool_name"], part.get("args"))
        case "tool-return":
            yield make_output(part["tool_call_id"], to_text(part["content"]))
        case "retry-prompt" if part.get("tool_name"):
            yield make_output(part["tool_call_id"], to_text(part["content"]))
        case "retry-prompt":
            yield {"role": "user", "content": to_text(part["content"])}
        case _:
            left_out[str(kind)] = left_out.get(str(kind), 0) + 1


def _read_content(content: Any, left_out: dict[str, int]) -> Any:
    """Return the content of a user message: a text, or a list of texts and images."""
    if isinstance(content, str):
        return content
    parts: list[Item] = []
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "input_text", "text": part})
        elif part.get("kind") == "text":
            parts.append({"type": "input_text", "text": part["content"]})
        elif part.get("kind") == "image-url":
            parts.append(make_image(part["url"]))
        elif part.get("kind") == "binary" and str(part.get("media_type")).startswith("image/"):
            data = str(part["data"]).replace("-", "+").replace("_", "/")
            parts.append(make_image(f"data:{part['media_type']};base64,{data}"))
        else:
            left_out[str(part.get("kind"))] = left_out.get(str(part.get("kind")), 0) + 1
    return parts
