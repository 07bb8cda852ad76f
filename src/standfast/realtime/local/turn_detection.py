"""Who speaks when: speech interrupts an answer, a pause asks for one, and a long silence does too."""

from typing import TYPE_CHECKING

from standfast.realtime.local.actions import TranscribeAudio
from standfast.realtime.local.conversation import ConversationEntry
from standfast.realtime.local.input_buffer import InputAudioBuffer
from standfast.realtime.local.vad import DetectorFactory, SpeechStarted

if TYPE_CHECKING:
    from standfast.realtime.local.engine import Engine
    from standfast.realtime.local.responses import EngineResponse


class TurnManager:
    """Makes items of the audio that comes in, and lets the engine answer them."""

    def __init__(self, engine: "Engine", detector: DetectorFactory) -> None:
        self._engine = engine
        self._input_buffer = InputAudioBuffer(engine.settings.audio.input, engine.settings.input_codec, detector)
        self._speech_item_id: str | None = None
        self._response_pending = False
        self.idle_at: float | None = None
        """When the silence after an answer has been long enough to say something."""

    @property
    def received_ms(self) -> int:
        """How much audio came in since the session began."""
        return self._input_buffer.end_ms

    @property
    def buffered_ms(self) -> int:
        """How much of it is in the buffer, not yet part of an item."""
        return self._input_buffer.length_ms

    def configure(self) -> None:
        """The session's settings were changed."""
        settings = self._engine.settings
        self._input_buffer.configure(settings.audio.input, settings.input_codec)
        if not self._input_buffer.speaking:
            self._speech_item_id = None

    def append(self, audio: bytes, now: float) -> None:
        for turn in self._input_buffer.append(audio):
            if isinstance(turn, SpeechStarted):
                self._handle_speech_started(turn.at_ms)
            else:
                self._handle_speech_stopped(turn.at_ms, now)

    def commit(self) -> None:
        """Make an item of everything in the buffer."""
        audio = self._input_buffer.take_all()
        self._add_audio_item(self._speech_item_id or self._engine.new_id("item"), audio)
        self._speech_item_id = None

    def clear(self) -> None:
        self._input_buffer.clear()
        self._speech_item_id = None
        self._engine.outbox.emit("input_audio_buffer.cleared")

    def handle_response_ended(self, response: "EngineResponse", now: float) -> None:
        """A response has ended: the silence after it begins when its audio has been played."""
        detection = self._engine.settings.audio.input.turn_detection
        wait_ms = None if detection is None or self._input_buffer.speaking else detection.idle_timeout_ms
        if wait_ms is not None and response.in_conversation and response.status == "completed":
            self.idle_at = max(now, response.started_at + response.audio_ms / 1000) + wait_ms / 1000

    def advance(self, now: float) -> None:
        if self.idle_at is None or now < self.idle_at or self._engine.closed:
            return
        self.idle_at = None
        item_id = self._engine.new_id("item")
        self._engine.outbox.emit(
            "input_audio_buffer.timeout_triggered",
            item_id=item_id,
            audio_start_ms=self.received_ms - self.buffered_ms,
            audio_end_ms=self.received_ms,
        )
        self._add_audio_item(item_id, self._input_buffer.take_turn(self.received_ms))
        self._response_pending = True

    def start_pending_response(self, now: float) -> None:
        """Give the answer that a turn asked for, as soon as nothing else is being said."""
        if self._response_pending and self._engine.active_response is None:
            self._response_pending = False
            self._engine.start_response(now)

    def _handle_speech_started(self, at_ms: int) -> None:
        engine, detection = self._engine, self._engine.settings.audio.input.turn_detection
        self._speech_item_id = engine.new_id("item")
        self.idle_at = None
        engine.outbox.emit("input_audio_buffer.speech_started", audio_start_ms=at_ms, item_id=self._speech_item_id)
        if detection is not None and detection.interrupt_response and engine.active_response is not None:
            engine.active_response.cancel("turn_detected")

    def _handle_speech_stopped(self, at_ms: int, now: float) -> None:
        engine, detection = self._engine, self._engine.settings.audio.input.turn_detection
        item_id = self._speech_item_id or engine.new_id("item")
        self._speech_item_id = None
        engine.outbox.emit("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=item_id)
        self._add_audio_item(item_id, self._input_buffer.take_turn(at_ms))
        if detection is not None and detection.create_response:
            self._response_pending = True
            engine.process_ended_responses(now)

    def _add_audio_item(self, item_id: str, audio: bytes) -> None:
        engine, format = self._engine, self._input_buffer.codec
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        previous = engine.conversation.last_id
        engine.outbox.emit("input_audio_buffer.committed", previous_item_id=previous, item_id=item_id)
        engine.add_item(ConversationEntry(item, format, bytearray(audio)))
        engine.outbox.add_action(TranscribeAudio(item_id, format.to_pcm(audio)))
