"""Runs in a real browser: list, timeline, live words, the run at any step, forks, cancellation."""

import pytest
from selenium.webdriver.common.keys import Keys
from typer.testing import CliRunner

from browser import needs_chromium
from console.conftest import needs_console
from console.console_server import run_console
from standfast.cli.app import app

pytestmark = [needs_chromium, needs_console]


def test_a_run_is_started_and_its_result_is_shown(page):
    page.open("#/runs")
    page.click("summary", "Start a run")
    page.fill(".new-form textarea", "Good morning")
    page.click(".new-form button", "Start")
    page.wait_for("h1 .status", "completed")
    page.wait_for(".markdown", "You said: Good morning")
    page.wait_for(".event-title", "Model")


def test_runs_are_listed_and_filtered_and_say_why_they_wait(page, server, request):
    waiting = server.start_run("refund order 7", request.node.originalname)
    done = server.start_run("Good morning", f"{request.node.originalname}-2")
    page.open("#/runs")
    page.wait_for("td a", waiting)
    page.wait_for("td a", done)
    page.take_pictures("runs")
    found = page.list_violations()
    page.click(".filters a", "waiting")
    page.wait_for(".filters a[aria-current]", "waiting")
    page.wait_for("td a", waiting)
    assert all(cell.text == "waiting" for cell in page.find_all("td .status"))
    page.click("td a", waiting)
    page.wait_for(".why", "Waits for a decision about refund")
    page.wait_for(".run-detail .entry", "calls refund")
    assert len(page.find_all(".run-detail .entry-user")) == 1
    page.take_pictures("run")
    assert found + page.list_violations() == []
    page.driver.back()
    page.wait_for(".filters a[aria-current]", "waiting")


def test_the_time_machine_shows_each_step_of_a_long_run(page, server):
    run_id = server.start_run("look it up often", "stocktaking")
    steps = server.http.get(f"/runs/{run_id}").json()["steps"]
    assert steps > 500
    page.open(f"#/runs/{run_id}?at=9&tab=conversation")
    page.wait_for(".transcript", "look it up often")
    assert len(page.find_all(".event")) < 80, "only the rows that can be seen exist"
    short = len(page.find_all(".entry"))
    page.find("#step").send_keys(Keys.END)
    page.wait_for(".slider output", f"{steps} of {steps}")
    page.wait_for(".transcript", "That was often.")
    assert len(page.find_all(".entry")) > short
    page.wait_for(".event-seq", str(steps))
    page.wait_for(".step-usage", f"Up to step {steps}: 126 model calls")
    page.open(f"#/runs/{run_id}?at=7&tab=changes")
    page.wait_for(".step-usage", "Up to step 7: 1 model call,")
    page.wait_for(".difference", "items")
    page.take_pictures("step")
    assert page.list_violations() == []


def test_a_fork_with_another_input_is_another_run(page, server, request):
    run_id = server.start_run("Good morning", request.node.originalname)
    page.open(f"#/runs/{run_id}?at=3&tab=fork")
    page.fill("#fork-input", "Good night")
    page.click("button", "Fork with another input")
    page.wait_for(".markdown", "You said: Good night")
    page.wait_for("header", f"forked from {run_id}")
    assert server.http.get(f"/runs/{run_id}").json()["status"] == "completed"


def test_text_arrives_while_the_model_answers_and_the_run_can_be_cancelled(page, server, request):
    run_id = server.start_run("speak slowly", request.node.originalname, until=())
    page.open(f"#/runs/{run_id}")
    page.wait_for(".words", "These words are on their way")
    page.click("button", "Cancel now")
    page.wait_for("h1 .status", "cancelled")
    page.wait_for("button", "Resume")
    assert server.http.get(f"/runs/{run_id}").json()["status"] == "cancelled"


def test_an_answer_continues_after_the_server_was_killed_in_its_middle(page, tmp_path):
    with run_console(f"sqlite:///{tmp_path / 'other.db'}") as server:
        page.server = server
        page.sign_in()
        run_id = server.start_run("speak slowly", "letters", until=())
        page.open(f"#/runs/{run_id}")
        page.wait_for(".words", "on their way")
        page.driver.execute_script("window.isSamePage = true")
        server.kill()
        page.wait_for(".banner", "does not answer")
        server.start()
        page.wait_until_gone(".banner")
        page.wait_for(".event-text", "recovered")
        page.wait_for(".words", "on their way")
        assert page.read_text(".words").count("These words are") == 1
        page.click("button", "Cancel now")
        page.wait_for("h1 .status", "cancelled")
        assert page.find_all(".words") == []
        assert page.driver.execute_script("return window.isSamePage")
        page.driver.get("about:blank")


def test_a_run_is_followed_over_a_killed_server_and_an_uncertain_call_is_decided(page, tmp_path):
    with run_console(f"sqlite:///{tmp_path / 'other.db'}") as server:
        page.server = server
        page.sign_in()
        run_id = server.post("/runs", {"agent": "support", "input": "charge the card"})["run_id"]
        page.open(f"#/runs/{run_id}")
        server.wait_for_exit()
        page.wait_for(".banner", "does not answer")
        server.start()
        page.click(".why a", "charge")
        page.wait_for("h2", "may have happened")
        page.wait_for(".facts", f"{run_id}:")
        page.take_pictures("uncertain")
        page.click(".decision button", "It happened")
        page.fill("#output", "charged once")
        page.click(".decision button[type=submit]", "It happened")
        page.wait_for(".decided", "charged once")
        page.click(".approval a", "run")
        page.wait_for("h1 .status", "completed")
        page.wait_for(".markdown", "Done: charged once")
        page.driver.get("about:blank")


def test_an_exported_run_opens_without_a_server(page, server, request, tmp_path):
    run_id = server.start_run("publish", request.node.originalname)
    path = tmp_path / "run.html"
    answer = CliRunner().invoke(app, ["export", "run", run_id, "--html", "-o", str(path), "--store", server.store])
    assert answer.exit_code == 0, answer.output
    page.driver.get(path.as_uri())
    page.wait_for("h1", "support")
    page.click("summary", "approval.requested")
    page.wait_for("details[open] pre", "publish")
    assert "owned" not in page.driver.title
    assert page.driver.execute_script("return getComputedStyle(document.body).maxWidth") != "none", "it has its style"
    assert page.list_violations() == []


@pytest.mark.parametrize("run_id", ["unknown", "../keys", "<script>"])
def test_an_unknown_run_is_reported_as_unknown(page, run_id):
    page.open("#/runs/" + run_id.replace("/", "%2F"))
    page.wait_for("[role=alert]")
    page.click("main p a", "All runs")
    page.wait_for("h1", "Runs")
