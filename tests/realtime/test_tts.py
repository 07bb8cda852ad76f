"""Voices say the whole text, and know where its words lie."""

import asyncio
import os
import time
import wave
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.espeak import espeak_voice
from standfast.realtime.local.audio import BYTES_PER_MS, pcm_to_samples
from standfast.realtime.local.tts import EspeakTTS, TextToSpeechFailed, ToneTTS, create_default_tts, split_words


@given(st.text())
def test_the_words_of_a_text_are_the_text(text):
    assert "".join(split_words(text)) == text


async def test_the_tone_takes_as_long_as_a_word_has_letters_and_is_heard():
    short, long = await ToneTTS().synthesize("Hi everybody")
    assert (short.text, long.text) == ("Hi", " everybody")
    assert len(short.audio) < len(long.audio)
    assert max(pcm_to_samples(long.audio)) > 3000
    [fast, _] = await ToneTTS().synthesize("everybody there", speed=1.5)
    assert len(fast.audio) < len(long.audio)


async def test_a_real_voice_speaks_every_word_in_whole_milliseconds(tmp_path, monkeypatch):
    voice = espeak_voice(tmp_path, monkeypatch)
    words = await voice.synthesize("Well, this is how it sounds.")
    assert [word.text for word in words] == ["Well,", " this", " is", " how", " it", " sounds."]
    assert all(word.audio and len(word.audio) % BYTES_PER_MS == 0 for word in words)
    seconds = sum(len(word.audio) for word in words) / 48_000
    assert 1.0 < seconds < 4.0
    faster = await voice.synthesize("Well, this is how it sounds.", speed=1.5)
    assert sum(len(word.audio) for word in faster) / 48_000 < seconds * 0.85
    assert isinstance(create_default_tts(), EspeakTTS)


async def test_without_the_program_the_tone_speaks(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert isinstance(create_default_tts(), ToneTTS)
    with pytest.raises(TextToSpeechFailed, match="install espeak-ng"):
        EspeakTTS()


async def test_a_program_that_fails_says_why(tmp_path):
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho 'no voice today' >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(TextToSpeechFailed, match="exited with status 3: no voice today"):
        await EspeakTTS(program=str(program)).synthesize("Hello")


def program_that(does: str, tmp_path: Path) -> str:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("writes", ["hello", "RIFF....WAVEfmt ", ""], ids=["no audio", "half a header", "nothing"])
async def test_a_program_that_writes_no_audio_has_failed(writes, tmp_path):
    voice = EspeakTTS(program=program_that(f"cat > /dev/null; printf '{writes}'", tmp_path))
    with pytest.raises(TextToSpeechFailed, match="no audio"):
        await voice.synthesize("Hello")


async def test_a_program_that_is_no_longer_there_has_failed(tmp_path):
    voice = EspeakTTS(program=program_that("exit 0", tmp_path))
    (tmp_path / "program").unlink()
    with pytest.raises(TextToSpeechFailed, match="starting .* failed"):
        await voice.synthesize("Hello")


class Impatient(EspeakTTS):
    LONGEST_SECONDS = 0.2


async def test_a_program_that_hangs_has_failed_and_is_gone(tmp_path):
    voice = Impatient(program=program_that(f"echo $$ > {tmp_path}/pid; exec sleep 60", tmp_path))
    with pytest.raises(TextToSpeechFailed, match=r"did not finish within 0\.2 s"):
        await voice.synthesize("Hello")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_real_voice_says_any_text_and_takes_no_options_from_it(tmp_path, monkeypatch):
    voice = espeak_voice(tmp_path, monkeypatch)
    for text in (
        "-w stolen --version",
        'A "quoted" `word`\nand $(another).',
        "<speak>Hi</speak>",
        "Hi 😀",
        "half \ud83d",
    ):
        words = await voice.synthesize(text)
        assert "".join(word.text for word in words) == text
        assert sum(len(word.audio) for word in words) > 100 * BYTES_PER_MS


async def test_the_loop_goes_on_while_a_long_text_is_spoken(tmp_path):
    """Minutes of sound: turning it into our own rate takes a while, elsewhere."""
    with wave.open(str(tmp_path / "long.wav"), "wb") as file:
        file.setparams((1, 2, 22_050, 0, "NONE", "not compressed"))
        file.writeframes(bytes(2 * 22_050 * 200))
    voice = EspeakTTS(program=program_that(f"cat > /dev/null; exec cat {tmp_path}/long.wav", tmp_path))
    speaking = asyncio.ensure_future(voice.synthesize("A long story."))
    longest, before = 0.0, time.perf_counter()
    while not speaking.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    assert sum(len(word.audio) for word in speaking.result()) // BYTES_PER_MS == pytest.approx(200_000, abs=10)
    assert longest < 0.3
