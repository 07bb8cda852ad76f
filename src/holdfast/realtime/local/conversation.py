"""What a server remembers of a conversation: items in their order, their audio, and how much of it was heard."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from holdfast.realtime.local.audio import FORMATS, Format
from holdfast.realtime.local.outbox import Refused
from holdfast.realtime.local.settings import converted

Item: TypeAlias = dict[str, Any]

LONGEST_ID = 32
MOST_AUDIO = 16 * 2**20


@dataclass(frozen=True)
class Spoken:
    """A word and where it lies in the audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass
class Entry:
    """An item with what does not travel in every frame: its audio, its words, and where it was cut."""

    item: Item
    format: Format = FORMATS["audio/pcm"]
    audio: bytearray = field(default_factory=bytearray)
    forgotten: int = 0
    """How many bytes of its audio are not kept any more."""
    words: list[Spoken] = field(default_factory=list)
    cut_ms: int | None = None
    said: str | None = None
    """What a recogniser understood, whether the client wants transcripts or not."""

    @property
    def id(self) -> str:
        found: str = self.item["id"]
        return found

    @property
    def audio_ms(self) -> int:
        return self.format.milliseconds(self.forgotten + len(self.audio))

    @property
    def text(self) -> str:
        """What was written or said, as far as it was heard: of audio that was cut, the words that ended before."""
        if self.cut_ms is not None:
            return "".join(word.text for word in self.words if word.end_ms <= self.cut_ms).strip()
        if self.said is not None:
            return self.said
        parts = self.item.get("content") or []
        return "\n".join(found for part in parts if (found := part.get("text") or part.get("transcript")))

    def cut(self, audio_end_ms: int) -> None:
        """Forget the audio from there on, and the transcript: it would tell more than was heard."""
        self.cut_ms = audio_end_ms
        size = audio_end_ms * self.format.bytes_per_ms
        self.forgotten = min(self.forgotten, size)
        del self.audio[size - self.forgotten :]
        for part in self.item["content"]:
            part.pop("transcript", None)

    def forget_audio(self) -> None:
        """Keep of the audio only how long it was."""
        self.forgotten += len(self.audio)
        self.audio.clear()

    def shown(self) -> Item:
        """The item as a frame carries it: a copy that later deltas and cuts do not change."""
        if "content" not in self.item:
            return dict(self.item)
        return {**self.item, "content": [dict(part) for part in self.item["content"]]}

    def whole(self) -> Item:
        """The item with its audio in it, if all of that is there."""
        if self.forgotten or not self.audio:
            return self.shown()
        audio = base64.b64encode(self.audio).decode()
        parts = [{**part, "audio": audio} if _is_audio(part) else dict(part) for part in self.item["content"]]
        return {**self.item, "content": parts}


class Conversation:
    """Items in order. Every change is refused whole or made whole."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._order: list[str] = []
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Entry]:
        return (self._entries[id] for id in self._order)

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._entries

    @property
    def items(self) -> list[Item]:
        """The items as the wire shows them, without audio."""
        return [entry.shown() for entry in self]

    @property
    def last_id(self) -> str | None:
        return self._order[-1] if self._order else None

    def find(self, item_id: str, *, doing: str = "retrieve") -> Entry:
        found = self._entries.get(item_id)
        if found is None:
            raise Refused(f"item_{doing}_invalid_item_id", f"Item with item_id not found: {item_id}", param="item_id")
        return found

    def add(self, entry: Entry, *, after: str | None = None) -> str | None:
        """Put an item behind another (at the end, unless told; ``root`` is the front) and name the one before it."""
        place = len(self._order)
        if after == "root":
            place = 0
        elif after is not None:
            if after not in self._entries:
                raise Refused(
                    "item_create_invalid_previous_item_id",
                    f"Previous item not found: {after}",
                    param="previous_item_id",
                )
            place = self._order.index(after) + 1
        if entry.id in self._entries:
            raise Refused("item_create_duplicate_item_id", f"Item already exists: {entry.id}", param="item.id")
        self._order.insert(place, entry.id)
        self._entries[entry.id] = entry
        return self._order[place - 1] if place else None

    def before(self, item_id: str) -> str | None:
        """The item in front of this one."""
        place = self._order.index(item_id)
        return self._order[place - 1] if place else None

    def delete(self, item_id: str) -> None:
        self.find(item_id, doing="delete")
        del self._entries[item_id]
        self._order.remove(item_id)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Keep of a spoken item only what was heard."""
        entry = self.find(item_id, doing="truncate")
        parts = entry.item.get("content") or []
        if entry.item.get("role") != "assistant" or not any(map(_is_audio, parts)):
            raise Refused("invalid_value", "Only model output audio messages can be truncated", param="item_id")
        if not 0 <= content_index < len(parts):
            raise Refused("invalid_value", f"There is no content part {content_index}.", param="content_index")
        if not 0 <= audio_end_ms <= entry.audio_ms:
            raise Refused(
                "invalid_value",
                f"Audio content of {entry.audio_ms}ms is already shorter than {audio_end_ms}ms",
                param="audio_end_ms",
            )
        entry.cut(audio_end_ms)

    def forget_old_audio(self) -> None:
        """Keep the latest ``MOST_AUDIO`` bytes, in whole items: a call of an hour would take ten times as much."""
        kept = 0
        for entry in reversed(list(self)):
            kept += len(entry.audio)
            if kept > MOST_AUDIO:
                entry.forget_audio()

    def has_call(self, call_id: str) -> bool:
        return any(
            entry.item["type"] == "function_call" and entry.item["call_id"] == call_id
            for entry in self._entries.values()
        )


def _is_audio(part: Item) -> bool:
    return part.get("type") in ("output_audio", "input_audio", "audio")


class Part(Struct, forbid_unknown_fields=True):
    """A part of a message that a client may write."""

    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio", "text", "audio"]
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class Message(Struct, tag_field="type", tag="message", forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["user", "assistant", "system"]
    content: list[Part]
    id: Annotated[str, Meta(max_length=LONGEST_ID)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    object: Literal["realtime.item"] | None = None
    phase: str | None = None


class FunctionCall(Struct, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    name: str
    arguments: str
    call_id: str | None = None
    id: Annotated[str, Meta(max_length=LONGEST_ID)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    object: Literal["realtime.item"] | None = None


class FunctionCallOutput(Struct, tag_field="type", tag="function_call_output", forbid_unknown_fields=True):
    call_id: str
    output: str
    id: Annotated[str, Meta(max_length=LONGEST_ID)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    object: Literal["realtime.item"] | None = None


_PARTS_OF = {
    "user": {"input_text", "input_audio", "input_image"},
    "system": {"input_text"},
    "assistant": {"output_text", "output_audio", "text", "audio"},
}


def checked_item(item: Any, *, where: str = "item") -> Item:
    """An item as a client wrote it, or :class:`Refused`."""
    found = converted(item, Message | FunctionCall | FunctionCallOutput, where=where)
    if isinstance(found, Message):
        for index, part in enumerate(found.content):
            if part.type not in _PARTS_OF[found.role]:
                param = f"{where}.content[{index}].type"
                raise Refused("invalid_value", f"A {found.role} message cannot have '{part.type}' in it.", param=param)
    return dict(item)
