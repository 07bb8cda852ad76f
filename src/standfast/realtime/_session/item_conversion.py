"""Items between three worlds: the session's own, the wire protocol, and ordinary conversation items.

Audio itself is never kept: what was spoken goes over as its words.
"""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.base.pairing import drop_unpaired
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
from standfast.realtime.model_inputs import RealtimeModelUserInput

INAUDIBLE_TEXT = "[inaudible]"
MAX_TEXT_BYTES = 8 * 2**20
"""Bytes of text in an item. Servers end a connection that is told more, and so would the next one be ended."""


def count_bytes(text: str) -> int:
    """How many bytes a text has on the wire."""
    return len(text.encode(errors="surrogatepass"))


def truncate_text(text: str) -> str:
    """As much of a text as a server can be told."""
    return (
        text
        if count_bytes(text) <= MAX_TEXT_BYTES
        else text.encode(errors="surrogatepass")[:MAX_TEXT_BYTES].decode(errors="ignore")
    )


def get_text(item: RealtimeItem) -> str:
    """What a message says, spoken and written parts together."""
    if isinstance(item, RealtimeToolCallItem):
        return ""
    texts = (getattr(part, "text", None) or getattr(part, "transcript", None) for part in item.content)
    return "\n".join(text for text in texts if text)


def get_input_text(user_input: RealtimeModelUserInput) -> str:
    """What a message says that a program gives, as :func:`words_of` would find it in the item made of it."""
    return user_input if isinstance(user_input, str) else _content_as_text(user_input["content"])


def ensure_output_id(item: RealtimeItem) -> RealtimeItem:
    """The item with a name for its output, if it is a call that has one: what follows on the wire follows that name."""
    if not isinstance(item, RealtimeToolCallItem) or item.output is None or getattr(item, "output_item_id", None):
        return item
    return item.model_copy(update={"output_item_id": new_id("item")})


def to_wire(item: RealtimeItem) -> list[dict[str, Any]]:
    """The items that a new connection has to be told so that it knows this one; none if there is nothing to tell."""
    if isinstance(item, RealtimeToolCallItem):
        call = {
            "id": item.item_id,
            "type": "function_call",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": item.arguments,
        }
        output = {"type": "function_call_output", "call_id": item.call_id, "output": truncate_text(item.output or "")}
        known = getattr(item, "output_item_id", None)
        if known is not None:
            output["id"] = known
        return [call] if item.output is None else [call, output]
    kind = "output_text" if isinstance(item, AssistantMessageItem) else "input_text"
    text = truncate_text(get_text(item))
    parts: list[dict[str, Any]] = [{"type": kind, "text": text}] if text else []
    parts = [*_image_parts(item), *parts]
    return [{"id": item.item_id, "type": "message", "role": item.role, "content": parts}] if parts else []


def to_session_items(item: RealtimeItem) -> list[Item]:
    """The item as a text run would have it; the output of a call is an item of its own."""
    if isinstance(item, RealtimeToolCallItem):
        call = {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        return [call]
    text = get_text(item)
    if isinstance(item, AssistantMessageItem):
        part = {"type": "output_text", "text": text, "annotations": []}
        return [{"type": "message", "role": "assistant", "content": [part]}] if text else []
    pictures = _image_parts(item)
    if pictures:
        words = [{"type": "input_text", "text": text}] if text else []
        return [{"type": "message", "role": item.role, "content": [*pictures, *words]}]
    return [{"type": "message", "role": item.role, "content": text or INAUDIBLE_TEXT}]


def make_output_item(call_id: str, output: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def from_session_items(items: Iterable[Item]) -> list[RealtimeItem]:
    """The messages and calls of a history, for a session that goes on with it. What has no counterpart is left out."""
    found: list[RealtimeItem] = []
    calls: dict[str, int] = {}
    for item in drop_unpaired(list(items)):
        kind = item.get("type", "message")
        if kind == "message" and (message := _parse_message(item)) is not None:
            found.append(message)
        elif kind == "function_call":
            repeated = item["call_id"] in calls  # Some models count their calls anew in every answer.
            calls[item["call_id"]] = len(found)
            found.append(_parse_call(item, new_id("call") if repeated else item["call_id"]))
        elif kind == "function_call_output" and item.get("call_id") in calls:
            place = calls[item["call_id"]]
            output = _output_as_text(item.get("output"))
            found[place] = found[place].model_copy(update={"output": output, "status": "completed"})
    for earlier, later in pairwise(found):
        later.previous_item_id = earlier.item_id
    return found


def _image_parts(item: RealtimeItem) -> list[dict[str, Any]]:
    if not isinstance(item, UserMessageItem):
        return []
    shown = [part for part in item.content if isinstance(part, InputImage) and part.image_url]
    return [
        {"type": "input_image", "image_url": part.image_url, **({"detail": part.detail} if part.detail else {})}
        for part in shown
    ]


def _parse_message(item: Item) -> RealtimeItem | None:
    role, name = item.get("role"), new_id("item")
    text = _content_as_text(item.get("content"))
    if role == "assistant":
        return AssistantMessageItem(item_id=name, status="completed", content=[AssistantText(text=text)])
    if role in ("system", "developer"):
        return SystemMessageItem(item_id=name, content=[InputText(text=text)])
    if role != "user":
        return None
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    pictures: list[Any] = [
        InputImage(image_url=part["image_url"], detail=part.get("detail"))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str)
    ]
    return UserMessageItem(item_id=name, content=[*pictures, InputText(text=text)])


def _parse_call(item: Item, call_id: str) -> RealtimeToolCallItem:
    return RealtimeToolCallItem(
        item_id=new_id("item"),
        call_id=call_id,
        status="in_progress",
        arguments=_value_as_text(item.get("arguments") or "{}"),
        name=_value_as_text(item.get("name") or ""),
    )


def _output_as_text(output: Any) -> str:
    """A stored output as the text that a realtime model takes. Of what is no text, it is told the kind."""
    if not isinstance(output, list) or not all(isinstance(part, dict) for part in output):
        return _value_as_text(output)
    return "\n".join(_content_as_text([part]) or f"[{part.get('type')}]" for part in output)


def _value_as_text(value: Any) -> str:
    """Histories come from many programs, and some of them keep values where text belongs."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content_as_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        part.get("text") or part.get("transcript") or part.get("refusal") for part in parts if isinstance(part, dict)
    ]
    return "\n".join(text for text in texts if isinstance(text, str))
