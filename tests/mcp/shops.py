"""Servers for the tests, and what they did."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, RunContextWrapper
from holdfast.mcp import MCPServerStdio, MCPServerStreamableHttp

SCRIPT = str(Path(__file__).with_name("shop_server.py"))


class Journal:
    """What the servers noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, what: str) -> int:
        return self.lines().count(what)

    def pids(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines() if line.startswith("started ")]


def alive(pid: int) -> bool:
    """Whether there is such a process; one that nobody has waited for counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def running(pid: int) -> bool:
    """Whether the process does anything any more; orphans wait for the system to take notice of their end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def stdio(journal: Journal, *modes: str, **options: Any) -> MCPServerStdio:
    env = {"JOURNAL": str(journal.path), "SHOP_NAME": options.get("name", "shop")}
    params = {"command": sys.executable, "args": [SCRIPT, *modes], "env": env}
    return MCPServerStdio(params, **{"name": "shop", "client_session_timeout_seconds": 20, **options})


class HttpShop:
    """The same server over a real socket, in a process that can be killed and started again."""

    def __init__(self, journal: Journal, *options: str, kind: str = "streamable_http") -> None:
        self.journal, self.options, self.kind = journal, options, kind
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        code = (
            "import uvicorn; from shop_server import server;"
            f"app = server.{self.kind}_app({', '.join(self.options)});"
            f"uvicorn.run(app, port={self.port}, log_level='error')"
        )
        env = {**os.environ, "PYTHONPATH": str(Path(SCRIPT).parent), "JOURNAL": str(self.journal.path)}
        self.process = subprocess.Popen(  # noqa: ASYNC220 - it takes no time
            [sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL
        )
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                await writer.wait_closed()
                return

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def server(self, **options: Any) -> MCPServerStreamableHttp:
        return MCPServerStreamableHttp(
            {"url": self.url}, **{"name": "web", "client_session_timeout_seconds": 20, **options}
        )


@asynccontextmanager
async def http_shop(journal: Journal, *options: str, **kind: str) -> AsyncIterator[HttpShop]:
    shop = HttpShop(journal, *options, **kind)
    await shop.start()
    try:
        yield shop
    finally:
        shop.kill()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is nobody who could tell
            await asyncio.sleep(0.02)


def asking() -> tuple[RunContextWrapper[Any], Agent[Any]]:
    """Somebody to list tools for."""
    return RunContextWrapper(None), Agent("clerk")
