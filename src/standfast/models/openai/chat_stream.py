"""Conversion of the chunks of a Chat Completions stream to events of the Responses API. No I/O."""

from collections.abc import Iterator
from typing import Any

from standfast.agents.tool_identity import get_field
from standfast.base.items import Item
from standfast.models.interface import to_plain
from standfast.models.openai.chat_output import (
    ToolNameResolver,
    arguments_to_json,
    get_call_data,
    get_reasoning_text,
    make_local_id,
    make_message_item,
    make_reasoning_item,
    make_withheld_items,
    usage_from_chat,
)
from standfast.models.stream_events import ResponseEvent, ResponseEventBuilder, make_text_part

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ReasoningItemBuilder:
    """Builds the reasoning item of a stream: of a summary, or with ``raw`` of the model's own text."""

    def __init__(self, builder: ResponseEventBuilder, index: int, *, raw: bool) -> None:
        self.builder, self.index, self.id, self.text = builder, index, make_local_id("rs"), ""
        self.raw, self.kind = raw, "reasoning_text" if raw else "reasoning_summary_text"
        self.thinking: list[Item] = []

    @property
    def location(self) -> Item:
        return {"item_id": self.id, "output_index": self.index, "content_index" if self.raw else "summary_index": 0}

    def add_thinking(self, blocks: list[Item]) -> None:
        """Append parts of signed blocks. A part continues the last block until that has its signature."""
        for block in blocks:
            last = self.thinking[-1] if self.thinking else None
            if last is None or last.get("signature") or last.get("type") != block.get("type"):
                self.thinking.append({name: part for name, part in block.items() if part is not None})
                continue
            last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
            if block.get("signature"):
                last["signature"] = block["signature"]

    def open(self) -> Iterator[ResponseEvent]:
        if self.raw:
            yield self.builder.make_item_added(make_reasoning_item(self.id, "", raw=True), self.index)
            return
        yield self.builder.make_item_added({"id": self.id, "type": "reasoning", "summary": []}, self.index)
        empty = {"type": "summary_text", "text": ""}
        yield self.builder.make_event("response.reasoning_summary_part.added", part=empty, **self.location)

    def write(self, delta: str) -> Iterator[ResponseEvent]:
        self.text += delta
        yield self.builder.make_event(f"response.{self.kind}.delta", delta=delta, **self.location)

    def close(self) -> Iterator[ResponseEvent]:
        part = {"type": "summary_text", "text": self.text}
        yield self.builder.make_event(f"response.{self.kind}.done", text=self.text, **self.location)
        if not self.raw:
            yield self.builder.make_event("response.reasoning_summary_part.done", part=part, **self.location)
        yield self.builder.make_item_done(self.build_item(), self.index)

    def build_item(self) -> Item:
        return make_reasoning_item(self.id, self.text, self.thinking, raw=self.raw)


class MessageItemBuilder:
    """Builds the message of a stream, with a text part, a refusal part, or both."""

    def __init__(self, builder: ResponseEventBuilder, index: int) -> None:
        self.builder, self.index, self.id = builder, index, make_local_id("msg")
        self.parts: list[Item] = []

    def open(self) -> Iterator[ResponseEvent]:
        yield self.builder.make_item_added(make_message_item(self.id, [], status="in_progress"), self.index)

    def write(self, name: str, delta: str) -> Iterator[ResponseEvent]:
        """Append to the part for ``name``, which is ``text`` or ``refusal``."""
        kind = "output_text" if name == "text" else "refusal"
        number = next((n for n, part in enumerate(self.parts) if part["type"] == kind), None)
        if number is None:
            number = len(self.parts)
            self.parts.append(make_text_part("") if name == "text" else {"type": "refusal", "refusal": ""})
            yield self.builder.make_event(
                "response.content_part.added", part=dict(self.parts[number]), **self.locate_part(number)
            )
        self.parts[number][name] += delta
        extra: Item = {"logprobs": []} if name == "text" else {}
        yield self.builder.make_event(f"response.{kind}.delta", delta=delta, **extra, **self.locate_part(number))

    def close(self) -> Iterator[ResponseEvent]:
        for number, part in enumerate(self.parts):
            location = self.locate_part(number)
            if part["type"] == "refusal":
                yield self.builder.make_event("response.refusal.done", refusal=part["refusal"], **location)
            else:
                yield self.builder.make_event("response.output_text.done", text=part["text"], logprobs=[], **location)
            yield self.builder.make_event("response.content_part.done", part=part, **location)
        yield self.builder.make_item_done(self.build_item(), self.index)

    def locate_part(self, number: int) -> Item:
        return {"item_id": self.id, "output_index": self.index, "content_index": number}

    def build_item(self) -> Item:
        return make_message_item(self.id, self.parts)


class CallItemBuilder:
    """Builds a call of a stream. Its first event is emitted when it has a name and arguments."""

    def __init__(
        self, builder: ResponseEventBuilder, index: int, resolver: ToolNameResolver, *, buffered: bool
    ) -> None:
        self.builder, self.index, self.resolver, self.buffered = builder, index, resolver, buffered
        self.id, self.call_id, self.name, self.arguments = make_local_id("fc"), "", "", ""
        self.provider_data: Item | None = None
        self.announced = False

    def write(self, call_id: str | None, name: str | None, arguments: str) -> Iterator[ResponseEvent]:
        self.call_id = self.call_id or call_id or ""
        # Some servers repeat the name in every chunk, others send the name itself in chunks.
        if name and name != self.name and not self.announced:
            self.name += name
        self.arguments += arguments
        if self.buffered or not self.arguments or not self.name:
            return
        if not self.announced:
            yield from self.announce()
            arguments = self.arguments
        if arguments:
            yield self.builder.make_event("response.function_call_arguments.delta", delta=arguments, **self.location)

    def announce(self) -> Iterator[ResponseEvent]:
        self.announced = True
        self.call_id = self.call_id or make_local_id("call")
        yield self.builder.make_item_added({**self.build_item(), "arguments": ""}, self.index)

    def close(self) -> Iterator[ResponseEvent]:
        if not self.announced:
            yield from self.announce()
            self.arguments = self.arguments or "{}"
            yield self.builder.make_event(
                "response.function_call_arguments.delta", delta=self.arguments, **self.location
            )
        item = self.build_item()
        yield self.builder.make_event(
            "response.function_call_arguments.done", arguments=self.arguments, name=item["name"], **self.location
        )
        yield self.builder.make_item_done(item, self.index)

    @property
    def location(self) -> Item:
        return {"item_id": self.id, "output_index": self.index}

    def build_item(self) -> Item:
        return self.resolver.make_call_item(
            item_id=self.id,
            call_id=self.call_id,
            name=self.name,
            arguments=self.arguments,
            provider_data=self.provider_data,
        )


class ChatStreamConverter:
    """Converts one stream: pass every chunk to :meth:`feed`, then call :meth:`finish`."""

    def __init__(self, resolver: ToolNameResolver, *, model: str, buffer_calls: bool = False) -> None:
        self.builder = ResponseEventBuilder(None, model=model)
        self.finish_reason: str | None = None
        self.usage: Any = None
        self._resolver, self._buffer_calls = resolver, buffer_calls
        self._reasoning: ReasoningItemBuilder | None = None
        self._message: MessageItemBuilder | None = None
        self._calls: dict[Any, CallItemBuilder] = {}
        self._items: list[ReasoningItemBuilder | MessageItemBuilder | CallItemBuilder] = []
        self._started = False

    def feed(self, chunk: Any) -> Iterator[ResponseEvent]:
        if not self._started:
            self._started = True
            self.builder.response["id"] = get_field(chunk, "id") or make_local_id("resp")
            self.builder.response["created_at"] = get_field(chunk, "created") or 0
            yield from self.builder.begin_response()
        self.usage = get_field(chunk, "usage") or self.usage
        for choice in get_field(chunk, "choices") or []:
            self.finish_reason = get_field(choice, "finish_reason") or self.finish_reason
            delta = get_field(choice, "delta")
            if delta is not None:
                yield from self._handle_delta(delta)

    def finish(self) -> Iterator[ResponseEvent]:
        """Yield the closing events after the last chunk."""
        for item in self._items:
            yield from item.close()
        items = [item.build_item() for item in self._items]
        if not items:
            items = make_withheld_items(self.finish_reason)
            for index, withheld in enumerate(items):
                yield self.builder.make_item_added(withheld, index)
                yield self.builder.make_item_done(withheld, index)
        reason = INCOMPLETE_REASONS.get(self.finish_reason or "")
        yield self.builder.end_response(
            items,
            usage=usage_from_chat(self.usage),
            status="completed" if reason is None else "incomplete",
            **({} if reason is None else {"incomplete_details": {"reason": reason}}),
        )

    def _handle_delta(self, delta: Any) -> Iterator[ResponseEvent]:
        (reasoning, raw), thinking = get_reasoning_text(delta), to_plain(get_field(delta, "thinking_blocks"))
        if reasoning or thinking:
            if self._reasoning is None:
                self._reasoning = ReasoningItemBuilder(self.builder, self._next_index(), raw=raw)
                self._items.append(self._reasoning)
                yield from self._reasoning.open()
            self._reasoning.add_thinking(thinking or [])
            if reasoning:
                yield from self._reasoning.write(reasoning)
        for name, text in (("text", get_field(delta, "content")), ("refusal", get_field(delta, "refusal"))):
            if text:
                if self._message is None:
                    self._message = MessageItemBuilder(self.builder, self._next_index())
                    self._items.append(self._message)
                    yield from self._message.open()
                yield from self._message.write(name, text)
        for call in get_field(delta, "tool_calls") or []:
            yield from self._handle_call_delta(call)

    def _handle_call_delta(self, delta: Any) -> Iterator[ResponseEvent]:
        function = get_field(delta, "function")
        call_id, index = get_field(delta, "id"), get_field(delta, "index")
        key = index if index is not None else call_id or next(reversed(self._calls), 0)
        if key not in self._calls:
            self._calls[key] = CallItemBuilder(
                self.builder, self._next_index(), self._resolver, buffered=self._buffer_calls
            )
            self._items.append(self._calls[key])
        self._calls[key].provider_data = get_call_data(delta) or self._calls[key].provider_data
        arguments = get_field(function, "arguments") if function is not None else None
        name = get_field(function, "name") if function is not None else None
        yield from self._calls[key].write(call_id, name, arguments_to_json(arguments) if arguments else "")

    def _next_index(self) -> int:
        return len(self._items)
