"""Items that are made from the messages of other frameworks."""

import json
from typing import Any

from standfast.base.items import Item


def make_text_message(text: str) -> Item:
    """Return a message of the assistant."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed"}


def make_call(call_id: str, name: str, arguments: Any) -> Item:
    """Return a call of a function. ``arguments`` are JSON, as a text or a value."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def make_output(call_id: str, output: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def make_image(url: str) -> Item:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def to_text(content: Any) -> str:
    """Return a text as it is, and any other value as JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
