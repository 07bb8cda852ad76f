"""The call centre: a real session over the offline model."""

import wave
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from processes import printed

from standfast import FunctionModel, Runner, open_store
from standfast.realtime import LocalRealtimeModel


@pytest.fixture
def centre(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("call_centre/call_centre.py")


async def test_a_call_is_handed_over_approved_guarded_and_remembered(tmp_path: Path) -> None:
    shown = await printed("call_centre/call_centre.py", "--wav", "call.wav", cwd=tmp_path)
    expected = [
        "Model: fixed rules",
        "[front hands over to billing]",
        "billing: The last bill was 61.20 euros",
        "[guardrail: this was stopped before anybody heard it]",
        "billing: I may not say card numbers aloud.",
        '[supervisor: credit{"amount":20.0} is approved]',
        "billing: 20.00 euros were credited.",
        "[billing hands over to technical]",
        "technical: The router is up again",
        "clerk: As we said on the telephone: 20.00 euros were credited.",
    ]
    at = [shown.index(line) for line in expected]
    assert at == sorted(at)
    with wave.open(str(tmp_path / "call.wav")) as file:
        assert file.getnframes() / file.getframerate() > 3


async def test_a_refused_credit_is_not_given_and_no_card_number_is_kept(centre: ModuleType, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        history: Any = store.session("caller-7")
        model = LocalRealtimeModel(FunctionModel(centre.rules), pace=None)
        heard = await centre.call(history, model=model, lines=centre.CALLER[:3], approve=lambda tool, given: False)
        assert heard
        kept = str(await history.get_items())
        assert "The supervisor said no." in kept
        assert "4111" not in kept
        result = await Runner.run(centre.clerk, centre.LATER, session=history)
        assert result.final_output == "As we said on the telephone: nothing was credited."


async def test_a_second_call_goes_on_from_the_first(centre: ModuleType, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'calls.db'}") as store:
        history: Any = store.session("caller-7")
        for line in (centre.CALLER[0], centre.CALLER[3]):
            model = LocalRealtimeModel(FunctionModel(centre.rules), pace=None)
            await centre.call(history, model=model, lines=[line], approve=lambda tool, given: True)
        said = [item["content"] for item in await history.get_items() if item.get("role") == "user"]
        assert [part if isinstance(part, str) else part[0]["text"] for part in said] == [
            centre.CALLER[0],
            centre.CALLER[3],
        ]
