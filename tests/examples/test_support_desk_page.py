"""The support desk in a real browser."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from desk_client import Desk, desk
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import WAIT_SECONDS, chromium, needs_chromium

__all__ = ["desk"]

pytestmark = needs_chromium


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile") as driver:
        yield driver


class Page:
    """What a person sees and does."""

    def __init__(self, browser: Any, desk: Desk) -> None:
        self.browser = browser
        browser.get(f"http://127.0.0.1:{desk.port}/")

    def say(self, text: str) -> None:
        field = self.browser.find_element(By.ID, "text")
        field.send_keys(text)
        field.submit()

    def see(self, text: str) -> None:
        WebDriverWait(self.browser, WAIT_SECONDS).until(
            lambda browser: text in browser.find_element(By.TAG_NAME, "body").text, f"{text!r} did not appear"
        )

    def hear(self, text: str) -> None:
        """Wait for the agent's own words; the output of a tool may read the same."""
        WebDriverWait(self.browser, WAIT_SECONDS).until(
            lambda browser: ("agent", text) in self.lines, f"not said: {text!r}"
        )

    def fill(self, name: str, text: str) -> None:
        field = self.browser.find_element(By.CSS_SELECTOR, f".card [name={name}]")
        field.clear()
        field.send_keys(text)

    def press(self, label: str) -> None:
        self.browser.find_element(By.XPATH, f"//button[text()='{label}']").click()

    def picture(self, name: str) -> None:
        """Kept where STANDFAST_SCREENSHOTS points, for people to look at."""
        if folder := os.environ.get("STANDFAST_SCREENSHOTS"):
            self.browser.save_screenshot(str(Path(folder, f"{name}.png")))

    @property
    def lines(self) -> list[tuple[str, str]]:
        found = self.browser.find_elements(By.CSS_SELECTOR, "#log li")
        return [(line.get_attribute("class"), line.text) for line in found]

    @property
    def spoken(self) -> list[tuple[str, str]]:
        return [line for line in self.lines if line[0] in ("user", "agent")]


async def test_the_page_goes_on_when_the_server_was_killed_in_mid_refund(desk: Desk, browser: Any) -> None:
    page = Page(browser, desk)
    page.say("I want a refund for order A7")
    page.see("The agent desk wants to do this")
    page.picture("1-approval")
    page.fill("amount", "30.5")
    page.press("Approve")
    async with asyncio.timeout(WAIT_SECONDS):
        while not desk.ledger:
            await asyncio.sleep(0.01)
    await desk.kill()
    page.see("connection lost, trying again")
    await desk.start()
    page.see("It may have happened")
    page.see("Taken up again after its process ended.")
    page.picture("2-uncertain")
    page.fill("word", "The bank has paid 30.50 euros.")
    page.press("It happened")
    page.hear("The bank has paid 30.50 euros.")
    page.say("And the lamp, B2, please")
    page.see("Order B2 is a lamp")
    page.fill("word", "It is not broken.")
    page.press("Reject")
    page.see("ann rejected it.")
    page.hear("It is not broken.")
    page.picture("3-rejected")
    assert desk.ledger == ["A7 30.50"]

    assert page.spoken == [
        ("user", "I want a refund for order A7"),
        ("agent", "The bank has paid 30.50 euros."),
        ("user", "And the lamp, B2, please"),
        ("agent", "It is not broken."),
    ]
    before = page.lines
    browser.refresh()
    page.hear("It is not broken.")
    assert page.lines == before
    problems = [entry for entry in browser.get_log("browser") if "ERR_" not in entry["message"]]
    assert problems == []


async def test_what_is_said_while_an_earlier_run_waits_stands_below_its_answer(desk: Desk, browser: Any) -> None:
    page = Page(browser, desk)
    page.say("I want a refund for order A7")
    page.see("The agent desk wants to do this")
    page.say("And what is B2?")
    page.see("And what is B2?")
    assert page.spoken == [("user", "I want a refund for order A7"), ("user", "And what is B2?")]
    browser.refresh()
    page.see("And what is B2?")
    page.fill("word", "It is not broken.")
    page.press("Reject")
    page.hear("It is not broken.")
    assert page.spoken[:3] == [
        ("user", "I want a refund for order A7"),
        ("agent", "It is not broken."),
        ("user", "And what is B2?"),
    ]


async def test_a_narrow_page_fits_and_its_fields_have_names(desk: Desk, browser: Any) -> None:
    browser.set_window_size(500, 900)
    page = Page(browser, desk)
    page.say("I want a refund for order C9")
    page.see("The agent desk wants to do this")
    page.picture("4-narrow")
    fits = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.execute_script(fits)
    fields = browser.find_elements(By.CSS_SELECTOR, "input, button")
    assert [field.accessible_name for field in fields if not field.accessible_name] == []
