"""The conversation of a session on the server side: items in order, their audio, and where it was truncated."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from standfast.realtime.local.actions import InvalidRequest
from standfast.realtime.local.audio import CODECS, AudioCodec
from standfast.realtime.local.settings import convert

Item: TypeAlias = dict[str, Any]

MAX_ID_LENGTH = 32
MAX_AUDIO_BYTES = 16 * 2**20


@dataclass(frozen=True)
class WordTiming:
    """A word and its position in the audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass
class ConversationEntry:
    """An item with the data that frames do not carry: audio, word timings and the point of truncation."""

    item: Item
    codec: AudioCodec = CODECS["audio/pcm"]
    audio: bytearray = field(default_factory=bytearray)
    discarded_bytes: int = 0
    """The number of bytes of its audio that were discarded."""
    words: list[WordTiming] = field(default_factory=list)
    truncated_at_ms: int | None = None
    transcript: str | None = None
    """The output of the transcriber, kept even if the client does not want transcripts."""

    @property
    def id(self) -> str:
        item_id: str = self.item["id"]
        return item_id

    @property
    def audio_ms(self) -> int:
        return self.codec.get_duration_ms(self.discarded_bytes + len(self.audio))

    @property
    def text(self) -> str:
        """The text or transcript; of truncated audio only the words that ended before the truncation."""
        if self.truncated_at_ms is not None:
            return "".join(word.text for word in self.words if word.end_ms <= self.truncated_at_ms).strip()
        if self.transcript is not None:
            return self.transcript
        parts = self.item.get("content") or []
        return "\n".join(text for part in parts if (text := part.get("text") or part.get("transcript")))

    def truncate(self, audio_end_ms: int) -> None:
        """Discard the audio from there on, and the transcript, which would contain more than was played."""
        self.truncated_at_ms = audio_end_ms
        size = audio_end_ms * self.codec.bytes_per_ms
        self.discarded_bytes = min(self.discarded_bytes, size)
        del self.audio[size - self.discarded_bytes :]
        for part in self.item["content"]:
            part.pop("transcript", None)

    def discard_audio(self) -> None:
        """Discard the audio but keep its duration."""
        self.discarded_bytes += len(self.audio)
        self.audio.clear()

    def to_wire(self) -> Item:
        """Return a copy of the item for a frame, which later deltas and truncations do not change."""
        if "content" not in self.item:
            return dict(self.item)
        return {**self.item, "content": [dict(part) for part in self.item["content"]]}

    def to_wire_with_audio(self) -> Item:
        """Return the item with its audio, if none of it was discarded."""
        if self.discarded_bytes or not self.audio:
            return self.to_wire()
        audio = base64.b64encode(self.audio).decode()
        parts = [{**part, "audio": audio} if _is_audio_part(part) else dict(part) for part in self.item["content"]]
        return {**self.item, "content": parts}


class EngineConversation:
    """Items in order. A change that raises has changed nothing."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._order: list[str] = []
        self._entries: dict[str, ConversationEntry] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[ConversationEntry]:
        return (self._entries[id] for id in self._order)

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._entries

    @property
    def items(self) -> list[Item]:
        """The items as frames contain them, without audio."""
        return [entry.to_wire() for entry in self]

    @property
    def last_id(self) -> str | None:
        return self._order[-1] if self._order else None

    def get_entry(self, item_id: str, *, operation: str = "retrieve") -> ConversationEntry:
        entry = self._entries.get(item_id)
        if entry is None:
            raise InvalidRequest(
                f"item_{operation}_invalid_item_id", f"Item with item_id not found: {item_id}", param="item_id"
            )
        return entry

    def add(self, entry: ConversationEntry, *, after: str | None = None) -> str | None:
        """Insert an item after another, at the end by default, or at the front for ``root``.

        Returns the id of the item before it.
        """
        index = len(self._order)
        if after == "root":
            index = 0
        elif after is not None:
            if after not in self._entries:
                raise InvalidRequest(
                    "item_create_invalid_previous_item_id",
                    f"Previous item not found: {after}",
                    param="previous_item_id",
                )
            index = self._order.index(after) + 1
        if entry.id in self._entries:
            raise InvalidRequest("item_create_duplicate_item_id", f"Item already exists: {entry.id}", param="item.id")
        self._order.insert(index, entry.id)
        self._entries[entry.id] = entry
        return self._order[index - 1] if index else None

    def get_previous_id(self, item_id: str) -> str | None:
        """Return the id of the item before this one."""
        index = self._order.index(item_id)
        return self._order[index - 1] if index else None

    def delete(self, item_id: str) -> None:
        self.get_entry(item_id, operation="delete")
        del self._entries[item_id]
        self._order.remove(item_id)

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Truncate a spoken item to the audio that was played."""
        entry = self.get_entry(item_id, operation="truncate")
        parts = entry.item.get("content") or []
        if entry.item.get("role") != "assistant" or not any(map(_is_audio_part, parts)):
            raise InvalidRequest("invalid_value", "Only model output audio messages can be truncated", param="item_id")
        if not 0 <= content_index < len(parts):
            raise InvalidRequest("invalid_value", f"There is no content part {content_index}.", param="content_index")
        if not 0 <= audio_end_ms <= entry.audio_ms:
            raise InvalidRequest(
                "invalid_value",
                f"Audio content of {entry.audio_ms}ms is already shorter than {audio_end_ms}ms",
                param="audio_end_ms",
            )
        entry.truncate(audio_end_ms)

    def discard_old_audio(self) -> None:
        """Keep the latest ``MAX_AUDIO_BYTES`` of audio, in whole items; an hour of speech has ten times as much."""
        size = 0
        for entry in reversed(list(self)):
            size += len(entry.audio)
            if size > MAX_AUDIO_BYTES:
                entry.discard_audio()

    def has_call(self, call_id: str) -> bool:
        return any(
            entry.item["type"] == "function_call" and entry.item["call_id"] == call_id
            for entry in self._entries.values()
        )


def _is_audio_part(part: Item) -> bool:
    return part.get("type") in ("output_audio", "input_audio", "audio")


class MessageContentPart(Struct, forbid_unknown_fields=True):
    """A content part of a message that a client creates."""

    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio", "text", "audio"]
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class MessageItem(Struct, tag_field="type", tag="message", forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["user", "assistant", "system"]
    content: list[MessageContentPart]
    id: Annotated[str, Meta(max_length=MAX_ID_LENGTH)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    object: Literal["realtime.item"] | None = None
    phase: str | None = None


class FunctionCallItem(Struct, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    name: str
    arguments: str
    call_id: str | None = None
    id: Annotated[str, Meta(max_length=MAX_ID_LENGTH)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    object: Literal["realtime.item"] | None = None


class FunctionCallOutputItem(Struct, tag_field="type", tag="function_call_output", forbid_unknown_fields=True):
    call_id: str
    output: str
    id: Annotated[str, Meta(max_length=MAX_ID_LENGTH)] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    object: Literal["realtime.item"] | None = None


_PART_TYPES_BY_ROLE = {
    "user": {"input_text", "input_audio", "input_image"},
    "system": {"input_text"},
    "assistant": {"output_text", "output_audio", "text", "audio"},
}


def validate_item(item: Any, *, param_prefix: str = "item") -> Item:
    """Return a copy of an item that a client sent. Raises :class:`InvalidRequest` if it is malformed."""
    parsed = convert(item, MessageItem | FunctionCallItem | FunctionCallOutputItem, param_prefix=param_prefix)
    if isinstance(parsed, MessageItem):
        for index, part in enumerate(parsed.content):
            if part.type not in _PART_TYPES_BY_ROLE[parsed.role]:
                param = f"{param_prefix}.content[{index}].type"
                raise InvalidRequest(
                    "invalid_value", f"A {parsed.role} message cannot contain '{part.type}'.", param=param
                )
    return dict(item)
