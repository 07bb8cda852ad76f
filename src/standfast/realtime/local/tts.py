"""Voices: text in, words with their audio out. The tone hums every word; ``espeak-ng`` really speaks."""

import asyncio
import io
import re
import shutil
import wave
from array import array
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, pi, sin
from typing import Protocol

from standfast.base.errors import StandfastError
from standfast.realtime.local.audio import BYTES_PER_MS, SAMPLE_RATE, make_silence, pcm_to_samples, samples_to_pcm


@dataclass(frozen=True, slots=True)
class WordAudio:
    """A word, with the space before it if there is one, and its audio: 16 bits mono at 24 kHz."""

    text: str
    audio: bytes


class TextToSpeech(Protocol):
    """Speaks a piece of text, usually a sentence. The texts of the words are the text again when put together."""

    async def synthesize(self, text: str, *, speed: float = 1.0) -> list[WordAudio]: ...


class TextToSpeechFailed(StandfastError):
    """The program that speaks did not."""

    code = "voice-failed"


def split_words(text: str) -> list[str]:
    """The words with the spaces before them; spaces at the end stay with the last."""
    return re.findall(r"\s*\S+(?:\s+$)?|\s+$", text)


class ToneTTS:
    """Hums: each word is a tone, as long as the word is. Needs nothing, and always takes the same time."""

    LETTER_MS, MIN_MS, GAP_MS = 55, 120, 40

    async def synthesize(self, text: str, *, speed: float = 1.0) -> list[WordAudio]:
        return [WordAudio(word, self._synthesize_word(word.strip(), speed)) for word in split_words(text)]

    def _synthesize_word(self, word: str, speed: float) -> bytes:
        length = max(self.MIN_MS, len(word) * self.LETTER_MS)
        return _make_tone(sum(map(ord, word)) % 12, round(length / speed / 10) * 10) + make_silence(self.GAP_MS)


@lru_cache(maxsize=256)
def _make_tone(pitch: int, length_ms: int) -> bytes:
    """A tone between 120 and 250 Hz with three overtones, as a voice has them, and soft ends."""
    period = 96 + 8 * pitch
    wave_form = [
        round(4000 * sum(sin(2 * pi * part * at / period) / part for part in (1, 2, 3, 5))) for at in range(period)
    ]
    count = length_ms * SAMPLE_RATE // 1000
    whole = array("h", (wave_form * (count // period + 1))[:count])
    edge = min(SAMPLE_RATE // 100, count // 2)
    for at in range(edge):
        whole[at] = whole[at] * at // edge
        whole[-1 - at] = whole[-1 - at] * at // edge
    return samples_to_pcm(whole)


class EspeakTTS:
    """Speaks with the program ``espeak-ng``. Where its words lie is estimated from their lengths."""

    WORDS_PER_MINUTE = 175
    TIMEOUT_SECONDS = 30.0  # it needs less for half an hour of speech

    def __init__(self, *, language: str = "en", program: str = "espeak-ng") -> None:
        found = shutil.which(program)
        if found is None:
            raise TextToSpeechFailed(
                f"there is no program {program!r} on the PATH; install espeak-ng, or use ToneVoice"
            )
        self._program, self._language = found, language

    async def synthesize(self, text: str, *, speed: float = 1.0) -> list[WordAudio]:
        words = split_words(text)
        if not text.strip():
            return [WordAudio(word, b"") for word in words]
        # Half of a character, as a stream may leave one behind, cannot be said.
        sound = await self._synthesize_wav(text.encode(errors="replace"), speed)
        try:
            # Elsewhere: with a long text it would hold up everybody else in the loop.
            pcm = await asyncio.to_thread(_resample_wav, sound)
        except (EOFError, wave.Error) as error:
            raise TextToSpeechFailed(f"{self._program} wrote no audio: {error or 'nothing'}") from error
        return _split_audio_by_word(words, pcm)

    async def _synthesize_wav(self, text: bytes, speed: float) -> bytes:
        """The WAV file that the program makes of the text. It is gone when this ends, however it ends."""
        pace = str(round(self.WORDS_PER_MINUTE * speed))
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, "--stdout", "--stdin", "-v", self._language, "-s", pace,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise TextToSpeechFailed(f"{self._program} could not be started: {error}") from error
        try:
            async with asyncio.timeout(self.TIMEOUT_SECONDS):
                sound, problem = await process.communicate(text)
        except TimeoutError as late:
            raise TextToSpeechFailed(f"{self._program} was not done after {self.TIMEOUT_SECONDS:g} s") from late
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise TextToSpeechFailed(
                f"{self._program} ended with {process.returncode}: {problem.decode(errors='replace')}"
            )
        return sound


def create_default_tts() -> TextToSpeech:
    """``espeak-ng`` where it is installed, the tone elsewhere."""
    return EspeakTTS() if shutil.which("espeak-ng") else ToneTTS()


def _resample_wav(wav: bytes) -> bytes:
    """The audio of a WAV file, on straight lines between its samples."""
    with wave.open(io.BytesIO(wav)) as file:
        rate, heard = file.getframerate(), pcm_to_samples(file.readframes(file.getnframes()))
    # A program that writes into a pipe cannot know the length beforehand; the module reads what there is.
    # The places between the samples repeat: so many of ours lie on so many of theirs.
    ours, theirs = SAMPLE_RATE // gcd(SAMPLE_RATE, rate), rate // gcd(SAMPLE_RATE, rate)
    heard.extend([0] * (-len(heard) % theirs + 1))
    found = array("h", bytes(2 * ((len(heard) - 1) // theirs * ours)))
    for place in range(ours):
        left, part = divmod(place * theirs, ours)
        pairs = zip(heard[left:-1:theirs], heard[left + 1 :: theirs], strict=True)
        found[place::ours] = array("h", [a + (b - a) * part // ours for a, b in pairs])
    return samples_to_pcm(found)


def _split_audio_by_word(words: list[str], pcm: bytes) -> list[WordAudio]:
    """The audio cut at whole milliseconds, to each word in proportion to its letters and pauses."""
    weights = [
        len(word.strip()) + 2 + (4 if word.rstrip().endswith((",", ".", "!", "?", ";", ":")) else 0) for word in words
    ]
    total, length, done, before, found = sum(weights), len(pcm) // BYTES_PER_MS, 0, 0, []
    for word, weight in zip(words, weights, strict=True):
        done += weight
        end = length * done // total
        found.append(WordAudio(word, pcm[before * BYTES_PER_MS : end * BYTES_PER_MS]))
        before = end
    return found
