"""Speech to text, by a protocol and a scripted transcriber, and text to speech, from tones or ``espeak-ng``."""

import asyncio
import io
import re
import shutil
import sys
import wave
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import gcd, pi, sin
from pathlib import Path
from typing import Protocol

from standfast.base.errors import StandfastError
from standfast.realtime.local.audio import BYTES_PER_MS, SAMPLE_RATE, make_silence, pcm_to_samples, samples_to_pcm


class Transcriber(Protocol):
    """Transcribes speech. No speech recognition is built in."""

    async def transcribe(self, audio: bytes) -> str:
        """Return the words in the audio, 16-bit mono PCM at 24 kHz.

        An exception fails the transcription, not the session.
        """


class ScriptedTranscriber:
    """Returns the next text of a script for each audio, whatever it contains, and ``default`` at its end."""

    def __init__(self, texts: Iterable[str] = (), *, default: str = "") -> None:
        self._texts = deque(texts)
        self._default = default

    async def transcribe(self, audio: bytes) -> str:
        """Return the next text of the script."""
        return self._texts.popleft() if self._texts else self._default


@dataclass(frozen=True, slots=True)
class WordAudio:
    """A word with the space before it, and its audio: 16-bit mono PCM at 24 kHz."""

    text: str
    audio: bytes


class TextToSpeech(Protocol):
    """Synthesises speech."""

    async def synthesize(self, text: str, *, speed: float = 1.0) -> list[WordAudio]:
        """Speak a text, usually a sentence. The texts of the returned words must add up to the text."""


class TextToSpeechFailed(StandfastError):
    """The speech program is missing, failed or took too long."""

    code = "voice-failed"


def split_words(text: str) -> list[str]:
    """Split a text into words with the spaces before them; trailing spaces belong to the last word."""
    return re.findall(r"\s*\S+(?:\s+$)?|\s+$", text)


class ToneTTS:
    """Makes a tone for each word, in proportion to its length. It is deterministic and has no dependencies."""

    LETTER_MS, MIN_MS, GAP_MS = 55, 120, 40

    async def synthesize(self, text: str, *, speed: float = 1.0) -> list[WordAudio]:
        """Return the words of the text, each as a tone."""
        return [WordAudio(word, self._synthesize_word(word.strip(), speed)) for word in split_words(text)]

    def _synthesize_word(self, word: str, speed: float) -> bytes:
        length = max(self.MIN_MS, len(word) * self.LETTER_MS)
        return _make_tone(sum(map(ord, word)) % 12, round(length / speed / 10) * 10) + make_silence(self.GAP_MS)


@lru_cache(maxsize=256)
def _make_tone(pitch: int, length_ms: int) -> bytes:
    """Return a tone between 120 and 250 Hz with three overtones, like a voice, that fades in and out."""
    period = 96 + 8 * pitch
    wave_form = [
        round(4000 * sum(sin(2 * pi * part * at / period) / part for part in (1, 2, 3, 5))) for at in range(period)
    ]
    count = length_ms * SAMPLE_RATE // 1000
    samples = array("h", (wave_form * (count // period + 1))[:count])
    fade = min(SAMPLE_RATE // 100, count // 2)
    for at in range(fade):
        samples[at] = samples[at] * at // fade
        samples[-1 - at] = samples[-1 - at] * at // fade
    return samples_to_pcm(samples)


class EspeakTTS:
    """Speaks with the program ``espeak-ng``, or with the library in the package ``espeakng-loader`` without it.

    The positions of words are estimated from their lengths.
    """

    WORDS_PER_MINUTE = 175
    TIMEOUT_SECONDS = 30.0  # enough for half an hour of speech

    def __init__(self, *, language: str = "en", program: str = "espeak-ng") -> None:
        self._program, self._language = program, language
        self._command = find_command(program)

    async def synthesize(self, text: str, *, speed: float = 1.0) -> list[WordAudio]:
        """Return the words of the text, spoken by espeak-ng."""
        words = split_words(text)
        if not text.strip():
            return [WordAudio(word, b"") for word in words]
        # "replace": lone surrogates of a split stream cannot be encoded.
        wav = await self._synthesize_wav(text.encode(errors="replace"), speed)
        try:
            # In a thread: with a long text it would block the event loop.
            pcm = await asyncio.to_thread(_resample_wav, wav)
        except (EOFError, wave.Error) as error:
            raise TextToSpeechFailed(f"{self._program} wrote no audio: {error or 'empty output'}") from error
        return _split_audio_by_word(words, pcm)

    async def _synthesize_wav(self, text: bytes, speed: float) -> bytes:
        """Return the WAV output of the program. The process has exited when this returns, raises or is cancelled."""
        words_per_minute = str(round(self.WORDS_PER_MINUTE * speed))
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, "--stdout", "--stdin", "-v", self._language, "-s", words_per_minute,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise TextToSpeechFailed(f"starting {self._program} failed: {error}") from error
        try:
            async with asyncio.timeout(self.TIMEOUT_SECONDS):
                wav, stderr = await process.communicate(text)
        except TimeoutError as error:
            raise TextToSpeechFailed(f"{self._program} did not finish within {self.TIMEOUT_SECONDS:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise TextToSpeechFailed(
                f"{self._program} exited with status {process.returncode}: {stderr.decode(errors='replace')}"
            )
        return wav


def find_command(program: str) -> list[str]:
    """Return the words that run the program, or raise :class:`TextToSpeechFailed`."""
    path = shutil.which(program)
    if path is not None:
        return [path]
    if program == "espeak-ng" and find_spec("espeakng_loader") is not None:
        # In a process of its own: its callbacks block, and it is under another licence. -P: no module beside the file
        # may hide one of the standard library.
        return [sys.executable, "-P", str(Path(__file__).with_name("espeak_program.py"))]
    raise TextToSpeechFailed(
        f"{program!r} is not on the PATH: install espeak-ng (or the package espeakng-loader), or use ToneTTS"
    )


def create_default_tts() -> TextToSpeech:
    """Return an :class:`EspeakTTS` if ``espeak-ng`` is on the PATH, else a :class:`ToneTTS`."""
    return EspeakTTS() if shutil.which("espeak-ng") else ToneTTS()


def _resample_wav(wav: bytes) -> bytes:
    """Return the audio of a WAV file at our sample rate, by linear interpolation."""
    # The length in the header is wrong, because the program writes to a pipe; readframes() reads what is there.
    with wave.open(io.BytesIO(wav)) as file:
        rate, source = file.getframerate(), pcm_to_samples(file.readframes(file.getnframes()))
    # Positions repeat with a period: each ``step_in`` samples of the source become ``step_out`` of the result.
    step_out, step_in = SAMPLE_RATE // gcd(SAMPLE_RATE, rate), rate // gcd(SAMPLE_RATE, rate)
    source.extend([0] * (-len(source) % step_in + 1))
    result = array("h", bytes(2 * ((len(source) - 1) // step_in * step_out)))
    for phase in range(step_out):
        index, fraction = divmod(phase * step_in, step_out)
        pairs = zip(source[index:-1:step_in], source[index + 1 :: step_in], strict=True)
        result[phase::step_out] = array("h", [a + (b - a) * fraction // step_out for a, b in pairs])
    return samples_to_pcm(result)


def _split_audio_by_word(words: list[str], pcm: bytes) -> list[WordAudio]:
    """Split the audio at whole milliseconds, in proportion to the letters and pauses of each word."""
    weights = [
        len(word.strip()) + 2 + (4 if word.rstrip().endswith((",", ".", "!", "?", ";", ":")) else 0) for word in words
    ]
    total, length, weight_so_far, start, result = sum(weights), len(pcm) // BYTES_PER_MS, 0, 0, []
    for word, weight in zip(words, weights, strict=True):
        weight_so_far += weight
        end = length * weight_so_far // total
        result.append(WordAudio(word, pcm[start * BYTES_PER_MS : end * BYTES_PER_MS]))
        start = end
    return result
