"""Conversion of items between the session, the wire protocol and history sessions.

Audio is not kept; spoken messages are converted to their text.
"""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from standfast.base.ids import new_id
from standfast.base.item_pairs import drop_unpaired
from standfast.base.items import Item
from standfast.realtime.items import (
    AssistantMessageItem,
    AssistantText,
    InputImage,
    InputText,
    RealtimeItem,
    RealtimeToolCallItem,
    SystemMessageItem,
    UserMessageItem,
)
from standfast.realtime.model import RealtimeModelUserInput

INAUDIBLE_TEXT = "[inaudible]"
MAX_TEXT_BYTES = 8 * 2**20
"""The maximum size of an item's text in bytes. Servers close a connection that sends more."""


def count_bytes(text: str) -> int:
    """Return the size of a text on the wire."""
    return len(text.encode(errors="surrogatepass"))


def truncate_text(text: str) -> str:
    """Return as much of a text as a server accepts."""
    if count_bytes(text) <= MAX_TEXT_BYTES:
        return text
    return text.encode(errors="surrogatepass")[:MAX_TEXT_BYTES].decode(errors="ignore")


def get_text(item: RealtimeItem) -> str:
    """Return the text of a message, including transcripts."""
    if isinstance(item, RealtimeToolCallItem):
        return ""
    texts = (getattr(part, "text", None) or getattr(part, "transcript", None) for part in item.content)
    return "\n".join(text for text in texts if text)


def get_input_text(user_input: RealtimeModelUserInput) -> str:
    """Return the text of a user input, as :func:`get_text` returns it for the item made from it."""
    return user_input if isinstance(user_input, str) else _content_as_text(user_input["content"])


def ensure_output_id(item: RealtimeItem) -> RealtimeItem:
    """Return the item, with an id for its output if it is a call that has one. On the wire, items refer to that id."""
    if not isinstance(item, RealtimeToolCallItem) or item.output is None or getattr(item, "output_item_id", None):
        return item
    return item.model_copy(update={"output_item_id": new_id("item")})


def to_wire(item: RealtimeItem) -> list[dict[str, Any]]:
    """Convert an item to the wire items that a new connection needs; empty if it has no content."""
    if isinstance(item, RealtimeToolCallItem):
        call = {
            "id": item.item_id,
            "type": "function_call",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": item.arguments,
        }
        output = {"type": "function_call_output", "call_id": item.call_id, "output": truncate_text(item.output or "")}
        output_id = getattr(item, "output_item_id", None)
        if output_id is not None:
            output["id"] = output_id
        return [call] if item.output is None else [call, output]
    kind = "output_text" if isinstance(item, AssistantMessageItem) else "input_text"
    text = truncate_text(get_text(item))
    parts: list[dict[str, Any]] = [{"type": kind, "text": text}] if text else []
    parts = [*_image_parts(item), *parts]
    return [{"id": item.item_id, "type": "message", "role": item.role, "content": parts}] if parts else []


def to_session_items(item: RealtimeItem) -> list[Item]:
    """Convert an item to those of a text run. The output of a call is a separate item."""
    if isinstance(item, RealtimeToolCallItem):
        call = {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        return [call]
    text = get_text(item)
    if isinstance(item, AssistantMessageItem):
        part = {"type": "output_text", "text": text, "annotations": []}
        return [{"type": "message", "role": "assistant", "content": [part]}] if text else []
    images = _image_parts(item)
    if images:
        texts = [{"type": "input_text", "text": text}] if text else []
        return [{"type": "message", "role": item.role, "content": [*images, *texts]}]
    return [{"type": "message", "role": item.role, "content": text or INAUDIBLE_TEXT}]


def make_output_item(call_id: str, output: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def from_session_items(items: Iterable[Item]) -> list[RealtimeItem]:
    """Convert the items of a history session to those of a realtime session. Items of other types are left out."""
    converted: list[RealtimeItem] = []
    calls: dict[str, int] = {}
    for item in drop_unpaired(list(items)):
        kind = item.get("type", "message")
        if kind == "message" and (message := _parse_message(item)) is not None:
            converted.append(message)
        elif kind == "function_call":
            repeated = item["call_id"] in calls  # Some models restart their call ids in every response.
            calls[item["call_id"]] = len(converted)
            converted.append(_parse_call(item, new_id("call") if repeated else item["call_id"]))
        elif kind == "function_call_output" and item.get("call_id") in calls:
            index = calls[item["call_id"]]
            output = _output_as_text(item.get("output"))
            converted[index] = converted[index].model_copy(update={"output": output, "status": "completed"})
    for earlier, later in pairwise(converted):
        later.previous_item_id = earlier.item_id
    return converted


def _image_parts(item: RealtimeItem) -> list[dict[str, Any]]:
    if not isinstance(item, UserMessageItem):
        return []
    images = [part for part in item.content if isinstance(part, InputImage) and part.image_url]
    return [
        {"type": "input_image", "image_url": part.image_url, **({"detail": part.detail} if part.detail else {})}
        for part in images
    ]


def _parse_message(item: Item) -> RealtimeItem | None:
    role, item_id = item.get("role"), new_id("item")
    text = _content_as_text(item.get("content"))
    if role == "assistant":
        return AssistantMessageItem(item_id=item_id, status="completed", content=[AssistantText(text=text)])
    if role in ("system", "developer"):
        return SystemMessageItem(item_id=item_id, content=[InputText(text=text)])
    if role != "user":
        return None
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    images: list[Any] = [
        InputImage(image_url=part["image_url"], detail=part.get("detail"))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str)
    ]
    return UserMessageItem(item_id=item_id, content=[*images, InputText(text=text)])


def _parse_call(item: Item, call_id: str) -> RealtimeToolCallItem:
    return RealtimeToolCallItem(
        item_id=new_id("item"),
        call_id=call_id,
        status="in_progress",
        arguments=_value_as_text(item.get("arguments") or "{}"),
        name=_value_as_text(item.get("name") or ""),
    )


def _output_as_text(output: Any) -> str:
    """Convert a stored output to text. Parts that are not text are replaced by their type."""
    if not isinstance(output, list) or not all(isinstance(part, dict) for part in output):
        return _value_as_text(output)
    return "\n".join(_content_as_text([part]) or f"[{part.get('type')}]" for part in output)


def _value_as_text(value: Any) -> str:
    """Return a string as it is and any other value as JSON: some programs store values instead of text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content_as_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        part.get("text") or part.get("transcript") or part.get("refusal") for part in parts if isinstance(part, dict)
    ]
    return "\n".join(text for text in texts if isinstance(text, str))
