"""Read the messages that ``SqliteSaver`` and ``PostgresSaver`` of LangGraph stored in checkpoints."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.imports.sources import (
    MALFORMED,
    Query,
    SourceSession,
    describe_malformed,
    has_table,
    make_call,
    make_image,
    make_output,
    make_text_message,
    open_database,
    to_text,
)


async def read_langgraph(url: str, *, channel: str = "messages") -> AsyncIterator[SourceSession]:
    """Yield the conversation of each thread: the messages in its latest checkpoint.

    ``url`` is ``sqlite:///PATH`` or the URL of an asynchronous SQLAlchemy engine, such as ``postgresql+asyncpg://...``.
    ``channel`` is the field of the graph's state that has the messages.
    """
    async with open_database(url) as query:
        if not await has_table(query, "checkpoints", "checkpoint_ns"):
            raise InvalidInput("there is no table 'checkpoints' of LangGraph")
        has_blobs = await has_table(query, "checkpoint_blobs", "blob")
        threads = await query("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id", {})
        for (thread,) in threads:
            read = _read_blob_values if has_blobs else _read_values
            try:
                values = await read(query, thread, channel)
                found = None if values is None else _convert_thread(thread, values, channel)
            except MALFORMED as error:
                problem = f"its latest checkpoint cannot be read: {describe_malformed(error)}"
                found = SourceSession(session_id=thread, problem=problem)
            if found is not None:
                yield found


async def _read_values(query: Query, thread: str, channel: str) -> dict[str, Any] | None:
    """Return the state in the latest checkpoint of ``SqliteSaver``."""
    rows = await query(
        "SELECT type, checkpoint FROM checkpoints WHERE thread_id = :thread AND checkpoint_ns = ''"
        " ORDER BY checkpoint_id DESC LIMIT 1",
        {"thread": thread},
    )
    if not rows:
        return None
    checkpoint = decode_value(*rows[0])
    values: dict[str, Any] = checkpoint["channel_values"]
    return values


async def _read_blob_values(query: Query, thread: str, channel: str) -> dict[str, Any] | None:
    """Return the state in the latest checkpoint of ``PostgresSaver``, which stores large values apart."""
    rows = await query(
        "SELECT CAST(checkpoint AS TEXT) FROM checkpoints WHERE thread_id = :thread AND checkpoint_ns = ''"
        " ORDER BY checkpoint_id DESC LIMIT 1",
        {"thread": thread},
    )
    if not rows:
        return None
    checkpoint = json.loads(rows[0][0])
    values = {**dict.fromkeys(checkpoint.get("channel_versions", {})), **checkpoint.get("channel_values", {})}
    blobs = await query(
        "SELECT type, blob FROM checkpoint_blobs WHERE thread_id = :thread AND checkpoint_ns = ''"
        " AND channel = :channel AND version = :version",
        {"thread": thread, "channel": channel, "version": str(checkpoint["channel_versions"].get(channel))},
    )
    return {**values, channel: decode_value(*blobs[0])} if blobs else values


def decode_value(kind: str, data: Any) -> Any:
    """Return a value of a checkpoint. Objects become dictionaries of their fields."""
    if kind == "msgpack":
        return msgspec.msgpack.decode(bytes(data), ext_hook=_decode_object, strict=False)
    if kind == "json":
        return _unwrap_objects(json.loads(bytes(data) if not isinstance(data, str) else data))
    if kind in ("null", "empty"):
        return None
    raise ValueError(f"values of the kind {kind!r} are not supported; encrypted ones have to be decrypted before")


def _decode_object(code: int, data: memoryview) -> Any:
    parts = msgspec.msgpack.decode(bytes(data), ext_hook=_decode_object, strict=False)
    fields = parts[2] if isinstance(parts, list) and len(parts) > 2 else None
    return fields if isinstance(fields, dict) else None


def _unwrap_objects(value: Any) -> Any:
    if isinstance(value, dict):
        if "lc" in value and isinstance(value.get("kwargs"), dict):
            return _unwrap_objects(value["kwargs"])
        return {name: _unwrap_objects(entry) for name, entry in value.items()}
    return [_unwrap_objects(entry) for entry in value] if isinstance(value, list) else value


def _convert_thread(thread: str, values: Mapping[str, Any], channel: str) -> SourceSession:
    messages = values.get(channel)
    if not isinstance(messages, list):
        names = ", ".join(sorted(values)) or "none"
        return SourceSession(session_id=thread, problem=f"its state has no messages in {channel!r}; it has {names}")
    left_out: Counter[str] = Counter()
    items = [item for message in messages for item in _convert_message(message, left_out)]
    others = [name for name in sorted(values) if name != channel and not name.startswith(("__", "branch:"))]
    notes = [f"{count} parts of the kind {kind!r} are left out" for kind, count in left_out.items()]
    notes += [f"the state in {', '.join(others)} is left out"] if others else []
    return SourceSession(session_id=thread, items=items, notes=tuple(notes))


def _convert_message(message: Any, left_out: Counter[str]) -> Iterator[Item]:
    kind = message.get("type") if isinstance(message, dict) else None
    match kind:
        case "system" | "human":
            role = "system" if kind == "system" else "user"
            yield {"role": role, "content": _convert_content(message.get("content"), left_out)}
        case "ai":
            text = _join_texts(message.get("content"), left_out)
            if text:
                yield make_text_message(text)
            for call in message.get("tool_calls") or ():
                yield make_call(call["id"], call["name"], call.get("args"))
            left_out.update(["invalid tool call"] * len(message.get("invalid_tool_calls") or ()))
        case "tool":
            yield make_output(message["tool_call_id"], to_text(message.get("content")))
        case _:
            left_out[str(kind or type(message).__name__)] += 1


def _join_texts(content: Any, left_out: Counter[str]) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content or ():
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") == "text":
            texts.append(part["text"])
        elif part.get("type") not in ("tool_call", "tool_use", "function_call"):  # these are in tool_calls, too
            left_out[str(part.get("type"))] += 1
    return "".join(texts)


def _convert_content(content: Any, left_out: Counter[str]) -> Any:
    """Return the content of a user message: a text, or a list of texts and images."""
    if isinstance(content, str):
        return content
    parts: list[Item] = []
    for part in content or ():
        kind = part.get("type") if isinstance(part, dict) else "text"
        if kind == "text":
            parts.append({"type": "input_text", "text": part if isinstance(part, str) else part["text"]})
        elif kind == "image_url":
            image = part["image_url"]
            parts.append(make_image(image["url"] if isinstance(image, dict) else image))
        elif kind == "image" and (part.get("url") or part.get("base64")):
            data = f"data:{part.get('mime_type', 'image/png')};base64,{part.get('base64')}"
            parts.append(make_image(part.get("url") or data))
        else:
            left_out[str(kind)] += 1
    return parts
