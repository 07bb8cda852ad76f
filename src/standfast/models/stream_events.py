"""The events of a streamed response, as plain dicts. This module alone defines their order."""

from collections.abc import Iterable, Iterator
from typing import Any

from standfast.base.items import Item

ResponseEvent = dict[str, Any]

# The events before the first output of the model.
PRELUDE_EVENTS = frozenset(["response.created", "response.in_progress", "response.queued"])


class ResponseEventBuilder:
    """Creates the numbered events of one response."""

    def __init__(self, response_id: str | None, *, model: str, created_at: float = 0.0) -> None:
        self.response: Item = {
            "id": response_id,
            "created_at": created_at,
            "model": model,
            "object": "response",
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "status": "in_progress",
            "usage": None,
        }
        self._sequence_number = 0

    def make_event(self, kind: str, **parts: Any) -> ResponseEvent:
        event = {"type": kind, **parts, "sequence_number": self._sequence_number}
        self._sequence_number += 1
        return event

    def begin_response(self) -> Iterator[ResponseEvent]:
        yield self.make_event("response.created", response=dict(self.response))
        yield self.make_event("response.in_progress", response=dict(self.response))

    def end_response(self, output: list[Any], *, usage: Any, status: str = "completed", **parts: Any) -> ResponseEvent:
        self.response = {**self.response, "output": output, "usage": usage, "status": status, **parts}
        return self.make_event("response.completed", response=self.response)

    def make_item_events(self, item: Item, index: int) -> Iterator[ResponseEvent]:
        """Yield all events of an item that is already complete."""
        location = {"item_id": item.get("id"), "output_index": index}
        match item.get("type"):
            case "message":
                yield self.make_item_added({**item, "content": [], "status": "in_progress"}, index)
                for number, part in enumerate(item.get("content") or []):
                    yield from self.make_content_part_events(part, **location, content_index=number)
            case "function_call":
                yield self.make_item_added({**item, "arguments": "", "status": "in_progress"}, index)
                yield from self.make_arguments_events(item["arguments"], name=item["name"], **location)
            case "reasoning":
                yield self.make_item_added({**item, "summary": []}, index)
                for number, part in enumerate(item.get("summary") or []):
                    yield from self.make_summary_part_events(part, **location, summary_index=number)
            case _:
                yield self.make_item_added(item, index)
        yield self.make_item_done(item, index)

    def make_content_part_events(self, part: Item, **location: Any) -> Iterator[ResponseEvent]:
        if part.get("type") == "refusal":
            yield self.make_event("response.content_part.added", part={"type": "refusal", "refusal": ""}, **location)
            yield self.make_event("response.refusal.delta", delta=part["refusal"], **location)
            yield self.make_event("response.refusal.done", refusal=part["refusal"], **location)
        elif part.get("type") == "output_text":
            yield self.make_event("response.content_part.added", part=make_text_part(""), **location)
            yield self.make_event("response.output_text.delta", delta=part["text"], logprobs=[], **location)
            yield self.make_event("response.output_text.done", text=part["text"], logprobs=[], **location)
        yield self.make_event("response.content_part.done", part=part, **location)

    def make_summary_part_events(self, part: Item, **location: Any) -> Iterator[ResponseEvent]:
        empty = {"type": "summary_text", "text": ""}
        yield self.make_event("response.reasoning_summary_part.added", part=empty, **location)
        yield self.make_event("response.reasoning_summary_text.delta", delta=part["text"], **location)
        yield self.make_event("response.reasoning_summary_text.done", text=part["text"], **location)
        yield self.make_event("response.reasoning_summary_part.done", part=part, **location)

    def make_arguments_events(self, arguments: str, *, name: str, **location: Any) -> Iterator[ResponseEvent]:
        yield self.make_event("response.function_call_arguments.delta", delta=arguments, **location)
        yield self.make_event("response.function_call_arguments.done", arguments=arguments, name=name, **location)

    def make_item_added(self, item: Item, index: int) -> ResponseEvent:
        return self.make_event("response.output_item.added", item=item, output_index=index)

    def make_item_done(self, item: Item, index: int) -> ResponseEvent:
        return self.make_event("response.output_item.done", item=item, output_index=index)


def make_response_events(
    builder: ResponseEventBuilder, items: Iterable[Item], *, usage: Any, **parts: Any
) -> Iterator[ResponseEvent]:
    """Yield all events of a response that is already complete. ``parts`` are added to the response."""
    output = list(items)
    yield from builder.begin_response()
    for index, item in enumerate(output):
        yield from builder.make_item_events(item, index)
    yield builder.end_response(output, usage=usage, **parts)


def make_text_part(text: str) -> Item:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


def usage_to_dict(usage: Any) -> Item:
    """Return a :class:`~standfast.base.usage.Usage` in the format of a response, with its requests."""
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.input_tokens_details.cached_tokens,
            "cache_write_tokens": usage.input_tokens_details.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.output_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        **({"request_usage_entries": usage.request_usage_entries} if usage.request_usage_entries else {}),
    }
