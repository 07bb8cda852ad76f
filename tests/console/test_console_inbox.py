"""The inbox of approvals in real browsers: every decision, two deciders, keys, hostile calls, a telephone."""

import itertools
import time

import pytest
from selenium.webdriver.common.keys import Keys

from browser import needs_chromium
from console.conftest import needs_console
from console.console_page import NARROW

pytestmark = [needs_chromium, needs_console]

numbers = itertools.count(1)
"""Of the customers, whose names are in the pictures of the documentation."""


@pytest.fixture
def approval(server):
    """An approval that waits, of a session of its own."""
    run_id = server.start_run("refund order 7", f"customer-{next(numbers)}")
    [found] = server.list_approvals(run_id=run_id)
    return found


def read_answer(server, run_id):
    while (run := server.http.get(f"/runs/{run_id}/outcome").json())["status"] != "completed":
        time.sleep(0.02)
    return run["final_output"]


def get_approval(server, approval):
    return server.http.get(f"/approvals/{approval['id']}").json()


def test_a_call_appears_and_is_approved(page, server, request):
    page.open("#/approvals")
    page.wait_for("h1", "Approvals")
    run_id = server.start_run("refund order 7", request.node.originalname)
    [approval] = server.list_approvals(run_id=run_id)
    page.click(f"#row-{approval['id']} a")
    page.wait_for(".excerpt", "refund order 7")
    page.click(".approval button", "Approve")
    page.wait_for(".decided", "by local")
    assert "refunded 40.00 euros" in read_answer(server, run_id)


def test_arguments_are_edited_in_a_form_made_from_the_schema(page, server, approval):
    page.open(f"#/approvals/{approval['id']}")
    page.click(".always input")  # it is for calls as the model makes them
    page.click(".approval button", "Edit and approve")
    page.wait_for(".field:nth-of-type(5)")
    assert page.find_all(".always") == []
    labels = [label.text for label in page.find_all(".field > label:first-child")]
    assert labels == ["order", "amount", "reason", "note", "notify"]
    page.fill(".field:nth-of-type(2) input", "twelve")
    assert page.find(".decision button[type=submit]").get_attribute("disabled")
    page.fill(".field:nth-of-type(2) input", "12.5")
    page.find(".field select").send_keys("late")
    changes = page.wait_for(".difference", "12.5").text
    assert "amount" in changes
    assert "40" in changes
    page.take_pictures("edit")
    page.click(".decision button[type=submit]", "2 changes")
    page.wait_for(".decided .difference", "12.5")
    assert "refunded 12.50 euros for order 7 (late)" in read_answer(server, approval["run_id"])


def test_a_rejection_carries_a_message_to_the_model(page, server, approval):
    page.open(f"#/approvals/{approval['id']}")
    page.click(".approval button", "Reject")
    page.press("Paid back yesterday.")
    page.click(".decision button[type=submit]", "Reject")
    page.wait_for(".decided", "Paid back yesterday.")
    assert "Paid back yesterday." in read_answer(server, approval["run_id"])


def test_always_decides_later_calls_of_the_session(page, server, approval):
    page.open(f"#/approvals/{approval['id']}")
    page.click(".always input")
    page.click(".approval button", "Approve")
    page.wait_for(".decided", "always")
    server.start_run("refund order 7", approval["session_id"], until=("completed",))


def test_the_decision_of_another_person_appears_and_is_final(page, other_page, server, approval):
    other_page.sign_in(server.create_key("eve", "approver"))
    for browser in (page, other_page):
        browser.open(f"#/approvals/{approval['id']}")
        browser.wait_for(".approval button", "Approve")
    other_page.click(".approval button", "Reject")
    other_page.click(".decision button[type=submit]", "Reject")
    other_page.wait_for(".decided", "by key:")
    page.wait_for(".decided", "by key:")
    assert page.find_all(".approval button.primary") == []
    assert get_approval(server, approval)["status"] == "rejected"
    assert other_page.list_faults() == []


def test_a_decision_that_comes_second_is_refused_and_shown(page, server, approval):
    page.open(f"#/approvals/{approval['id']}")
    page.wait_for(".approval button", "Approve")
    # Decided between the click and the request: the page sends its own all the same.
    page.driver.execute_script(
        """const send = window.fetch;
        window.fetch = async (url, init) => {
          if (init?.method === 'POST' && String(url).includes('/approvals/')) {
            window.fetch = send;
            await send(url, {...init, body: JSON.stringify({decision: 'reject', message: 'first'})});
          }
          return send(url, init);
        }"""
    )
    page.click(".approval button", "Approve")
    page.wait_for("[role=alert]")
    page.wait_for(".decided", "first")
    assert page.find_all(".approval button.primary") == []
    assert get_approval(server, approval)["status"] == "rejected"


def test_keys_move_and_decide(page, server, request):
    for entry in server.list_approvals(status="pending"):
        server.post(f"/approvals/{entry['id']}", {"decision": "reject"})
    runs = [server.start_run("refund order 7", f"{request.node.originalname}-{number}") for number in range(3)]
    page.open("#/approvals")
    page.driver.refresh()
    page.wait_for(".row:nth-child(3)")
    page.press("j", "j", "k", "a")
    page.wait_for(".decided", "by local")
    page.press("j", "r")
    page.wait_for(".decision textarea:focus")
    page.press("No.")
    page.press(Keys.CONTROL + Keys.ENTER)
    page.wait_for(".decided", "No.")
    page.press("j", "e")
    page.wait_for(".decision .field")
    page.press(Keys.ESCAPE)
    page.wait_for(".approval button", "Approve")
    statuses = [server.list_approvals(run_id=run)[0]["status"] for run in runs]
    assert statuses == ["approved", "rejected", "pending"]


def test_several_are_decided_at_once(page, server, request):
    runs = [server.start_run("refund order 7", f"{request.node.originalname}-{number}") for number in range(2)]
    ids = [server.list_approvals(run_id=run)[0]["id"] for run in runs]
    page.open("#/approvals")
    for one in ids:
        page.click(f"#row-{one} .tick input")
    page.wait_for(".batch", "2 selected")
    page.take_pictures("batch")
    page.click(".batch button", "Approve all")
    for run in runs:
        assert "refunded" in read_answer(server, run)
    page.wait_until_gone(".batch")


def test_hostile_arguments_are_shown_and_do_nothing(page, server, request):
    run_id = server.start_run("publish", request.node.originalname)
    [approval] = server.list_approvals(run_id=run_id)
    page.open(f"#/approvals/{approval['id']}")
    page.wait_for(".approval .code", "<script>")
    assert "\\u{202e}" in page.read_text(".approval .facts")
    assert "show all 300 kB" in page.read_text(".approval .facts")
    page.click(".approval button", "Edit and approve")
    page.wait_for(".decision textarea")
    assert "\\u202e" in page.find(".decision textarea").get_attribute("value")
    assert page.find_all("main img, main script, main svg, main iframe") == []
    assert "owned" not in page.driver.title
    page.take_pictures("hostile")


def test_the_inbox_is_usable_on_a_telephone(page, server, approval):
    page.resize(NARROW)
    page.open("#/approvals")
    page.click(f"#row-{approval['id']} a")
    button = page.wait_for(".approval button", "Approve")
    box = button.rect
    assert box["height"] >= 40
    assert box["y"] + box["height"] <= NARROW[1], "the decision is on the first screen"
    button.click()
    page.wait_for(".decided", "by local")
    page.click(".back")
    page.wait_for("h1", "Approvals")


def test_axe_finds_nothing_serious(page, server, approval):
    page.open(f"#/approvals/{approval['id']}")
    page.wait_for(".excerpt li")
    page.take_pictures("approvals")
    found = page.list_violations()
    page.click(".approval button", "Edit and approve")
    page.wait_for(".decision .field")
    assert found + page.list_violations() == []
