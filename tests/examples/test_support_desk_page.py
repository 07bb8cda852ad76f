"""The support desk in a real browser."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from desk_client import DeskClient, desk
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import WAIT_SECONDS, chromium, needs_chromium
from standfast import Approval, open_store
from standfast.store.operations import SaveApproval

__all__ = ["desk"]

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def browser(driver: Any) -> Any:
    driver.get("about:blank")
    driver.get_log("browser")
    driver.set_window_size(1100, 760)
    return driver


class Page:
    """The page as a user sees and uses it."""

    def __init__(self, browser: Any, desk: DeskClient) -> None:
        self.browser = browser
        browser.get(f"http://127.0.0.1:{desk.port}/")

    def send_message(self, text: str) -> None:
        field = self.browser.find_element(By.ID, "text")
        field.send_keys(text)
        field.submit()

    def wait_for_text(self, text: str) -> None:
        WebDriverWait(self.browser, WAIT_SECONDS).until(
            lambda browser: text in browser.find_element(By.TAG_NAME, "body").text, f"{text!r} did not appear"
        )

    def wait_for_answer(self, text: str) -> None:
        """Wait for an answer of the agent; the output of a tool may have the same text."""
        WebDriverWait(self.browser, WAIT_SECONDS).until(
            lambda browser: ("agent", text) in self.lines, f"no answer {text!r}"
        )

    def fill(self, name: str, text: str) -> None:
        field = self.browser.find_element(By.CSS_SELECTOR, f".card [name={name}], .card [name=argument-{name}]")
        field.clear()
        field.send_keys(text)

    def press(self, label: str) -> None:
        self.browser.find_element(By.XPATH, f"//button[text()='{label}']").click()

    def save_screenshot(self, name: str) -> None:
        """Save a screenshot in the folder STANDFAST_PICTURES, if it is set."""
        if folder := os.environ.get("STANDFAST_PICTURES"):
            self.browser.save_screenshot(str(Path(folder, f"{name}.png")))

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What the log shows, read at once: the page may replace its elements at any moment."""
        script = (
            "return [...document.querySelectorAll('#log li')].map((line) => [line.className, line.innerText.trim()])"
        )
        return [(kind, text.strip()) for kind, text in self.browser.execute_script(script)]

    @property
    def messages(self) -> list[tuple[str, str]]:
        return [line for line in self.lines if line[0] in ("user", "agent")]


async def test_the_page_continues_after_the_server_was_killed_during_a_refund(desk: DeskClient, browser: Any) -> None:
    page = Page(browser, desk)
    page.send_message("I want a refund for order A7")
    page.wait_for_text("The agent desk wants to do this")
    page.save_screenshot("support_desk")
    page.fill("amount", "30.5")
    page.press("Approve")
    async with asyncio.timeout(WAIT_SECONDS):
        while not desk.ledger:
            await asyncio.sleep(0.01)
    await desk.kill()
    page.wait_for_text("connection lost, trying again")
    await desk.start()
    page.wait_for_text("It may have happened")
    page.wait_for_text("Resumed after a crash of the server.")
    page.save_screenshot("support_desk_uncertain")
    page.fill("word", "The bank has paid 30.50 euros.")
    page.press("It happened")
    page.wait_for_answer("The bank has paid 30.50 euros.")
    page.send_message("And the lamp, B2, please")
    page.wait_for_text("Order B2 is a lamp")
    page.fill("word", "It is not broken.")
    page.press("Reject")
    page.wait_for_text("ann rejected it.")
    page.wait_for_answer("It is not broken.")
    assert desk.ledger == ["A7 30.50"]

    assert page.messages == [
        ("user", "I want a refund for order A7"),
        ("agent", "The bank has paid 30.50 euros."),
        ("user", "And the lamp, B2, please"),
        ("agent", "It is not broken."),
    ]
    before = page.lines
    browser.refresh()
    page.wait_for_answer("It is not broken.")
    assert page.lines == before
    problems = [entry for entry in browser.get_log("browser") if "ERR_" not in entry["message"]]
    assert problems == []


async def test_a_message_during_a_waiting_run_appears_below_its_answer(desk: DeskClient, browser: Any) -> None:
    page = Page(browser, desk)
    page.send_message("I want a refund for order A7")
    page.wait_for_text("The agent desk wants to do this")
    page.send_message("And what is B2?")
    page.wait_for_text("And what is B2?")
    assert page.messages == [("user", "I want a refund for order A7"), ("user", "And what is B2?")]
    browser.refresh()
    page.wait_for_text("And what is B2?")
    page.fill("word", "It is not broken.")
    page.press("Reject")
    page.wait_for_answer("It is not broken.")
    assert page.messages[:3] == [
        ("user", "I want a refund for order A7"),
        ("agent", "It is not broken."),
        ("user", "And what is B2?"),
    ]


async def store_approval(folder: Path, name: str, arguments: str) -> None:
    """Write an approval as a store of another program might hold it."""
    approval = Approval(
        id=name, kind="approval", status="pending", run_id="run_x", session_id=None, agent="desk", tool="refund",
        call_id="c", arguments=arguments, digest="", requested_at=0.0,
    )  # fmt: skip
    async with open_store(f"sqlite:///{folder / 'desk.db'}") as store:
        data = msgspec.json.encode(approval)
        await store.backend.commit(
            SaveApproval(approval_id=name, expected=0, run_id="run_x", status="pending", data=data)
        )


async def test_an_odd_question_hides_no_other_and_shows_what_it_contains(desk: DeskClient, browser: Any) -> None:
    await store_approval(desk.folder, "approval_0", "pay \u202e00005 \x1b[2J")
    await store_approval(desk.folder, "approval_1", '["a list"]')
    await store_approval(desk.folder, "approval_2", '{"order": "\u202eA7", "amount": 5}')
    page = Page(browser, desk)
    page.wait_for_text(r"pay \u202e00005 \u001b[2J")
    page.wait_for_text('["a list"]')
    assert len(browser.find_elements(By.CSS_SELECTOR, "#questions .card")) == 3
    fields = browser.find_elements(By.CSS_SELECTOR, ".card [name=argument-order]")
    assert [field.get_attribute("value") for field in fields] == [r"\u202eA7"]


async def test_an_unedited_call_is_approved_as_it_is_whatever_its_arguments_are_called(
    desk: DeskClient, browser: Any
) -> None:
    await store_approval(desk.folder, "approval_0", '{"amount": 12345678901234567890}')
    arguments = '{"word": "<b onclick=x>A7</b>", "length": 5, "elements": ["a"], "remove": "r", "id": "i"}'
    await store_approval(desk.folder, "approval_1", arguments)
    page = Page(browser, desk)
    page.wait_for_text("12345678901234567890")  # as it is: JavaScript would round it
    page.wait_for_text("The agent desk wants to do this")
    fields = browser.find_elements(By.CSS_SELECTOR, ".card .arguments input")
    shown = [field.get_attribute("value") for field in fields]
    assert shown == ["<b onclick=x>A7</b>", "5", '["a"]', "r", "i"]
    sent = browser.execute_script("""
        const sent = [];
        window.fetch = async (path, options) => {
            sent.push(options?.body);
            return { ok: true, json: async () => ({ items: [] }) };
        };
        for (const button of document.querySelectorAll(".card .approve")) button.click();
        return sent;
    """)
    assert [msgspec.json.decode(body) for body in sent if body] == [{"decision": "approve"}] * 2


async def test_a_narrow_page_fits_and_its_fields_have_labels(desk: DeskClient, browser: Any) -> None:
    browser.set_window_size(500, 900)
    page = Page(browser, desk)
    page.send_message("I want a refund for order C9")
    page.wait_for_text("The agent desk wants to do this")
    fits = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.execute_script(fits)
    fields = browser.find_elements(By.CSS_SELECTOR, "input, button")
    assert [field.accessible_name for field in fields if not field.accessible_name] == []
