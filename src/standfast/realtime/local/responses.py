"""One answer being given, at the pace of speech, from ``response.created`` to ``response.done``."""

import base64
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from standfast.realtime.local.actions import CancelGeneration, Outbox
from standfast.realtime.local.audio import AudioCodec
from standfast.realtime.local.conversation import ConversationEntry, EngineConversation, Item, WordTiming
from standfast.realtime.local.settings import EngineSessionSettings, settings_to_wire

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


ResponseStatus: TypeAlias = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]

CHUNK_MS = 100  # the longest piece of audio in one frame, and so what an interruption can be late by


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Something to tell, and for how long the wire is then busy."""

    emit: Callable[[], None]
    queued_at: float
    duration: float = 0.0


class EngineResponse:
    """Takes what the brain says, in pieces, and tells the client of each when its time has come.

    ``pace`` is how many seconds of audio may be told in a second; ``None`` tells everything at once. ``context`` is
    what the brain is shown: the conversation as it was, or the input that the client chose for this response.
    """

    def __init__(
        self,
        id: str,
        *,
        settings: EngineSessionSettings,
        conversation: EngineConversation | None,
        context: list[ConversationEntry],
        outbox: Outbox,
        new_id: Callable[[str], str],
        started_at: float,
        metadata: dict[str, str] | None = None,
        pace: float | None = None,
    ) -> None:
        self.id, self.settings, self.context, self.metadata = id, settings, context, metadata
        self.started_at = started_at
        self.status: ResponseStatus = "in_progress"
        self.has_audio_output = settings.output_modalities == ["audio"]
        self._conversation, self._outbox, self._new_id, self._pace = conversation, outbox, new_id, pace
        self._output = ResponseOutput(
            id, codec=settings.output_codec, conversation=conversation, outbox=outbox, new_id=new_id
        )
        self._chunks: deque[OutputChunk] = deque()
        self._next_send_at = float("-inf")
        self._finished = False
        self._details: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        return self.status != "in_progress"

    @property
    def in_conversation(self) -> bool:
        return self._conversation is not None

    @property
    def audio_ms(self) -> int:
        """How much audio was told so far, as far as nobody cut it."""
        return sum(entry.audio_ms for entry in self._output.entries)

    @property
    def deadline(self) -> float | None:
        """When there is something to tell next."""
        return max(self._next_send_at, self._chunks[0].queued_at) if self._chunks else None

    def start(self) -> None:
        self._outbox.emit("response.created", response=self.to_wire())

    def add_text(self, text: str, now: float) -> None:
        self._enqueue(OutputChunk(lambda: self._output.add_text(text), now))

    def add_word(self, word: str, pcm: bytes, now: float) -> None:
        """A word and its audio, in the engine's own format."""
        format = self.settings.output_codec
        audio = format.from_pcm(pcm)
        self._enqueue(OutputChunk(lambda: self._output.add_word(word, format.get_duration_ms(len(audio))), now))
        size = CHUNK_MS * format.bytes_per_ms
        for start in range(0, len(audio), size):
            self._enqueue(self._make_audio_chunk(audio[start : start + size], now))

    def add_call(self, name: str, arguments: str, now: float, *, call_id: str | None = None) -> None:
        known = call_id or self._new_id("call")
        self._enqueue(OutputChunk(lambda: self._output.add_call(name, arguments, known), now))

    def finish(self, now: float) -> None:
        """The brain has nothing more to say."""
        self._finished = True
        self.advance(now)

    def fail(self, code: str, message: str) -> None:
        error = {"type": "server_error", "code": code, "message": message}
        self.end("failed", {"type": "failed", "error": error})

    def cancel(self, reason: str) -> None:
        self.end("cancelled", {"type": "cancelled", "reason": reason})

    def advance(self, now: float) -> None:
        """Tell what is due. Ends the response when everything was told and the brain has finished."""
        while (due := self.deadline) is not None and due <= now:
            piece = self._chunks.popleft()
            piece.emit()
            if self._pace is not None:
                self._next_send_at = due + piece.duration / self._pace
            self._enforce_token_limit()
        if self._finished and not self._chunks:
            self.end("completed", None)

    def end(self, status: ResponseStatus, details: dict[str, Any] | None) -> None:
        """Close what is open and say how it ended. Nothing more is told afterwards."""
        if self.ended:
            return
        self._chunks.clear()
        self._output.close("completed" if status == "completed" else "incomplete")
        self.status, self._details = status, details
        self._usage = build_usage(self.context, self._output.entries, self.settings.instructions)
        self._outbox.emit("response.done", response=self.to_wire())
        if not self._finished:
            self._outbox.add_action(CancelGeneration(self.id))

    def to_wire(self) -> dict[str, Any]:
        """The response as the wire shows it."""
        settings = settings_to_wire(self.settings)
        speech = settings["audio"]["output"]
        voice = speech["voice"] if isinstance(speech["voice"], str) else speech["voice"]["id"]
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": self.status,
            "status_details": self._details,
            "output": [entry.to_wire() for entry in self._output.entries],
            "conversation_id": None if self._conversation is None else self._conversation.id,
            "output_modalities": settings["output_modalities"],
            "max_output_tokens": settings["max_output_tokens"],
            "audio": {"output": {"format": speech["format"], "voice": voice}},
            "usage": self._usage,
            "metadata": self.metadata,
        }

    def _make_audio_chunk(self, audio: bytes, now: float) -> OutputChunk:
        seconds = len(audio) / self.settings.output_codec.bytes_per_ms / 1000
        return OutputChunk(lambda: self._output.add_audio(audio), now, seconds)

    def _enqueue(self, chunk: OutputChunk) -> None:
        if not self.ended:
            self._chunks.append(chunk)
            self.advance(chunk.queued_at)

    def _enforce_token_limit(self) -> None:
        limit = self.settings.max_output_tokens
        if limit == "inf":
            return
        written = sum(count_text_tokens(entry.text) for entry in self._output.entries)
        if written + count_output_audio_tokens(self.audio_ms) > limit:
            self.end("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})


def count_text_tokens(text: str) -> int:
    return -(-len(text) // 4)


def count_output_audio_tokens(audio_ms: int) -> int:
    return -(-audio_ms // 50)


def count_input_audio_tokens(audio_ms: int) -> int:
    return -(-audio_ms // 100)


def build_usage(
    context: Iterable[ConversationEntry], output: Iterable[ConversationEntry], instructions: str
) -> dict[str, Any]:
    """What a response consumed, as ``response.done`` reports it."""
    text_in, audio_in = count_text_tokens(instructions), 0
    for entry in context:
        text_in += _count_entry_text_tokens(entry)
        count = count_output_audio_tokens if entry.item.get("role") == "assistant" else count_input_audio_tokens
        audio_in += count(entry.audio_ms)
    spoken = list(output)
    text_out = sum(map(_count_entry_text_tokens, spoken))
    audio_out = sum(count_output_audio_tokens(entry.audio_ms) for entry in spoken)
    cached = {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0}
    return {
        "total_tokens": text_in + audio_in + text_out + audio_out,
        "input_tokens": text_in + audio_in,
        "output_tokens": text_out + audio_out,
        "input_token_details": {
            "text_tokens": text_in,
            "audio_tokens": audio_in,
            "image_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": cached,
        },
        "output_token_details": {"text_tokens": text_out, "audio_tokens": audio_out},
    }


def _count_entry_text_tokens(entry: ConversationEntry) -> int:
    parts = (entry.item.get("arguments"), entry.item.get("output"))
    return count_text_tokens(entry.text) + sum(count_text_tokens(part) for part in parts if isinstance(part, str))
