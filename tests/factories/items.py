"""Conversation items in the shape of the Responses API."""

import json
from typing import Any

Item = dict[str, Any]


def user_message(text: object = "hi") -> Item:
    return {"role": "user", "content": str(text)}


def assistant_message(text: object = "hello", **fields: Any) -> Item:
    content = [{"type": "output_text", "text": str(text), "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content, **fields}


def function_call(name: str, call_id: str | None = None, **arguments: Any) -> Item:
    """A call with the given arguments; its id is derived from the name unless given."""
    call_id = call_id or f"call_{name}"
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": json.dumps(arguments)}


def function_call_output(call_id: str, output: object = "done") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": str(output)}
