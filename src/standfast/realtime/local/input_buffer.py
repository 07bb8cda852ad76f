"""The input audio buffer: what came in and was not made an item yet, and the turns heard in it."""

from collections.abc import Iterator

from standfast.realtime.local.actions import InvalidRequest
from standfast.realtime.local.audio import AudioCodec
from standfast.realtime.local.settings import AudioInputSettings
from standfast.realtime.local.vad import (
    DetectorFactory,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
    VoiceActivityDetector,
)

MIN_COMMIT_MS = 100


class InputAudioBuffer:
    """Takes audio in and hands turns out. Positions are milliseconds since the session began."""

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
        """How much audio came in so far."""
        return self._start_ms + self.length_ms

    @property
    def length_ms(self) -> int:
        return self.codec.get_duration_ms(len(self._audio))

    @property
    def speaking(self) -> bool:
        return self._turn_start_ms is not None

    def configure(self, settings: AudioInputSettings, codec: AudioCodec) -> None:
        """Listen with other settings from now on. Audio in another format is not kept.

        Settings that have nothing to do with listening leave a turn that is being spoken alone.
        """
        changed = settings.turn_detection != self._settings.turn_detection
        self._settings = settings
        if codec is not self.codec:
            self.clear()
            self.codec = codec
        elif changed:
            self._reset_turn_detection()

    def append(self, data: bytes) -> Iterator[SpeechStarted | SpeechStopped]:
        """Take audio in. On ``Stopped`` the turn must be taken with :meth:`take_turn` before going on."""
        self._audio += data
        if self._turn_detector is None:
            return
        for found in self._turn_detector.feed(self.codec.to_pcm(data)):
            at_ms = max(self._start_ms, self._detection_start_ms + found.at_ms)
            if isinstance(found, SpeechStarted):
                self._turn_start_ms = at_ms
                yield SpeechStarted(at_ms)
            else:
                yield SpeechStopped(at_ms)
                self._turn_start_ms = None
        self._discard_silence()

    def take_turn(self, end_ms: int) -> bytes:
        """The audio of the turn that ended there; what came before it is dropped."""
        start = self._turn_start_ms if self._turn_start_ms is not None else self._start_ms
        self._discard_until(start)
        audio = bytes(self._audio[: (end_ms - self._start_ms) * self.codec.bytes_per_ms])
        self._discard_until(end_ms)
        return audio

    def take_all(self) -> bytes:
        """Everything that is there, in whole samples, or :class:`Refused` when that is next to nothing."""
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
        wanted = self._settings.turn_detection
        self._turn_start_ms, self._detection_start_ms, self._turn_detector = None, self.end_ms, None
        if wanted is None:
            return
        self._detector = self._detector or self._make_detector()
        self._turn_detector = TurnDetector(
            self._detector,
            threshold=wanted.threshold,
            prefix_ms=wanted.prefix_padding_ms,
            silence_ms=wanted.silence_duration_ms,
        )

    def _discard_silence(self) -> None:
        """Between turns only what the next one may begin with is kept."""
        if self._turn_start_ms is None and self._settings.turn_detection is not None:
            self._discard_until(self.end_ms - self._settings.turn_detection.prefix_padding_ms - 500)

    def _discard_until(self, ms: int) -> None:
        ms = min(max(ms, self._start_ms), self.end_ms)
        del self._audio[: (ms - self._start_ms) * self.codec.bytes_per_ms]
        self._start_ms = ms
