"""One answer being given, at the pace of speech, from ``response.created`` to ``response.done``."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.realtime.local.conversation import ConversationEntry, EngineConversation
from holdfast.realtime.local.outbox import CancelGeneration, Outbox
from holdfast.realtime.local.output import ResponseOutput
from holdfast.realtime.local.settings import EngineSessionSettings, settings_to_wire
from holdfast.realtime.local.usage import build_usage, count_output_audio_tokens, count_text_tokens

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
