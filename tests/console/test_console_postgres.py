"""The main flows of the console on PostgreSQL: a decision, a run, a search, a notebook."""

import pytest

from browser import chromium, needs_chromium
from console.conftest import needs_console
from console.console_page import WIDE, ConsolePage
from console.console_server import run_console

pytestmark = [needs_chromium, needs_console]


@pytest.fixture
def page(tmp_path, postgres_tables_url):
    with run_console(postgres_tables_url, "--python") as server, chromium(tmp_path / "profile") as driver:
        opened = ConsolePage(driver, server)
        opened.resize(WIDE)
        opened.sign_in()
        yield opened
        assert opened.list_faults() == []


def test_a_refund_with_edited_arguments_is_recorded(page):
    run_id = page.server.start_run("refund order 7", "ann")
    page.open("#/approvals")
    page.click(".row a", "refund")
    page.click(".approval button", "Edit and approve")
    page.fill(".field:nth-of-type(2) input", "12.5")
    page.click(".decision button[type=submit]", "1 change")
    page.wait_for(".decided .difference", "12.5")
    page.click(".approval a", "run")
    page.wait_for("h1 .status", "completed")
    page.wait_for(".markdown", "refunded 12.50 euros")
    page.open(f"#/runs/{run_id}?at=4&tab=changes")
    page.wait_for(".difference", "items")
    page.open("#/sessions?words=refund")
    page.click(".hits a", "ann")
    page.click("header a", "notebook")
    page.wait_for(".empty", "No cells yet")
    page.find("#code").send_keys("6 * 7")
    page.click(".new-cell button", "Run")
    page.wait_for(".output-value", "42")
