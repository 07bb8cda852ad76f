from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import chromium
from console.console_page import WIDE, ConsolePage
from console.console_server import ConsoleServer, run_console
from standfast.server.console_pages import CONSOLE

needs_console = pytest.mark.skipif(not (CONSOLE / "index.html").is_file(), reason="the console is not built")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an empty store for the tests of a module."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('store') / 'app.db'}"
    database = request.getfixturevalue("shared_database")
    database.empty()
    return str(database.url)


@pytest.fixture(scope="module")
def server(store_url: str) -> Iterator[ConsoleServer]:
    with run_console(store_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(driver: Any, server: ConsoleServer) -> Iterator[ConsolePage]:
    """A browser that has opened the printed URL."""
    opened = ConsolePage(driver, server)
    driver.get_log("browser")
    opened.resize(WIDE)
    opened.sign_in()
    yield opened
    assert opened.list_faults() == []


@pytest.fixture
def other_page(tmp_path: Path, server: ConsoleServer) -> Iterator[ConsolePage]:
    """A second browser, without a credential."""
    with chromium(tmp_path / "other") as opened:
        yield ConsolePage(opened, server)
