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

from holdfast.base.errors import HoldfastError
from holdfast.realtime.local.audio import BYTES_PER_MS, RATE, pcm_of, samples, silence


@dataclass(frozen=True, slots=True)
class Word:
    """A word, with the space before it if there is one, and its audio: 16 bits mono at 24 kHz."""

    text: str
    audio: bytes


class Voice(Protocol):
    """Speaks a piece of text, usually a sentence. The texts of the words are the text again when put together."""

    async def speak(self, text: str, *, speed: float = 1.0) -> list[Word]: ...


class VoiceFailed(HoldfastError):
    """The program that speaks did not."""

    code = "voice-failed"


def words_of(text: str) -> list[str]:
    """The words with the spaces before them; spaces at the end stay with the last."""
    return re.findall(r"\s*\S+(?:\s+$)?|\s+$", text)


class ToneVoice:
    """Hums: each word is a tone, as long as the word is. Needs nothing, and always takes the same time."""

    LETTER_MS, LEAST_MS, GAP_MS = 55, 120, 40

    async def speak(self, text: str, *, speed: float = 1.0) -> list[Word]:
        return [Word(word, self._hum(word.strip(), speed)) for word in words_of(text)]

    def _hum(self, word: str, speed: float) -> bytes:
        length = max(self.LEAST_MS, len(word) * self.LETTER_MS)
        return _tone(sum(map(ord, word)) % 12, round(length / speed / 10) * 10) + silence(self.GAP_MS)


@lru_cache(maxsize=256)
def _tone(pitch: int, length_ms: int) -> bytes:
    """A tone between 120 and 250 Hz with three overtones, as a voice has them, and soft ends."""
    period = 96 + 8 * pitch
    wave_form = [
        round(4000 * sum(sin(2 * pi * part * at / period) / part for part in (1, 2, 3, 5))) for at in range(period)
    ]
    count = length_ms * RATE // 1000
    whole = array("h", (wave_form * (count // period + 1))[:count])
    edge = min(RATE // 100, count // 2)
    for at in range(edge):
        whole[at] = whole[at] * at // edge
        whole[-1 - at] = whole[-1 - at] * at // edge
    return pcm_of(whole)


class EspeakVoice:
    """Speaks with the program ``espeak-ng``. Where its words lie is estimated from their lengths."""

    WORDS_PER_MINUTE = 175
    LONGEST_SECONDS = 30.0  # it needs less for half an hour of speech

    def __init__(self, *, language: str = "en", program: str = "espeak-ng") -> None:
        found = shutil.which(program)
        if found is None:
            raise VoiceFailed(f"there is no program {program!r} on the PATH; install espeak-ng, or use ToneVoice")
        self._program, self._language = found, language

    async def speak(self, text: str, *, speed: float = 1.0) -> list[Word]:
        words = words_of(text)
        if not text.strip():
            return [Word(word, b"") for word in words]
        # Half of a character, as a stream may leave one behind, cannot be said.
        sound = await self._sound_of(text.encode(errors="replace"), speed)
        try:
            # Elsewhere: with a long text it would hold up everybody else in the loop.
            pcm = await asyncio.to_thread(_at_our_rate, sound)
        except (EOFError, wave.Error) as error:
            raise VoiceFailed(f"{self._program} wrote no audio: {error or 'nothing'}") from error
        return _shared_out(words, pcm)

    async def _sound_of(self, text: bytes, speed: float) -> bytes:
        """The WAV file that the program makes of the text. It is gone when this ends, however it ends."""
        pace = str(round(self.WORDS_PER_MINUTE * speed))
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, "--stdout", "--stdin", "-v", self._language, "-s", pace,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise VoiceFailed(f"{self._program} could not be started: {error}") from error
        try:
            async with asyncio.timeout(self.LONGEST_SECONDS):
                sound, problem = await process.communicate(text)
        except TimeoutError as late:
            raise VoiceFailed(f"{self._program} was not done after {self.LONGEST_SECONDS:g} s") from late
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise VoiceFailed(f"{self._program} ended with {process.returncode}: {problem.decode(errors='replace')}")
        return sound


def best_voice() -> Voice:
    """``espeak-ng`` where it is installed, the tone elsewhere."""
    return EspeakVoice() if shutil.which("espeak-ng") else ToneVoice()


def _at_our_rate(sound: bytes) -> bytes:
    """The audio of a WAV file, on straight lines between its samples."""
    with wave.open(io.BytesIO(sound)) as file:
        rate, heard = file.getframerate(), samples(file.readframes(file.getnframes()))
    # A program that writes into a pipe cannot know the length beforehand; the module reads what there is.
    # The places between the samples repeat: so many of ours lie on so many of theirs.
    ours, theirs = RATE // gcd(RATE, rate), rate // gcd(RATE, rate)
    heard.extend([0] * (-len(heard) % theirs + 1))
    found = array("h", bytes(2 * ((len(heard) - 1) // theirs * ours)))
    for place in range(ours):
        left, part = divmod(place * theirs, ours)
        pairs = zip(heard[left:-1:theirs], heard[left + 1 :: theirs], strict=True)
        found[place::ours] = array("h", [a + (b - a) * part // ours for a, b in pairs])
    return pcm_of(found)


def _shared_out(words: list[str], pcm: bytes) -> list[Word]:
    """The audio cut at whole milliseconds, to each word in proportion to its letters and pauses."""
    weights = [
        len(word.strip()) + 2 + (4 if word.rstrip().endswith((",", ".", "!", "?", ";", ":")) else 0) for word in words
    ]
    total, length, done, before, found = sum(weights), len(pcm) // BYTES_PER_MS, 0, 0, []
    for word, weight in zip(words, weights, strict=True):
        done += weight
        end = length * done // total
        found.append(Word(word, pcm[before * BYTES_PER_MS : end * BYTES_PER_MS]))
        before = end
    return found
