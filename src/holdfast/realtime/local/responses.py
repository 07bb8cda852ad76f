"""One answer being given, at the pace of speech, from ``response.created`` to ``response.done``."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.realtime.local.conversation import Conversation, Entry
from holdfast.realtime.local.outbox import Forget, Outbox
from holdfast.realtime.local.output import Output
from holdfast.realtime.local.settings import SessionSettings, wire
from holdfast.realtime.local.usage import tokens_of_text, tokens_said, usage_of

Status: TypeAlias = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]

CHUNK_MS = 100  # the longest piece of audio in one frame, and so what an interruption can be late by


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to tell, and for how long the wire is then busy."""

    tell: Callable[[], None]
    arrived: float
    seconds: float = 0.0


class Response:
    """Takes what the brain says, in pieces, and tells the client of each when its time has come.

    ``pace`` is how many seconds of audio may be told in a second; ``None`` tells everything at once. ``context`` is
    what the brain is shown: the conversation as it was, or the input that the client chose for this response.
    """

    def __init__(
        self,
        id: str,
        *,
        settings: SessionSettings,
        conversation: Conversation | None,
        context: list[Entry],
        outbox: Outbox,
        new_id: Callable[[str], str],
        began: float,
        metadata: dict[str, str] | None = None,
        pace: float | None = None,
    ) -> None:
        self.id, self.settings, self.context, self.metadata = id, settings, context, metadata
        self.began = began
        self.status: Status = "in_progress"
        self.speaks = settings.output_modalities == ["audio"]
        self._conversation, self._outbox, self._new_id, self._pace = conversation, outbox, new_id, pace
        self._output = Output(
            id, format=settings.output_format, conversation=conversation, outbox=outbox, new_id=new_id
        )
        self._pieces: deque[Piece] = deque()
        self._free_at = float("-inf")
        self._finished = False
        self._details: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def over(self) -> bool:
        return self.status != "in_progress"

    @property
    def in_conversation(self) -> bool:
        return self._conversation is not None

    @property
    def audio_ms(self) -> int:
        """How much audio was told so far, as far as nobody cut it."""
        return sum(entry.audio_ms for entry in self._output.entries)

    @property
    def due(self) -> float | None:
        """When there is something to tell next."""
        return max(self._free_at, self._pieces[0].arrived) if self._pieces else None

    def begin(self) -> None:
        self._outbox.tell("response.created", response=self.shown())

    def write(self, text: str, now: float) -> None:
        self._take(Piece(lambda: self._output.text(text), now))

    def sound(self, word: str, pcm: bytes, now: float) -> None:
        """A word and its audio, in the engine's own format."""
        format = self.settings.output_format
        audio = format.from_pcm(pcm)
        self._take(Piece(lambda: self._output.word(word, format.milliseconds(len(audio))), now))
        size = CHUNK_MS * format.bytes_per_ms
        for start in range(0, len(audio), size):
            self._take(self._audio_piece(audio[start : start + size], now))

    def call(self, name: str, arguments: str, now: float, *, call_id: str | None = None) -> None:
        known = call_id or self._new_id("call")
        self._take(Piece(lambda: self._output.call(name, arguments, known), now))

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
        while (due := self.due) is not None and due <= now:
            piece = self._pieces.popleft()
            piece.tell()
            if self._pace is not None:
                self._free_at = due + piece.seconds / self._pace
            self._check_length()
        if self._finished and not self._pieces:
            self.end("completed", None)

    def end(self, status: Status, details: dict[str, Any] | None) -> None:
        """Close what is open and say how it ended. Nothing more is told afterwards."""
        if self.over:
            return
        self._pieces.clear()
        self._output.close("completed" if status == "completed" else "incomplete")
        self.status, self._details = status, details
        self._usage = usage_of(self.context, self._output.entries, self.settings.instructions)
        self._outbox.tell("response.done", response=self.shown())
        if not self._finished:
            self._outbox.wish(Forget(self.id))

    def shown(self) -> dict[str, Any]:
        """The response as the wire shows it."""
        settings = wire(self.settings)
        speech = settings["audio"]["output"]
        voice = speech["voice"] if isinstance(speech["voice"], str) else speech["voice"]["id"]
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": self.status,
            "status_details": self._details,
            "output": [entry.shown() for entry in self._output.entries],
            "conversation_id": None if self._conversation is None else self._conversation.id,
            "output_modalities": settings["output_modalities"],
            "max_output_tokens": settings["max_output_tokens"],
            "audio": {"output": {"format": speech["format"], "voice": voice}},
            "usage": self._usage,
            "metadata": self.metadata,
        }

    def _audio_piece(self, audio: bytes, now: float) -> Piece:
        seconds = len(audio) / self.settings.output_format.bytes_per_ms / 1000
        return Piece(lambda: self._output.audio(audio), now, seconds)

    def _take(self, piece: Piece) -> None:
        if not self.over:
            self._pieces.append(piece)
            self.advance(piece.arrived)

    def _check_length(self) -> None:
        limit = self.settings.max_output_tokens
        if limit == "inf":
            return
        written = sum(tokens_of_text(entry.text) for entry in self._output.entries)
        if written + tokens_said(self.audio_ms) > limit:
            self.end("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})
