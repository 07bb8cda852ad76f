"""The events in which an answer is streamed, as plain dicts. What follows what is decided here and nowhere else."""

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.base.items import Item

Event = dict[str, Any]

# What a stream says before the model has said anything.
PRELUDE = frozenset(["response.created", "response.in_progress", "response.queued"])


class EventLog:
    """Numbers events and knows the response that they build."""

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
        self._number = 0

    def event(self, kind: str, **parts: Any) -> Event:
        found = {"type": kind, **parts, "sequence_number": self._number}
        self._number += 1
        return found

    def begin(self) -> Iterator[Event]:
        yield self.event("response.created", response=dict(self.response))
        yield self.event("response.in_progress", response=dict(self.response))

    def end(self, output: list[Any], *, usage: Any, status: str = "completed", **parts: Any) -> Event:
        self.response = {**self.response, "output": output, "usage": usage, "status": status, **parts}
        return self.event("response.completed", response=self.response)

    def whole_item(self, item: Item, index: int) -> Iterator[Event]:
        """All the events of an item that is there from the start."""
        where = {"item_id": item.get("id"), "output_index": index}
        match item.get("type"):
            case "message":
                yield self.added({**item, "content": [], "status": "in_progress"}, index)
                for number, part in enumerate(item.get("content") or []):
                    yield from self.whole_part(part, **where, content_index=number)
            case "function_call":
                yield self.added({**item, "arguments": "", "status": "in_progress"}, index)
                yield from self.arguments(item["arguments"], name=item["name"], **where)
            case "reasoning":
                yield self.added({**item, "summary": []}, index)
                for number, part in enumerate(item.get("summary") or []):
                    yield from self.whole_summary(part, **where, summary_index=number)
            case _:
                yield self.added(item, index)
        yield self.done(item, index)

    def whole_part(self, part: Item, **where: Any) -> Iterator[Event]:
        if part.get("type") == "refusal":
            yield self.event("response.content_part.added", part={"type": "refusal", "refusal": ""}, **where)
            yield self.event("response.refusal.delta", delta=part["refusal"], **where)
            yield self.event("response.refusal.done", refusal=part["refusal"], **where)
        elif part.get("type") == "output_text":
            yield self.event("response.content_part.added", part=text_part(""), **where)
            yield self.event("response.output_text.delta", delta=part["text"], logprobs=[], **where)
            yield self.event("response.output_text.done", text=part["text"], logprobs=[], **where)
        yield self.event("response.content_part.done", part=part, **where)

    def whole_summary(self, part: Item, **where: Any) -> Iterator[Event]:
        empty = {"type": "summary_text", "text": ""}
        yield self.event("response.reasoning_summary_part.added", part=empty, **where)
        yield self.event("response.reasoning_summary_text.delta", delta=part["text"], **where)
        yield self.event("response.reasoning_summary_text.done", text=part["text"], **where)
        yield self.event("response.reasoning_summary_part.done", part=part, **where)

    def arguments(self, arguments: str, *, name: str, **where: Any) -> Iterator[Event]:
        yield self.event("response.function_call_arguments.delta", delta=arguments, **where)
        yield self.event("response.function_call_arguments.done", arguments=arguments, name=name, **where)

    def added(self, item: Item, index: int) -> Event:
        return self.event("response.output_item.added", item=item, output_index=index)

    def done(self, item: Item, index: int) -> Event:
        return self.event("response.output_item.done", item=item, output_index=index)


def whole_answer(log: EventLog, items: Iterable[Item], *, usage: Any, **parts: Any) -> Iterator[Event]:
    """All the events of an answer that is there from the start. ``parts`` go into the response."""
    output = list(items)
    yield from log.begin()
    for index, item in enumerate(output):
        yield from log.whole_item(item, index)
    yield log.end(output, usage=usage, **parts)


def text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage_part(usage: Any) -> Item:
    """A :class:`~holdfast.base.usage.Usage` as a response reports it, with the number of requests beside it."""
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
    }
