"""Schedules, budgets and webhooks in a real browser, with a server that receives events."""

import base64
import hashlib
import hmac
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from browser import needs_chromium
from console.conftest import needs_console

pytestmark = [needs_chromium, needs_console]


@pytest.fixture
def receiver():
    """A server on this machine; its first answer is an error. What it receives is in ``received``."""
    answers = queue.SimpleQueue()
    answers.put(500)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            server.received.put((dict(self.headers.items()), body))
            self.send_response(204 if answers.empty() else answers.get())
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.received = queue.SimpleQueue()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def verify(headers, body, secret):
    """Check a signature as Standard Webhooks defines it."""
    headers = {name.lower(): value for name, value in headers.items()}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert f"v1,{expected}" in headers["webhook-signature"].split(" ")
    return headers["webhook-id"]


def test_a_webhook_is_created_tried_out_and_shows_its_deliveries(page, server, receiver, request):
    page.open("#/settings")
    page.wait_for(".empty", "No webhooks yet")
    page.click("summary", "Create a webhook")
    page.fill(".new-form [inputmode=url]", f"http://127.0.0.1:{receiver.server_port}/events")
    page.click(".tick-line input")
    page.click("details:has(.ticks) .new-form button", "Create")
    secret = page.wait_for("[role=status] .code").text
    page.click(".webhook button", "Send a test")
    failed = verify(*receiver.received.get(timeout=120), secret)
    page.wait_for(".deliveries td", "500")
    page.wait_for(".deliveries td", "again")
    run_id = server.start_run("Good morning", request.node.originalname)
    headers, body = receiver.received.get(timeout=120)
    while verify(headers, body, secret) == failed:  # it is tried again meanwhile
        headers, body = receiver.received.get(timeout=120)
    assert json.loads(body)["type"] == "run.completed"
    assert run_id in body.decode()
    page.wait_for(".deliveries tr:has(.status-delivered) summary", "run.completed")
    page.driver.execute_script("document.querySelector('.webhook').scrollIntoView()")
    page.take_pictures("webhooks")
    found = page.list_violations()
    page.click(".deliveries tr:has(.status-delivered) button", "send again")
    assert page.wait_for(".webhook strong", "127.0.0.1")
    page.click(".webhook .danger", "Delete")
    page.driver.switch_to.alert.accept()
    page.wait_for(".empty", "No webhooks yet")
    assert found == []


def test_a_budget_is_made_shows_what_was_spent_and_is_deleted(page, server, request):
    page.open("#/settings")
    page.wait_for(".empty", "No budgets yet")
    page.click("summary", "Create or replace a budget")
    page.fill("details[open] label:nth-child(1) input", "everybody")
    page.fill("details[open] label:nth-child(2) input", "150")
    page.fill("details[open] label:nth-child(3) input", "2.5")
    page.click("details[open] button", "Save")
    page.wait_for(".budgets td", "150 tokens or $2.50 a month")
    run_id = server.start_run("Spend something", request.node.originalname, agent="treasurer")
    page.wait_for(".budgets td", "100 tokens, $0.00047")
    page.open(f"#/runs/{run_id}")
    page.wait_for("header p", "1 model call, 60 + 40 tokens, $0.00047")
    server.start_run("Spend more", request.node.originalname, agent="treasurer")
    stopped = server.start_run("Spend too much", request.node.originalname, agent="treasurer", until=("waiting",))
    page.open(f"#/runs/{stopped}")
    page.wait_for(".why", "the budget 'everybody' of 150 tokens or $2.5 a month is used up")
    page.open("#/settings")
    page.wait_for(".budgets .status", "used up")
    page.driver.execute_script("document.querySelector('.budgets').scrollIntoView()")
    page.take_pictures("budgets")
    found = page.list_violations()
    page.click(".budgets button", "delete")
    page.driver.switch_to.alert.accept()
    page.wait_for(".empty", "No budgets yet")
    page.open(f"#/runs/{stopped}")
    page.wait_for("h1 .status", "completed")
    assert found == []


def test_a_schedule_starts_runs_until_it_is_paused(page, server):
    page.open("#/settings")
    page.wait_for(".empty", "No schedules yet")
    page.click("summary", "Create or replace a schedule")
    page.fill("details[open] label:nth-child(1) input", "morning report")
    page.fill("details[open] [type=number]", "0.02")
    page.fill("details[open] textarea", "Good morning")
    page.click("details[open] button", "Save")
    page.wait_for(".schedules td", "every 1.2 s")
    link = page.wait_for(".schedules td a")
    run_id = link.get_attribute("href").rpartition("/")[2]
    assert server.http.get(f"/runs/{run_id}").json()["agent"] == "support"
    page.click(".schedules button", "pause")
    page.wait_for(".schedules .status", "paused")
    page.driver.execute_script("document.querySelector('.schedules').scrollIntoView()")
    page.take_pictures("schedules")
    found = page.list_violations()
    page.click(".schedules button", "resume")
    page.wait_for(".schedules button", "pause")
    page.click(".schedules button", "delete")
    page.driver.switch_to.alert.accept()
    page.wait_for(".empty", "No schedules yet")
    assert found == []
