"""Chunks of the Chat Completions API as events of the Responses API. No I/O: chunks in, events out."""

from collections.abc import Iterator
from typing import Any

from holdfast.agents.tool_refs import part_of
from holdfast.base.items import Item
from holdfast.models.events import Event, EventLog, text_part
from holdfast.models.openai_chat_items import (
    Names,
    arguments_text,
    chat_usage,
    made_up,
    message_item,
    reasoning_item,
    thought_in,
)

CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Thought:
    """The reasoning item while it is being written."""

    def __init__(self, log: EventLog, index: int) -> None:
        self.log, self.index, self.id, self.text = log, index, made_up("rs"), ""

    @property
    def where(self) -> Item:
        return {"item_id": self.id, "output_index": self.index, "summary_index": 0}

    def open(self) -> Iterator[Event]:
        yield self.log.added({"id": self.id, "type": "reasoning", "summary": []}, self.index)
        empty = {"type": "summary_text", "text": ""}
        yield self.log.event("response.reasoning_summary_part.added", part=empty, **self.where)

    def write(self, delta: str) -> Iterator[Event]:
        self.text += delta
        yield self.log.event("response.reasoning_summary_text.delta", delta=delta, **self.where)

    def close(self) -> Iterator[Event]:
        part = {"type": "summary_text", "text": self.text}
        yield self.log.event("response.reasoning_summary_text.done", text=self.text, **self.where)
        yield self.log.event("response.reasoning_summary_part.done", part=part, **self.where)
        yield self.log.done(self.item(), self.index)

    def item(self) -> Item:
        return reasoning_item(self.id, self.text)


class Words:
    """The message while it is being written: a part of text, a part of refusal, or one after the other."""

    def __init__(self, log: EventLog, index: int) -> None:
        self.log, self.index, self.id = log, index, made_up("msg")
        self.parts: list[Item] = []

    def open(self) -> Iterator[Event]:
        yield self.log.added(message_item(self.id, [], status="in_progress"), self.index)

    def write(self, name: str, delta: str) -> Iterator[Event]:
        """``name`` is ``text`` or ``refusal``."""
        kind = "output_text" if name == "text" else "refusal"
        number = next((n for n, part in enumerate(self.parts) if part["type"] == kind), None)
        if number is None:
            number = len(self.parts)
            self.parts.append(text_part("") if name == "text" else {"type": "refusal", "refusal": ""})
            yield self.log.event("response.content_part.added", part=dict(self.parts[number]), **self.where(number))
        self.parts[number][name] += delta
        more: Item = {"logprobs": []} if name == "text" else {}
        yield self.log.event(f"response.{kind}.delta", delta=delta, **more, **self.where(number))

    def close(self) -> Iterator[Event]:
        for number, part in enumerate(self.parts):
            where = self.where(number)
            if part["type"] == "refusal":
                yield self.log.event("response.refusal.done", refusal=part["refusal"], **where)
            else:
                yield self.log.event("response.output_text.done", text=part["text"], logprobs=[], **where)
            yield self.log.event("response.content_part.done", part=part, **where)
        yield self.log.done(self.item(), self.index)

    def where(self, number: int) -> Item:
        return {"item_id": self.id, "output_index": self.index, "content_index": number}

    def item(self) -> Item:
        return message_item(self.id, self.parts)


class Call:
    """A call while it is being written. It is announced as soon as it has a name."""

    def __init__(self, log: EventLog, index: int, names: Names, *, silent: bool) -> None:
        self.log, self.index, self.names, self.silent = log, index, names, silent
        self.id, self.call_id, self.name, self.arguments = made_up("fc"), "", "", ""
        self.announced = False

    def write(self, call_id: str | None, name: str | None, arguments: str) -> Iterator[Event]:
        self.call_id = self.call_id or call_id or ""
        # Some servers repeat the name with every piece, some send the name itself in pieces.
        if name and name != self.name and not self.announced:
            self.name += name
        self.arguments += arguments
        if self.silent or not self.arguments or not self.name:
            return
        if not self.announced:
            yield from self.announce()
            arguments = self.arguments
        if arguments:
            yield self.log.event("response.function_call_arguments.delta", delta=arguments, **self.where)

    def announce(self) -> Iterator[Event]:
        self.announced = True
        self.call_id = self.call_id or made_up("call")
        yield self.log.added({**self.item(), "arguments": "", "status": "in_progress"}, self.index)

    def close(self) -> Iterator[Event]:
        if not self.announced:
            yield from self.announce()
            self.arguments = self.arguments or "{}"
            yield self.log.event("response.function_call_arguments.delta", delta=self.arguments, **self.where)
        item = self.item()
        yield self.log.event(
            "response.function_call_arguments.done", arguments=self.arguments, name=item["name"], **self.where
        )
        yield self.log.done(item, self.index)

    @property
    def where(self) -> Item:
        return {"item_id": self.id, "output_index": self.index}

    def item(self) -> Item:
        return self.names.call(item_id=self.id, call_id=self.call_id, name=self.name, arguments=self.arguments)


class ChatStream:
    """One answer. ``feed`` it every chunk, then take the ``end``."""

    def __init__(self, names: Names, *, model: str, buffer_calls: bool = False) -> None:
        self.log = EventLog(None, model=model)
        self.finish_reason: str | None = None
        self.usage: Any = None
        self._names, self._silent = names, buffer_calls
        self._thought: Thought | None = None
        self._words: Words | None = None
        self._calls: dict[Any, Call] = {}
        self._items: list[Thought | Words | Call] = []
        self._begun = False

    def feed(self, chunk: Any) -> Iterator[Event]:
        if not self._begun:
            self._begun = True
            self.log.response["id"] = part_of(chunk, "id") or made_up("resp")
            self.log.response["created_at"] = part_of(chunk, "created") or 0
            yield from self.log.begin()
        self.usage = part_of(chunk, "usage") or self.usage
        for choice in part_of(chunk, "choices") or []:
            self.finish_reason = part_of(choice, "finish_reason") or self.finish_reason
            delta = part_of(choice, "delta")
            if delta is not None:
                yield from self._delta(delta)

    def end(self) -> Iterator[Event]:
        """What is left to say when there are no more chunks."""
        for item in self._items:
            yield from item.close()
        reason = CUT_SHORT.get(self.finish_reason or "")
        yield self.log.end(
            [item.item() for item in self._items],
            usage=chat_usage(self.usage),
            status="completed" if reason is None else "incomplete",
            **({} if reason is None else {"incomplete_details": {"reason": reason}}),
        )

    def _delta(self, delta: Any) -> Iterator[Event]:
        thought = thought_in(delta)
        if thought:
            if self._thought is None:
                self._thought = Thought(self.log, self._next())
                self._items.append(self._thought)
                yield from self._thought.open()
            yield from self._thought.write(thought)
        for name, text in (("text", part_of(delta, "content")), ("refusal", part_of(delta, "refusal"))):
            if text:
                if self._words is None:
                    self._words = Words(self.log, self._next())
                    self._items.append(self._words)
                    yield from self._words.open()
                yield from self._words.write(name, text)
        for piece in part_of(delta, "tool_calls") or []:
            yield from self._piece(piece)

    def _piece(self, piece: Any) -> Iterator[Event]:
        function = part_of(piece, "function")
        call_id, index = part_of(piece, "id"), part_of(piece, "index")
        key = index if index is not None else call_id or next(reversed(self._calls), 0)
        if key not in self._calls:
            self._calls[key] = Call(self.log, self._next(), self._names, silent=self._silent)
            self._items.append(self._calls[key])
        arguments = part_of(function, "arguments") if function is not None else None
        name = part_of(function, "name") if function is not None else None
        yield from self._calls[key].write(call_id, name, arguments_text(arguments) if arguments else "")

    def _next(self) -> int:
        return len(self._items)
