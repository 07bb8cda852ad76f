"""Workers in a real browser: pools, the notebook of a session, its variables, files and versions."""

import itertools
import time

import pytest
from selenium.webdriver.common.keys import Keys

from browser import needs_chromium
from console.conftest import needs_console
from console.console_server import run_console
from doc_pages import ROOT

pytestmark = [needs_chromium, needs_console]

numbers = itertools.count(1)
"""Of the sessions: their names are in the pictures of the documentation."""
ANALYST = ROOT / "tests/console/analyst.py"
SALES = """\
class Sales:
    rows = {"cups": 41, "saucers": 27, "pots": 12}

    def _repr_html_(self):
        cells = "".join(f"<tr><th>{name}</th><td>{count}</td></tr>" for name, count in self.rows.items())
        return f"<table><tr><th></th><th>sold</th></tr>{cells}</table>"


class Bars(Sales):
    def _repr_html_(self):
        return None

    def _repr_svg_(self):
        bars = "".join(
            f'<rect x="{x * 60 + 20}" y="{90 - 2 * n}" width="40" height="{2 * n}" fill="#17636c"/>'
            for x, n in enumerate(self.rows.values())
        )
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 220 100" width="330">{bars}</svg>'


display(Sales())
Bars()"""
HOSTILE = """\
class Page:
    def _repr_html_(self):
        return '''<script>parent.document.title="owned"</script><img src=x onerror="parent.document.title='owned'">
        <svg onload="parent.document.title='owned'"></svg><form action="/keys"><button>b</button></form>
        <meta http-equiv="refresh" content="0;url=/docs"><a href="/docs" target="_top">shown</a>'''


class Drawing:
    def _repr_svg_(self):
        return '<svg xmlns="http://www.w3.org/2000/svg" onload="parent.document.title=1"><script>top.x=1</script></svg>'


display(Page())
display(Drawing())
open("<img src=x onerror=top.x=1>\\u202e.txt", "w").write("named")
print("\\u202e\\x00<b>" + "x" * 150_000)"""


@pytest.fixture(scope="module")
def server(store_url):
    with run_console(store_url, "--python", agents=f"{ANALYST}:analyst") as opened:
        yield opened


@pytest.fixture
def notebook(page, server):
    session_id = f"stock-{next(numbers)}"
    server.post("/sessions", {"session_id": session_id})
    page.open(f"#/workers/{session_id}")
    page.wait_for(".empty", "No cells yet")
    return page


def run_cell(page, code):
    # Typed at once: each key would be a message to the browser.
    page.driver.execute_script(
        "const box = document.querySelector('#code'); box.focus(); box.value = arguments[0];"
        "box.dispatchEvent(new Event('input', {bubbles: true}))",
        code,
    )
    page.wait_for("#code")
    page.click(".new-cell button", "Run")


def test_cells_show_tables_and_pictures_and_what_they_leave_behind(notebook, server, tmp_path):
    page = notebook
    run_cell(page, "stock = {'cups': 59, 'saucers': 73}\nopen('notes.txt', 'w').write('for Ann')\nprint('counted')")
    page.wait_for(".output-stdout", "counted")
    run_cell(page, SALES)
    page.wait_for(".output-picture")
    frame = page.wait_for(".html-frame")
    page.driver.switch_to.frame(frame)
    page.wait_for("td", "41")
    page.driver.switch_to.default_content()
    page.wait_for(".variables th", "stock")
    assert page.driver.execute_script("return arguments[0].clientHeight", frame) > 60
    page.driver.execute_script("document.querySelector('#main').scrollTo(0, 100000)")
    page.take_pictures("notebook")
    found = page.list_violations()
    page.click("[role=tab]", "files")
    page.wait_for(".file-name", "notes.txt")
    upload = tmp_path / "orders.csv"
    upload.write_text("a,b\n1,2\n")
    page.find(".upload input").send_keys(str(upload))
    page.wait_for(".file-name", "orders.csv")
    run_cell(page, "open('orders.csv').read()")
    page.wait_for(".output-value", "a,b")
    page.click("li:has(.file-name) button", "remove")
    page.wait_for(".file-name", "orders.csv")
    assert found + page.list_violations() == []


def test_a_cell_asks_is_answered_and_another_is_interrupted(notebook):
    page = notebook
    run_cell(page, "name = input('Who are you? ')\nprint('Hello', name)")
    page.wait_for(".ask", "Who are you?")
    page.take_pictures("input")
    page.press("Ann", Keys.ENTER)
    page.wait_for(".output-stdout", "Hello Ann")
    run_cell(page, "print('begun', flush=True)\nwhile True: pass")
    page.wait_for(".output-stdout", "begun")
    run_cell(page, "later = 1")
    page.wait_for(".cell-queued")
    page.click(".cell-queued button", "Withdraw")
    page.wait_for("p.output-error", "interrupted before it began")
    page.click(".actions button", "Interrupt")
    page.wait_for(".output-error", "Interrupted.")
    run_cell(page, "name")
    page.wait_for(".output-value", "'Ann'")


def test_versions_are_a_tree_to_go_back_in_and_to_fork(notebook):
    page = notebook
    address = page.driver.current_url
    for number in (1, 2, 3):
        run_cell(page, f"x = {number}\nprint('x is', x)")
        page.wait_for(f".cell:nth-child({number}) .output-stdout", f"x is {number}")
    page.click("[role=tab]", "versions")
    page.click(".version button", "2")
    page.wait_for(".why", "You read version 2")
    page.click("button", "Go back to version 2")
    page.wait_for(".version.current", "from 2")
    run_cell(page, "print('again', x)")
    page.wait_for(".output-stdout", "again 2")
    page.wait_for(".version:nth-child(5)")
    page.take_pictures("versions")
    assert page.list_violations() == []
    page.click(".version button", "3")
    page.click("button", "Fork version 3")
    page.wait_for(".empty", "No cells yet")
    assert not page.driver.current_url.startswith(address)
    run_cell(page, "print('fork', x)")
    page.wait_for(".output-stdout", "fork 3")


def test_a_restart_reports_what_is_lost(notebook):
    page = notebook
    run_cell(page, "kept = 1\nlost = open('/dev/null')\nprint('made')")
    page.wait_for(".output-stdout", "made")
    page.wait_for(".quiet code", "lost")
    page.click(".actions button", "Restart")
    page.wait_for(".restart", "lost")
    page.take_pictures("restart")
    page.click(".restart button.danger", "Restart")
    page.wait_until_gone(".restart")
    run_cell(page, "'kept' in globals(), 'lost' in globals()")
    page.wait_for(".output-value", "(True, False)")


def test_hostile_outputs_are_shown_and_do_nothing(notebook):
    page = notebook
    run_cell(page, HOSTILE)
    page.driver.switch_to.frame(page.wait_for(".html-frame"))
    page.wait_for("a", "shown")
    page.click("a", "shown")  # it may not leave the frame
    page.driver.switch_to.default_content()
    page.wait_for(".output-stdout", "\\u{202e}\\u{0}<b>")
    page.click("[role=tab]", "files")
    page.wait_for(".file-name", "<img src=x onerror=top.x=1>\\u{202e}.txt")
    assert "owned" not in page.driver.title
    assert page.driver.execute_script("return window.x") is None
    assert page.driver.current_url.count("#/workers/") == 1
    page.driver.get_log("browser")  # what was refused


def test_pools_and_workers_are_listed_and_lead_to_workspaces(page, server, request):
    server.post("/sessions", {"session_id": request.node.originalname})
    cell = server.post(f"/sessions/{request.node.originalname}/workspace/cells", {"code": "1"})
    while (
        server.http.get(f"/sessions/{request.node.originalname}/workspace/cells/{cell['cell_id']}").json()["status"]
        != "done"
    ):
        pass
    page.open("#/workers")
    page.wait_for(".pool", "in use")
    page.wait_for(".sandbox .tag", "")
    page.wait_for("td .status", "in use")
    page.take_pictures("workers")
    assert page.list_violations() == []
    page.click("td a", request.node.originalname)
    page.wait_for(".output-value", "1")


def compute(server, session_id):
    """Let the agent run its next cell, wait until that is saved, and return the run and the step that made it."""
    run_id = server.start_run("Go on.", session_id, agent="analyst")
    while server.http.get(f"/sessions/{session_id}/workspace/versions").json()[-1]["checkpoint"] is None:
        time.sleep(0.02)
    steps = server.http.get(f"/runs/{run_id}").json()["steps"]
    runs = [server.http.get(f"/runs/{run_id}/step?at={at}").json()["run"] for at in range(1, steps + 1)]
    return run_id, next(one["step"] for one in runs if one["workspace_version"] == runs[-1]["workspace_version"])


def test_the_time_machine_shows_what_each_step_changed_in_the_workspace(page, server):
    compute(server, "rain")
    second, second_step = compute(server, "rain")
    third, third_step = compute(server, "rain")
    page.open(f"#/runs/{second}?at={second_step}&tab=workspace")
    page.wait_for(".variable-new", "totals")
    page.wait_for(".files .variable-new", "totals.csv")
    page.take_pictures("time-machine")
    assert page.list_violations() == []
    page.open(f"#/runs/{third}?at={third_step}&tab=workspace")
    page.wait_for(".variable-removed", "totals")
    page.wait_for(".tab-panel:not(.stale) .quiet", "Version 3")
    page.click("[role=tab]", "changes")
    page.wait_for(".entry", "output")
    page.click("[role=tab]", "workspace")
    page.click(".tab-panel a", "in its notebook")
    page.wait_for(".version.current", "3")
    assert page.find_all(".version a[href*=runs]") != []


def test_a_notebook_survives_a_killed_server_without_a_reload(notebook, server):
    page = notebook
    run_cell(page, "x = 20\nprint('before')")
    page.wait_for(".output-stdout", "before")
    page.wait_for(".variables th", "x")
    page.driver.execute_script("window.isSamePage = true")
    server.kill()
    page.wait_for(".banner", "does not answer")
    server.start()
    page.wait_until_gone(".banner")
    page.wait_for(".cell-head", "of a server that has ended")
    run_cell(page, "x + 1")
    page.wait_for(".output-value", "21")
    page.wait_for(".output-stdout", "before")
    assert page.driver.execute_script("return window.isSamePage")
