"""Text to speech: all of the text is spoken, with the positions of its words."""

import threading
import wave
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.espeak import make_espeak_tts
from standfast.realtime.local.audio import BYTES_PER_MS, pcm_to_samples
from standfast.realtime.local.speech import EspeakTTS, TextToSpeechFailed, ToneTTS, create_default_tts, split_words


@given(st.text())
def test_splitting_a_text_into_words_loses_nothing(text):
    assert "".join(split_words(text)) == text


async def test_a_tone_is_as_long_as_its_word_and_audible():
    short, long = await ToneTTS().synthesize("Hi everybody")
    assert (short.text, long.text) == ("Hi", " everybody")
    assert len(short.audio) < len(long.audio)
    assert max(pcm_to_samples(long.audio)) > 3000
    [fast, _] = await ToneTTS().synthesize("everybody there", speed=1.5)
    assert len(fast.audio) < len(long.audio)


async def test_espeak_speaks_every_word_in_whole_milliseconds():
    tts = make_espeak_tts()
    words = await tts.synthesize("Well, this is how it sounds.")
    assert [word.text for word in words] == ["Well,", " this", " is", " how", " it", " sounds."]
    assert all(word.audio and len(word.audio) % BYTES_PER_MS == 0 for word in words)
    seconds = sum(len(word.audio) for word in words) / 48_000
    assert 1.0 < seconds < 4.0
    faster = await tts.synthesize("Well, this is how it sounds.", speed=1.5)
    assert sum(len(word.audio) for word in faster) / 48_000 < seconds * 0.85


async def test_the_default_is_espeak_if_it_is_on_the_path_and_tones_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(create_default_tts(), ToneTTS)
    with pytest.raises(TextToSpeechFailed, match="is not on the PATH: install espeak-ng"):
        EspeakTTS(program="another-espeak")
    write_program("exit 0", tmp_path, name="espeak-ng")
    assert isinstance(create_default_tts(), EspeakTTS)


async def test_the_error_of_a_failing_program_is_reported(tmp_path):
    program = write_program("echo 'no voice today' >&2\nexit 3", tmp_path)
    with pytest.raises(TextToSpeechFailed, match="exited with status 3: no voice today"):
        await EspeakTTS(program=program).synthesize("Hello")


def write_program(script: str, folder: Path, name: str = "program") -> str:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("output", ["hello", "RIFF....WAVEfmt ", ""], ids=["no audio", "half a header", "nothing"])
async def test_a_program_that_writes_no_audio_fails(output, tmp_path):
    tts = EspeakTTS(program=write_program(f"cat > /dev/null; printf '{output}'", tmp_path))
    with pytest.raises(TextToSpeechFailed, match="no audio"):
        await tts.synthesize("Hello")


async def test_a_program_that_was_removed_fails(tmp_path):
    tts = EspeakTTS(program=write_program("exit 0", tmp_path))
    (tmp_path / "program").unlink()
    with pytest.raises(TextToSpeechFailed, match=r"starting .* failed"):
        await tts.synthesize("Hello")


class ImpatientTTS(EspeakTTS):
    TIMEOUT_SECONDS = 0.2


async def test_a_program_that_hangs_is_killed(tmp_path):
    # The leak check after each test fails if the process is still running.
    program = write_program("exec sleep 600", tmp_path)
    with pytest.raises(TextToSpeechFailed, match=r"did not finish within 0\.2 s"):
        await ImpatientTTS(program=program).synthesize("Hello")


async def test_espeak_speaks_any_text_and_takes_no_options_from_it():
    tts = make_espeak_tts()
    for text in (
        "-w stolen --version",
        'A "quoted" `word`\nand $(another).',
        "<speak>Hi</speak>",
        "Hi 😀",
        "half \ud83d",
    ):
        words = await tts.synthesize(text)
        assert "".join(word.text for word in words) == text
        assert sum(len(word.audio) for word in words) > 100 * BYTES_PER_MS


async def test_synthesis_of_a_long_text_does_not_block_the_event_loop(tmp_path, monkeypatch):
    """The audio is decoded and resampled in another thread."""
    with wave.open(str(tmp_path / "long.wav"), "wb") as file:
        file.setparams((1, 2, 22_050, 0, "NONE", "not compressed"))
        file.writeframes(bytes(2 * 22_050 * 20))
    threads, open_wave = [], wave.open

    def record_thread(*arguments):
        threads.append(threading.current_thread())
        return open_wave(*arguments)

    monkeypatch.setattr(wave, "open", record_thread)
    tts = EspeakTTS(program=write_program(f"cat > /dev/null; exec cat {tmp_path}/long.wav", tmp_path))
    words = await tts.synthesize("A long story.")
    assert sum(len(word.audio) for word in words) // BYTES_PER_MS == pytest.approx(20_000, abs=10)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
