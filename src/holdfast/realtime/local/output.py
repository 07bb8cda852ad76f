"""The items of one response, and the frames in which they come into being."""

import base64
from collections.abc import Callable
from typing import Any

from holdfast.realtime.local.audio import Format
from holdfast.realtime.local.conversation import Conversation, Entry, Item, Spoken
from holdfast.realtime.local.outbox import Outbox

ARGUMENTS_AT_ONCE = 64


class Output:
    """Tells of items piece by piece. At most one message is open at a time; it is always the last item."""

    def __init__(
        self,
        response_id: str,
        *,
        format: Format,
        conversation: Conversation | None,
        outbox: Outbox,
        new_id: Callable[[str], str],
    ) -> None:
        self.entries: list[Entry] = []
        self._response_id, self._format, self._conversation = response_id, format, conversation
        self._tell, self._new_id = outbox.tell, new_id
        self._open: Entry | None = None

    def text(self, text: str) -> None:
        entry = self._message("output_text", "text")
        entry.item["content"][0]["text"] += text
        self._tell("response.output_text.delta", **self._where(entry), delta=text)

    def word(self, word: str, length_ms: int) -> None:
        """A word that is going to be heard next, and how long it takes."""
        entry = self._message("output_audio", "transcript")
        if entry.cut_ms is None:
            entry.item["content"][0]["transcript"] += word
            entry.words.append(Spoken(word, entry.audio_ms, entry.audio_ms + length_ms))
        self._tell("response.output_audio_transcript.delta", **self._where(entry), delta=word)

    def audio(self, audio: bytes) -> None:
        entry = self._message("output_audio", "transcript")
        if entry.cut_ms is None:
            entry.audio += audio
        delta = base64.b64encode(audio).decode()
        self._tell("response.output_audio.delta", **self._where(entry), delta=delta)

    def call(self, name: str, arguments: str, call_id: str) -> None:
        """A whole function call."""
        self.close("completed")
        entry = self._add({"type": "function_call", "name": name, "call_id": call_id, "arguments": ""})
        where = {**self._at(), "item_id": entry.id, "call_id": call_id}
        for start in range(0, len(arguments), ARGUMENTS_AT_ONCE):
            delta = arguments[start : start + ARGUMENTS_AT_ONCE]
            self._tell("response.function_call_arguments.delta", **where, delta=delta)
        entry.item["arguments"] = arguments
        self._tell("response.function_call_arguments.done", **where, name=name, arguments=arguments)
        self._done(entry, "completed")

    def close(self, status: str) -> None:
        """End the message that is open, if there is one."""
        entry, self._open = self._open, None
        if entry is None:
            return
        where, part = self._where(entry), entry.item["content"][0]
        if part["type"] == "output_audio":
            self._tell("response.output_audio.done", **where)
            said = "".join(word.text for word in entry.words)
            self._tell("response.output_audio_transcript.done", **where, transcript=said)
        else:
            self._tell("response.output_text.done", **where, text=part["text"])
        self._tell("response.content_part.done", **where, part=_part(part))
        self._done(entry, status)

    def _message(self, part: str, says: str) -> Entry:
        if self._open is None:
            self._open = self._add({"type": "message", "role": "assistant", "content": []})
            self._open.item["content"] = [{"type": part, says: ""}]
            self._tell("response.content_part.added", **self._where(self._open), part=_part({"type": part, says: ""}))
        return self._open

    def _add(self, item: Item) -> Entry:
        named = {"id": self._new_id("item"), "object": "realtime.item", **item, "status": "in_progress"}
        entry = Entry(named, self._format)
        self.entries.append(entry)
        self._tell("response.output_item.added", **self._at(), item=dict(named))
        if self._conversation is not None:
            previous = self._conversation.add(entry)
            self._tell("conversation.item.added", previous_item_id=previous, item=dict(named))
        return entry

    def _done(self, entry: Entry, status: str) -> None:
        entry.item["status"] = status
        shown = entry.shown()
        self._tell("response.output_item.done", **self._at(), item=shown)
        if self._conversation is not None and entry.id in self._conversation:
            previous = self._conversation.before(entry.id)
            self._tell("conversation.item.done", previous_item_id=previous, item=shown)

    def _at(self) -> dict[str, Any]:
        """The place of the last item."""
        return {"response_id": self._response_id, "output_index": len(self.entries) - 1}

    def _where(self, entry: Entry) -> dict[str, Any]:
        """The place of the one part of a message."""
        return {**self._at(), "item_id": entry.id, "content_index": 0}


def _part(part: Item) -> Item:
    """A part in a frame of its own is called ``audio`` or ``text``, other than in its item."""
    return {**part, "type": part["type"].removeprefix("output_")}
