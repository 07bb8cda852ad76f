"""Responses of the engine: output sent at the pace of speech from ``response.created`` to ``response.done``."""

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
    """Emits the items of a response as deltas. At most one message is open at a time, always the last item."""

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
        """Add the transcript of a word whose audio follows."""
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
        """Add a complete function call."""
        self.close("completed")
        entry = self._add_item({"type": "function_call", "name": name, "call_id": call_id, "arguments": ""})
        location = {**self._item_location(), "item_id": entry.id, "call_id": call_id}
        for start in range(0, len(arguments), ARGUMENTS_CHUNK_SIZE):
            delta = arguments[start : start + ARGUMENTS_CHUNK_SIZE]
            self._emit("response.function_call_arguments.delta", **location, delta=delta)
        entry.item["arguments"] = arguments
        self._emit("response.function_call_arguments.done", **location, name=name, arguments=arguments)
        self._finish_item(entry, "completed")

    def close(self, status: str) -> None:
        """Close the open message, if there is one."""
        entry, self._open_entry = self._open_entry, None
        if entry is None:
            return
        location, part = self._part_location(entry), entry.item["content"][0]
        if part["type"] == "output_audio":
            self._emit("response.output_audio.done", **location)
            transcript = "".join(word.text for word in entry.words)
            self._emit("response.output_audio_transcript.done", **location, transcript=transcript)
        else:
            self._emit("response.output_text.done", **location, text=part["text"])
        self._emit("response.content_part.done", **location, part=_part_to_wire(part))
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
        started = {"id": self._new_id("item"), "object": "realtime.item", **item, "status": "in_progress"}
        entry = ConversationEntry(started, self._codec)
        self.entries.append(entry)
        self._emit("response.output_item.added", **self._item_location(), item=dict(started))
        if self._conversation is not None:
            previous = self._conversation.add(entry)
            self._emit("conversation.item.added", previous_item_id=previous, item=dict(started))
        return entry

    def _finish_item(self, entry: ConversationEntry, status: str) -> None:
        entry.item["status"] = status
        item = entry.to_wire()
        self._emit("response.output_item.done", **self._item_location(), item=item)
        if self._conversation is not None and entry.id in self._conversation:
            previous = self._conversation.get_previous_id(entry.id)
            self._emit("conversation.item.done", previous_item_id=previous, item=item)

    def _item_location(self) -> dict[str, Any]:
        """Return the fields that locate the last item."""
        return {"response_id": self._response_id, "output_index": len(self.entries) - 1}

    def _part_location(self, entry: ConversationEntry) -> dict[str, Any]:
        """Return the fields that locate the only content part of a message."""
        return {**self._item_location(), "item_id": entry.id, "content_index": 0}


def _part_to_wire(part: Item) -> Item:
    """Return a content part for its own frame, where its type is ``audio`` or ``text`` without ``output_``."""
    return {**part, "type": part["type"].removeprefix("output_")}


ResponseStatus: TypeAlias = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]

CHUNK_MS = 100  # the longest audio in one frame, and so the longest delay of an interruption


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Output to emit, and the seconds of audio that it contains."""

    emit: Callable[[], None]
    queued_at: float
    duration: float = 0.0


class EngineResponse:
    """Queues the output of the responder and sends each chunk when it is due.

    ``pace`` is the number of seconds of audio sent per second; ``None`` sends everything at once. ``context`` is the
    input of the responder: the conversation at the start, or the ``input`` that the client chose for this response.
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
        """The milliseconds of audio sent so far, without truncated audio."""
        return sum(entry.audio_ms for entry in self._output.entries)

    @property
    def deadline(self) -> float | None:
        """When the next chunk is due; ``None`` without one."""
        return max(self._next_send_at, self._chunks[0].queued_at) if self._chunks else None

    def start(self) -> None:
        self._outbox.emit("response.created", response=self.to_wire())

    def add_text(self, text: str, now: float) -> None:
        self._enqueue(OutputChunk(lambda: self._output.add_text(text), now))

    def add_word(self, word: str, pcm: bytes, now: float) -> None:
        """Add a word and its audio, 16-bit mono PCM at 24 kHz."""
        codec = self.settings.output_codec
        audio = codec.from_pcm(pcm)
        self._enqueue(OutputChunk(lambda: self._output.add_word(word, codec.get_duration_ms(len(audio))), now))
        size = CHUNK_MS * codec.bytes_per_ms
        for start in range(0, len(audio), size):
            self._enqueue(self._make_audio_chunk(audio[start : start + size], now))

    def add_call(self, name: str, arguments: str, now: float, *, call_id: str | None = None) -> None:
        new_call_id = call_id or self._new_id("call")
        self._enqueue(OutputChunk(lambda: self._output.add_call(name, arguments, new_call_id), now))

    def finish(self, now: float) -> None:
        """End the response once its queued output is sent: the responder has no more."""
        self._finished = True
        self.advance(now)

    def fail(self, code: str, message: str) -> None:
        error = {"type": "server_error", "code": code, "message": message}
        self.end("failed", {"type": "failed", "error": error})

    def cancel(self, reason: str) -> None:
        self.end("cancelled", {"type": "cancelled", "reason": reason})

    def advance(self, now: float) -> None:
        """Send the output that is due. Ends the response when all is sent and the responder has finished."""
        while (deadline := self.deadline) is not None and deadline <= now:
            chunk = self._chunks.popleft()
            chunk.emit()
            if self._pace is not None:
                self._next_send_at = deadline + chunk.duration / self._pace
            self._enforce_token_limit()
        if self._finished and not self._chunks:
            self.end("completed", None)

    def end(self, status: ResponseStatus, details: dict[str, Any] | None) -> None:
        """Close the open item and emit ``response.done``. Queued output is dropped."""
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
        """Return the ``response`` object of the protocol."""
        settings = settings_to_wire(self.settings)
        audio = settings["audio"]["output"]
        voice = audio["voice"] if isinstance(audio["voice"], str) else audio["voice"]["id"]
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": self.status,
            "status_details": self._details,
            "output": [entry.to_wire() for entry in self._output.entries],
            "conversation_id": None if self._conversation is None else self._conversation.id,
            "output_modalities": settings["output_modalities"],
            "max_output_tokens": settings["max_output_tokens"],
            "audio": {"output": {"format": audio["format"], "voice": voice}},
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
        text_tokens = sum(count_text_tokens(entry.text) for entry in self._output.entries)
        if text_tokens + count_output_audio_tokens(self.audio_ms) > limit:
            self.end("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})


# One token is four characters of text, 100 ms of input audio or 50 ms of output audio, roughly as providers count.


def count_text_tokens(text: str) -> int:
    return -(-len(text) // 4)


def count_output_audio_tokens(audio_ms: int) -> int:
    return -(-audio_ms // 50)


def count_input_audio_tokens(audio_ms: int) -> int:
    return -(-audio_ms // 100)


def build_usage(
    context: Iterable[ConversationEntry], output: Iterable[ConversationEntry], instructions: str
) -> dict[str, Any]:
    """Build the ``usage`` of a ``response.done``."""
    text_in, audio_in = count_text_tokens(instructions), 0
    for entry in context:
        text_in += _count_entry_text_tokens(entry)
        count = count_output_audio_tokens if entry.item.get("role") == "assistant" else count_input_audio_tokens
        audio_in += count(entry.audio_ms)
    entries = list(output)
    text_out = sum(map(_count_entry_text_tokens, entries))
    audio_out = sum(count_output_audio_tokens(entry.audio_ms) for entry in entries)
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
