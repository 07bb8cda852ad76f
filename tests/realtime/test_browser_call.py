"""A call from a real browser with the page of the documentation, a fake microphone and audio output."""

import asyncio
import os
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import WAIT_SECONDS, chromium, needs_chromium
from doc_pages import ROOT, iter_blocks, write_file
from ports import free_port, wait_for_port
from realtime.espeak import speak_with_espeak
from standfast import open_store
from standfast.realtime.local.audio import make_silence

pytestmark = needs_chromium


def write_wav(path: Path, audio: bytes) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24000)
        file.writeframes(audio)
    return path


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Start the app of the page and return its port."""
    monkeypatch.chdir(tmp_path)
    for block in iter_blocks(ROOT / "docs/how-to/realtime-browser.md"):
        if block.title is not None:
            write_file(block.title, block.body)
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "app:app", "--port", str(port),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        await wait_for_port(port, server)
        yield port
    finally:
        server.terminate()
        await server.communicate()


async def test_a_caller_is_answered_and_an_interruption_truncates_the_history(shop: int, tmp_path: Path) -> None:
    question = await speak_with_espeak("Excuse me, are you open on Sunday?")
    audio = write_wav(tmp_path / "caller.wav", make_silence(1500) + question + make_silence(30_000))
    microphone = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={audio}%noloop",
    )
    with chromium(tmp_path / "profile", *microphone) as browser:
        browser.get(f"http://127.0.0.1:{shop}/")
        browser.find_element(By.ID, "call").click()
        answers = await asyncio.to_thread(wait_for_answers, browser, 2)
        errors = [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
    assert errors == []
    assert "wheel" not in answers[0]
    assert answers[1].endswith("wheel.")
    async with open_store("sqlite:///calls.db") as store:
        items = await store.session("ann").get_items()
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]
    truncated, complete = (items[index]["content"][0]["text"] for index in (1, 3))
    assert complete.startswith(truncated)
    assert "wheel" not in truncated
    assert complete == answers[1]


def wait_for_answers(page: Any, count: int) -> list[str]:
    """Return the answers on the page once this many have ended."""

    def read_answers(page: Any) -> list[str] | None:
        *ended, _ = page.find_element(By.ID, "words").get_attribute("innerHTML").split("<br>")
        return ended if len(ended) >= count else None

    answers: list[str] = WebDriverWait(page, WAIT_SECONDS).until(read_answers)
    return answers
