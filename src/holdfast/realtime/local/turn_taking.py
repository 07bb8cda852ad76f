"""Who speaks when: speech interrupts an answer, a pause asks for one, and a long silence does too."""

from typing import TYPE_CHECKING

from holdfast.realtime.local.conversation import Entry
from holdfast.realtime.local.hearing import Hearing
from holdfast.realtime.local.outbox import Transcribe
from holdfast.realtime.local.vad import DetectorFactory, Started

if TYPE_CHECKING:
    from holdfast.realtime.local.engine import Engine
    from holdfast.realtime.local.responses import Response


class TurnTaking:
    """Makes items of the audio that comes in, and lets the engine answer them."""

    def __init__(self, engine: "Engine", detector: DetectorFactory) -> None:
        self._engine = engine
        self._hearing = Hearing(engine.settings.audio.input, engine.settings.input_format, detector)
        self._speech_item: str | None = None
        self._owes_answer = False
        self.idle_at: float | None = None
        """When the silence after an answer has been long enough to say something."""

    @property
    def heard_ms(self) -> int:
        """How much audio came in since the session began."""
        return self._hearing.end_ms

    @property
    def waiting_ms(self) -> int:
        """How much of it is in the buffer, not yet part of an item."""
        return self._hearing.length_ms

    def configure(self) -> None:
        """The session's settings were changed."""
        settings = self._engine.settings
        self._hearing.configure(settings.audio.input, settings.input_format)
        if not self._hearing.speaking:
            self._speech_item = None

    def append(self, audio: bytes, now: float) -> None:
        for turn in self._hearing.append(audio):
            if isinstance(turn, Started):
                self._started(turn.at_ms)
            else:
                self._stopped(turn.at_ms, now)

    def commit(self) -> None:
        """Make an item of everything in the buffer."""
        audio = self._hearing.take_all()
        self._add(self._speech_item or self._engine.new_id("item"), audio)
        self._speech_item = None

    def clear(self) -> None:
        self._hearing.clear()
        self._speech_item = None
        self._engine.outbox.tell("input_audio_buffer.cleared")

    def answered(self, response: "Response", now: float) -> None:
        """A response has ended: the silence after it begins when its audio has been played."""
        detection = self._engine.settings.audio.input.turn_detection
        wait_ms = None if detection is None or self._hearing.speaking else detection.idle_timeout_ms
        if wait_ms is not None and response.in_conversation and response.status == "completed":
            self.idle_at = max(now, response.began + response.audio_ms / 1000) + wait_ms / 1000

    def advance(self, now: float) -> None:
        if self.idle_at is None or now < self.idle_at or self._engine.closed:
            return
        self.idle_at = None
        item_id = self._engine.new_id("item")
        self._engine.outbox.tell(
            "input_audio_buffer.timeout_triggered",
            item_id=item_id,
            audio_start_ms=self.heard_ms - self.waiting_ms,
            audio_end_ms=self.heard_ms,
        )
        self._add(item_id, self._hearing.take_turn(self.heard_ms))
        self._owes_answer = True

    def settle(self, now: float) -> None:
        """Give the answer that a turn asked for, as soon as nothing else is being said."""
        if self._owes_answer and self._engine.active is None:
            self._owes_answer = False
            self._engine.begin_response(now)

    def _started(self, at_ms: int) -> None:
        engine, detection = self._engine, self._engine.settings.audio.input.turn_detection
        self._speech_item = engine.new_id("item")
        self.idle_at = None
        engine.outbox.tell("input_audio_buffer.speech_started", audio_start_ms=at_ms, item_id=self._speech_item)
        if detection is not None and detection.interrupt_response and engine.active is not None:
            engine.active.cancel("turn_detected")

    def _stopped(self, at_ms: int, now: float) -> None:
        engine, detection = self._engine, self._engine.settings.audio.input.turn_detection
        item_id = self._speech_item or engine.new_id("item")
        self._speech_item = None
        engine.outbox.tell("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=item_id)
        self._add(item_id, self._hearing.take_turn(at_ms))
        if detection is not None and detection.create_response:
            self._owes_answer = True
            engine.settle(now)

    def _add(self, item_id: str, audio: bytes) -> None:
        engine, format = self._engine, self._hearing.format
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        previous = engine.conversation.last_id
        engine.outbox.tell("input_audio_buffer.committed", previous_item_id=previous, item_id=item_id)
        engine.add_item(Entry(item, format, bytearray(audio)))
        engine.outbox.wish(Transcribe(item_id, format.to_pcm(audio)))
