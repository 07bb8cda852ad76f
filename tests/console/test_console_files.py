"""The files of the console: built or not, served with a strict policy, small, and part of the packages."""

import gzip
import json
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from console.conftest import needs_console
from doc_pages import ROOT
from factories.server import Names, serve
from standfast import Runtime
from standfast.server import LoopbackToken, create_app
from standfast.server.console_pages import CONSOLE, POLICY, ConsolePages
from standfast.server.service import Service

LARGEST = 250_000


async def fetch(directory: Path, path: str, **headers: str):
    import httpx2
    from starlette.applications import Starlette

    async with Runtime.open("memory://", agents=[]) as runtime:
        service = Service(runtime, (LoopbackToken("secret"),))
        transport = httpx2.ASGITransport(Starlette(routes=ConsolePages(service, directory).routes))
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
            answer = await http.get(path, headers=headers)
        denied = await service.audit.list(action="denied")
        assert len(denied) == (answer.status_code == 401)
        return answer


async def test_an_installation_without_the_pages_says_how_to_get_them(tmp_path):
    answer = await fetch(tmp_path, "/")
    assert answer.status_code == 200
    assert "make console" in answer.text
    assert 'href="/docs"' in answer.text


async def test_the_printed_url_is_exchanged_for_a_cookie(tmp_path):
    answer = await fetch(tmp_path, "/?token=secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert (await fetch(tmp_path, "/?token=wrong")).status_code == 401


@pytest.mark.parametrize("path", ["/console/..%2f..%2fapp.py", "/console/../app.py", "/console/.hidden", "/console/x"])
async def test_no_other_file_can_be_read(tmp_path, path):
    (tmp_path / "app.py").write_text("secret")
    (tmp_path / "console").mkdir()
    (tmp_path / "console" / ".hidden").write_text("secret")
    answer = await fetch(tmp_path, path)
    assert answer.status_code == 404
    assert "secret" not in answer.text


async def test_pages_come_with_a_policy_that_allows_no_foreign_and_no_inline_script(tmp_path):
    (tmp_path / "index.html").write_text("<!doctype html>")
    answer = await fetch(tmp_path, "/")
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert "default-src 'none'" in POLICY


@needs_console
async def test_the_page_and_its_files_are_served_beside_the_api(tmp_path):
    async with Runtime.open("memory://", agents=[]) as runtime, serve(create_app(runtime, auth=Names())) as url:
        import httpx2

        async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
            page = await http.get("/")
            assert page.headers["content-security-policy"] == POLICY
            names = [path.name for path in (CONSOLE / "console").iterdir()]
            assert all(f"./console/{name}" in page.text for name in names if name.startswith("index"))
            for name in names:
                file = await http.get(f"/console/{name}")
                assert file.status_code == 200
                assert "immutable" in file.headers["cache-control"]
                assert file.headers["x-content-type-options"] == "nosniff"


@needs_console
def test_the_files_are_small_and_load_nothing_from_elsewhere():
    files = [path for path in CONSOLE.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= LARGEST
    page = (CONSOLE / "index.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert "<style" not in page


@needs_console
@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_packages_contain_the_built_files(builder):
    included = {Path(file.path).relative_to(ROOT).as_posix() for file in builder(str(ROOT)).recurse_included_files()}
    assert "src/standfast/server/console/index.html" in included
    assert not any("node_modules" in path for path in included)


def test_the_lock_file_names_no_address():
    lock = json.loads((ROOT / "console/package-lock.json").read_text())
    packages = [one for name, one in lock["packages"].items() if name]
    assert all("resolved" not in one for one in packages)
    assert all(one["integrity"].startswith("sha512-") for one in packages)
