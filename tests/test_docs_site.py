"""The built site, in a browser: what its search finds, and what the reference shows."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser import WAIT_SECONDS, chromium, needs_chromium
from doc_pages import ROOT

pytestmark = [pytest.mark.soak, needs_chromium]
FOUND = """return [...document.querySelectorAll('.md-search-result__item > a')].map(one => one.pathname)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def page(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser, and the address of the site."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with chromium(tmp_path_factory.mktemp("profile")) as driver:
            yield driver, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("word", "guide"),
    [
        ("deploy", "/how-to/production/"),
        ("timeout", "/how-to/troubleshooting/"),
        ("retry", "/how-to/troubleshooting/"),
        ("delete", "/how-to/durable-runs/"),
        ("stuck", "/how-to/troubleshooting/"),
    ],
)
def test_a_search_finds_the_guide_among_the_first(page: Any, word: str, guide: str) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    driver, address = page
    driver.get(f"{address}/?q={word}")
    found = WebDriverWait(driver, WAIT_SECONDS).until(lambda it: it.execute_script(FOUND))
    assert guide in found[:3]


@pytest.mark.parametrize(
    ("page_name", "members"),
    [
        ("agents", ("agents.agent.Agent.tools", "agents.agent.Agent.name", "agents.context.ToolContext.context")),
        ("runtime", ("runtime.runtime.Runtime.approvals", "runtime.runtime.Runtime.runs")),
        ("runs", ("runs.result.RunResult.to_state",)),
    ],
)
def test_the_reference_shows_what_a_class_inherits(site: Path, page_name: str, members: tuple[str, ...]) -> None:
    shown = (site / "reference" / page_name / "index.html").read_text()
    assert [member for member in members if f'id="standfast.{member}"' not in shown] == []
