"""Responses of OpenAI's model APIs, and helpers to call models in tests."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from model_server import Hang, Reply
from standfast.models import ModelRequest, call_model


class SleepRecorder:
    """A ``sleep`` that takes no time and records the delays."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.delays.append(seconds)


async def call_streamed(model: Any, request: ModelRequest, **options: Any) -> tuple[Any, list[Any]]:
    """Return the response of a streamed request and its events."""
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(event)

    return await call_model(model, request, emit=emit, **options), events


async def time_out(call: Coroutine[Any, Any, Any], hang: Hang, *, after: float) -> Any:
    """Run ``call`` and move the clock of the event loop on by ``after`` seconds when the server has its request.

    The time limit of the request must be below ``after`` and too long to expire by itself.
    """
    loop = asyncio.get_running_loop()
    task, received = asyncio.ensure_future(call), asyncio.ensure_future(hang.received.wait())
    await asyncio.wait([task, received], return_when=asyncio.FIRST_COMPLETED)
    received.cancel()
    real_time = loop.time
    loop.time = lambda: real_time() + after  # type: ignore[method-assign]
    return await task


def error_reply(status: int, message: str = "no", code: str | None = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply({"error": {"message": message, "type": "error", "param": None, "code": code}}, status, named)


def response(*output: dict[str, Any], status: str = "completed", **parts: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "usage": usage,
        **parts,
    }


def message_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def call_item(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def response_events(*output: dict[str, Any]) -> list[dict[str, Any]]:
    """All events of a streamed response."""
    created = response(status="in_progress", usage=None)
    events: list[dict[str, Any]] = [{"type": "response.created", "response": created}]
    for index, item in enumerate(output):
        events.append(
            {"type": "response.output_item.added", "item": {**item, "status": "in_progress"}, "output_index": index}
        )
        if item["type"] == "message":
            events.append(
                {
                    "type": "response.output_text.delta",
                    "item_id": item["id"],
                    "output_index": index,
                    "content_index": 0,
                    "delta": item["content"][0]["text"],
                    "logprobs": [],
                }
            )
        events.append({"type": "response.output_item.done", "item": item, "output_index": index})
    events.append({"type": "response.completed", "response": response(*output)})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def completion(message: dict[str, Any], finish_reason: str = "stop", **parts: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        **parts,
    }


def chunks(*deltas: dict[str, Any], finish_reason: str | None = "stop", usage: bool = True) -> list[dict[str, Any]]:
    """All chunks of a streamed completion."""
    base = {"id": "chatcmpl_1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    result = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish_reason is not None:
        result.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    if usage:
        usage_fields = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        result.append({**base, "choices": [], "usage": usage_fields})
    return result
