"""The examples of pages that need MongoDB and a Dapr sidecar run."""

from pathlib import Path

import pytest

from doc_pages import Shell, run_page
from test_docs import ON_FOREIGN_SERVERS, desk, page_name, shell

pytest.importorskip("dapr")

from dapr_server import DaprSidecar, serve_health
from mongodb_server import mongodb_url

__all__ = ["desk", "mongodb_url", "shell"]
pytestmark = pytest.mark.leaks("fd", "thread")  # gRPC polls in a thread of its own, which ends when it likes


@pytest.mark.parametrize("page", ON_FOREIGN_SERVERS, ids=page_name)
@pytest.mark.usefixtures("no_telemetry", "desk")
async def test_the_examples_of_a_page_run(
    page: Path, shell: Shell, mongodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_health() as health:
        async with DaprSidecar.running() as sidecar:
            monkeypatch.setenv("MONGODB_URL", mongodb_url)
            monkeypatch.setenv("DAPR_ADDRESS", sidecar.address)
            monkeypatch.setenv("DAPR_HTTP_ENDPOINT", health)
            shell.environment["MONGODB_URL"] = mongodb_url
            await run_page(page, shell=shell)
