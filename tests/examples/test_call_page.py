"""The page of the call centre in a real browser."""

import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from example_processes import start_example
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import WAIT_SECONDS, chromium, needs_chromium
from ports import free_port

pytestmark = needs_chromium
INTERRUPT_EARLY = """
new MutationObserver((changes, observer) => {
  if (!document.querySelector("#log .assistant")?.textContent.includes("The last")) return;
  observer.disconnect();
  document.getElementById("interrupt").click();
  window.interrupted = true;
}).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
"""


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with start_example("call_centre/call_page.py", "--port", str(free_port()), cwd=tmp_path) as server:
        assert server.stdout is not None
        line = (await server.stdout.readline()).decode()
        match = re.search(r"http://\S+", line)
        assert match, line + (await server.stdout.read()).decode()
        yield match[0]


def wait_for(browser: Any, found: Callable[[Any], Any], what: str) -> Any:
    return WebDriverWait(browser, WAIT_SECONDS).until(found, f"{what!r} did not appear")


def wait_for_text(browser: Any, text: str, place: str = "body") -> None:
    wait_for(browser, lambda page: text in page.find_element(By.CSS_SELECTOR, place).text, text)


def press(browser: Any, label: str) -> None:
    path = f"//button[text()='{label}' and not(@disabled)]"
    wait_for(browser, lambda page: page.find_elements(By.XPATH, path), label)[0].click()


async def test_a_caller_is_answered_by_voice_and_a_credit_waits_for_the_supervisor(
    address: str, tmp_path: Path
) -> None:
    with chromium(tmp_path / "profile", "--use-fake-ui-for-media-stream") as browser:  # there is no microphone
        browser.get(address)
        assert "token" not in browser.current_url
        press(browser, "Call")
        press(browser, "My last bill seems too high.")
        wait_for_text(browser, "The last bill was 61.20 euros", "#log .assistant")
        wait_for_text(browser, "connected to billing", "#status")
        press(browser, "I want 20 euros back.")
        wait_for_text(browser, 'credit({"amount":20.0})', "#questions")
        if folder := os.environ.get("STANDFAST_PICTURES"):
            browser.save_screenshot(str(Path(folder, "call_centre.png")))
        press(browser, "approve")
        wait_for_text(browser, "20.00 euros were credited.", "#log .assistant:last-child")
        press(browser, "Hang up")
        wait_for_text(browser, "not connected", "#status")
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


async def test_an_interrupted_answer_keeps_only_what_was_heard(address: str, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as browser:
        browser.get(address)
        press(browser, "Call")
        wait_for(browser, lambda page: page.find_element(By.ID, "interrupt").is_enabled(), "Interrupt")
        browser.execute_script(INTERRUPT_EARLY)
        press(browser, "My last bill seems too high.")
        wait_for(browser, lambda page: page.execute_script("return window.interrupted"), "the interruption")
        press(browser, "Hang up")
        wait_for_text(browser, "not connected", "#status")
        [answer] = browser.find_elements(By.CSS_SELECTOR, "#log .assistant")
        assert "twice" not in answer.text
