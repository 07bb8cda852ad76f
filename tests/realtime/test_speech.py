"""Voices say the whole text, and know where its words lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.realtime.local.audio import BYTES_PER_MS, samples
from holdfast.realtime.local.speech import EspeakVoice, ToneVoice, VoiceFailed, best_voice, words_of
from realtime.espeak import espeak_voice


@given(st.text())
def test_the_words_of_a_text_are_the_text(text):
    assert "".join(words_of(text)) == text


async def test_the_tone_takes_as_long_as_a_word_has_letters_and_is_heard():
    short, long = await ToneVoice().speak("Hi everybody")
    assert (short.text, long.text) == ("Hi", " everybody")
    assert len(short.audio) < len(long.audio)
    assert max(samples(long.audio)) > 3000
    [fast, _] = await ToneVoice().speak("everybody there", speed=1.5)
    assert len(fast.audio) < len(long.audio)


async def test_a_real_voice_speaks_every_word_in_whole_milliseconds(tmp_path, monkeypatch):
    voice = espeak_voice(tmp_path, monkeypatch)
    words = await voice.speak("Well, this is how it sounds.")
    assert [word.text for word in words] == ["Well,", " this", " is", " how", " it", " sounds."]
    assert all(word.audio and len(word.audio) % BYTES_PER_MS == 0 for word in words)
    seconds = sum(len(word.audio) for word in words) / 48_000
    assert 1.0 < seconds < 4.0
    faster = await voice.speak("Well, this is how it sounds.", speed=1.5)
    assert sum(len(word.audio) for word in faster) / 48_000 < seconds * 0.85
    assert isinstance(best_voice(), EspeakVoice)


async def test_without_the_program_the_tone_speaks(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert isinstance(best_voice(), ToneVoice)
    with pytest.raises(VoiceFailed, match="install espeak-ng"):
        EspeakVoice()


async def test_a_program_that_fails_says_why(tmp_path):
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho 'no voice today' >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(VoiceFailed, match="ended with 3: no voice today"):
        await EspeakVoice(program=str(program)).speak("Hello")
