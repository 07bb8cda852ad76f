"""A call from a real browser: the page of the documentation, with a microphone and a loudspeaker."""

import asyncio
import os
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from espeak import spoken
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import WAIT_SECONDS, chromium, needs_chromium
from doc_pages import ROOT, blocks, write
from ports import free_port, listening
from standfast import open_store
from standfast.realtime.local.audio import make_silence

pytestmark = needs_chromium


def recording(path: Path, audio: bytes) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24000)
        file.writeframes(audio)
    return path


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The app of the page as its readers start it; the port it listens at."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "docs/how-to/realtime-browser.md"):
        if block.title is not None:
            write(block.title, block.body)
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "app:app", "--port", str(port),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        await listening(port, server)
        yield port
    finally:
        server.terminate()
        await server.communicate()


async def test_a_caller_who_speaks_up_is_answered_and_the_history_keeps_what_was_heard(
    shop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = await spoken("Excuse me, are you open on Sunday?", tmp_path, monkeypatch)
    voice = recording(tmp_path / "caller.wav", make_silence(1500) + words + make_silence(30_000))
    microphone = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={voice}%noloop",
    )
    with chromium(tmp_path / "profile", *microphone) as browser:
        browser.get(f"http://127.0.0.1:{shop}/")
        browser.find_element(By.ID, "call").click()
        answers = await asyncio.to_thread(answers_on, browser, 2)
        faults = [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
    assert faults == []
    assert "wheel" not in answers[0]
    assert answers[1].endswith("wheel.")
    async with open_store("sqlite:///calls.db") as store:
        items = await store.session("ann").get_items()
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]
    cut, whole = (items[place]["content"][0]["text"] for place in (1, 3))
    assert whole.startswith(cut)
    assert "wheel" not in cut
    assert whole == answers[1]


def answers_on(page: Any, count: int) -> list[str]:
    """What the page wrote down of so many answers, once the last of them has ended."""

    def written(page: Any) -> list[str] | None:
        *whole, _ = page.find_element(By.ID, "words").get_attribute("innerHTML").split("<br>")
        return whole if len(whole) >= count else None

    answers: list[str] = WebDriverWait(page, WAIT_SECONDS).until(written)
    return answers
