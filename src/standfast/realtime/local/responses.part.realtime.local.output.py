"""The items of one response, and the frames in which they come into being."""

import base64
from collections.abc import Callable
from typing import Any

from holdfast.realtime.local.audio import AudioCodec
from holdfast.realtime.local.conversation import ConversationEntry, EngineConversation, Item, WordTiming
from holdfast.realtime.local.outbox import Outbox

ARGUMENTS_CHUNK_SIZE = 64


class ResponseOutput:
    """Tells of items piece by piece. At most one message is open at a time; it is always the last item."""

    def __init__(
        self,
        response_id: str,
        *,
        codec: AudioCodec,
        conversation: EngineConversation | None,
        outbox: Outbox,
        new_id: Callable[[str], str],
    ) -> None:
        self.entries: list[ConversationEntry] = []
        self._response_id, self._codec, self._conversation = response_id, codec, conversation
        self._emit, self._new_id = outbox.emit, new_id
        self._open_entry: ConversationEntry | None = None

    def add_text(self, text: str) -> None:
        entry = self._get_open_message("output_text", "text")
        entry.item["content"][0]["text"] += text
        self._emit("response.output_text.delta", **self._part_location(entry), delta=text)

    def add_word(self, word: str, duration_ms: int) -> None:
        """A word that is going to be heard next, and how long it takes."""
        entry = self._get_open_message("output_audio", "transcript")
        if entry.truncated_at_ms is None:
            entry.item["content"][0]["transcript"] += word
            entry.words.append(WordTiming(word, entry.audio_ms, entry.audio_ms + duration_ms))
        self._emit("response.output_audio_transcript.delta", **self._part_location(entry), delta=word)

    def add_audio(self, audio: bytes) -> None:
        entry = self._get_open_message("output_audio", "transcript")
        if entry.truncated_at_ms is None:
            entry.audio += audio
        delta = base64.b64encode(audio).decode()
        self._emit("response.output_audio.delta", **self._part_location(entry), delta=delta)

    def add_call(self, name: str, arguments: str, call_id: str) -> None:
        """A whole function call."""
        self.close("completed")
        entry = self._add_item({"type": "function_call", "name": name, "call_id": call_id, "arguments": ""})
        where = {**self._item_location(), "item_id": entry.id, "call_id": call_id}
        for start in range(0, len(arguments), ARGUMENTS_CHUNK_SIZE):
            delta = arguments[start : start + ARGUMENTS_CHUNK_SIZE]
            self._emit("response.function_call_arguments.delta", **where, delta=delta)
        entry.item["arguments"] = arguments
        self._emit("response.function_call_arguments.done", **where, name=name, arguments=arguments)
        self._finish_item(entry, "completed")

    def close(self, status: str) -> None:
        """End the message that is open, if there is one."""
        entry, self._open_entry = self._open_entry, None
        if entry is None:
            return
        where, part = self._part_location(entry), entry.item["content"][0]
        if part["type"] == "output_audio":
            self._emit("response.output_audio.done", **where)
            said = "".join(word.text for word in entry.words)
            self._emit("response.output_audio_transcript.done", **where, transcript=said)
        else:
            self._emit("response.output_text.done", **where, text=part["text"])
        self._emit("response.content_part.done", **where, part=_part_to_wire(part))
        self._finish_item(entry, status)

    def _get_open_message(self, part_type: str, text_key: str) -> ConversationEntry:
        if self._open_entry is None:
            self._open_entry = self._add_item({"type": "message", "role": "assistant", "content": []})
            self._open_entry.item["content"] = [{"type": part_type, text_key: ""}]
            self._emit(
                "response.content_part.added",
                **self._part_location(self._open_entry),
                part=_part_to_wire({"type": part_type, text_key: ""}),
            )
        return self._open_entry

    def _add_item(self, item: Item) -> ConversationEntry:
        named = {"id": self._new_id("item"), "object": "realtime.item", **item, "status": "in_progress"}
        entry = ConversationEntry(named, self._codec)
        self.entries.append(entry)
        self._emit("response.output_item.added", **self._item_location(), item=dict(named))
        if self._conversation is not None:
            previous = self._conversation.add(entry)
            self._emit("conversation.item.added", previous_item_id=previous, item=dict(named))
        return entry

    def _finish_item(self, entry: ConversationEntry, status: str) -> None:
        entry.item["status"] = status
        shown = entry.to_wire()
        self._emit("response.output_item.done", **self._item_location(), item=shown)
        if self._conversation is not None and entry.id in self._conversation:
            previous = self._conversation.get_previous_id(entry.id)
            self._emit("conversation.item.done", previous_item_id=previous, item=shown)

    def _item_location(self) -> dict[str, Any]:
        """The place of the last item."""
        return {"response_id": self._response_id, "output_index": len(self.entries) - 1}

    def _part_location(self, entry: ConversationEntry) -> dict[str, Any]:
        """The place of the one part of a message."""
        return {**self._item_location(), "item_id": entry.id, "content_index": 0}


def _part_to_wire(part: Item) -> Item:
    """A part in a frame of its own is called ``audio`` or ``text``, other than in its item."""
    return {**part, "type": part["type"].removeprefix("output_")}
