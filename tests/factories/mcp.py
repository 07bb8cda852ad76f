"""Servers for the tests, and what they did."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from standfast import Agent, RunContextWrapper
from standfast.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp

PLAIN = str(Path(__file__).with_name("plain_server.py"))
REAL = str(Path(__file__).with_name("shop_server.py"))


class Journal:
    """What the servers noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, what: str) -> int:
        return self.lines().count(what)

    def calls(self) -> list[str]:
        """The calls with arguments."""
        return [line for line in self.lines() if " " in line and not line.startswith("started ")]

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


def stdio(journal: Journal, *modes: str, script: str = PLAIN, **options: Any) -> MCPServerStdio:
    """A child process of plain Python, or with ``script=REAL`` of the real library, which takes seconds to start."""
    env = {"JOURNAL": str(journal.path), "SHOP_NAME": options.get("name", "shop"), **options.pop("env", {})}
    plain = ["-S", "-E"] if script == PLAIN else []
    params = {"command": sys.executable, "args": [*plain, script, *modes], "env": env}
    return MCPServerStdio(params, **{"name": "shop", "client_session_timeout_seconds": 20, **options})


def wait_for(*ports: int) -> None:
    until = time.monotonic() + 30
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < until, f"nobody listens on {port}"
                time.sleep(0.02)


class HttpShop:
    """The plain server over a real socket, in a process that can be killed and started again."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.port = journal, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        env = {**os.environ, "JOURNAL": str(self.journal.path)}
        self.process = subprocess.Popen([sys.executable, "-S", "-E", PLAIN, "http", str(self.port)], env=env)
        wait_for(self.port)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def server(self, **options: Any) -> MCPServerStreamableHttp:
        return web(self.url, **options)


@asynccontextmanager
async def http_shop(journal: Journal) -> AsyncIterator[HttpShop]:
    shop = HttpShop(journal)
    shop.start()
    try:
        yield shop
    finally:
        shop.kill()


def web(url: str, **options: Any) -> MCPServerStreamableHttp:
    return MCPServerStreamableHttp({"url": url}, **{"name": "web", "client_session_timeout_seconds": 20, **options})


class Mall:
    """Servers of the real library in one process: events, plain JSON, without sessions, and the older transport."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.ports = journal, dict.fromkeys(("events", "json", "stateless", "sse"), 0)
        self.ports = {kind: free_port() for kind in self.ports}
        env = {**os.environ, "JOURNAL": str(journal.path)}
        self.process = subprocess.Popen([sys.executable, REAL, *map(str, self.ports.values())], env=env)

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.ports[kind]}/{'sse' if kind == 'sse' else 'mcp'}"

    def server(self, kind: str = "events", **options: Any) -> MCPServerStreamableHttp:
        return web(self.url(kind), **options)

    def older(self) -> MCPServerSse:
        return MCPServerSse({"url": self.url("sse")}, client_session_timeout_seconds=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def mall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mall]:
    """Started once: what a test does to it, others see."""
    found = Mall(Journal(tmp_path_factory.mktemp("mall") / "journal"))
    try:
        wait_for(*found.ports.values())
        yield found
    finally:
        found.kill()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is nobody who could tell
            await asyncio.sleep(0.02)


def asking() -> tuple[RunContextWrapper[Any], Agent[Any]]:
    """Somebody to list tools for."""
    return RunContextWrapper(None), Agent("clerk")
