"""MCP servers for the tests, and the log of what they did."""

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
from mcp.types import CallToolResult, TextContent, Tool

from ports import free_port
from standfast import Agent, RunContextWrapper
from standfast.mcp import MCPServer, MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from standfast.mcp._client import connection, stdio_transport

SERVERS = Path(__file__).parent.parent / "mcp"
PLAIN_SERVER = str(SERVERS / "plain_server.py")
SDK_SERVER = str(SERVERS / "sdk_server.py")
# Far above what a request takes, so that slow machines do not matter.
TIMEOUT = 60


class ServerLog:
    """The lines that servers write about their starts and calls."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, line: str) -> int:
        return self.lines().count(line)

    def calls(self) -> list[str]:
        """Return the calls with arguments."""
        return [line for line in self.lines() if " " in line and not line.startswith("started ")]

    def pids(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines() if line.startswith("started ")]

    def release(self) -> None:
        """Let servers in the mode ``slow_exit`` exit."""
        Path(f"{self.path}.release").touch()

    def any_process_exists(self) -> bool:
        return any(map(process_exists, self.pids()))


def process_exists(pid: int) -> bool:
    """Return True if the process exists, even as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_running(pid: int) -> bool:
    """Return True unless the process has ended. Orphans may stay zombies until the system reaps them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def log(tmp_path: Path) -> ServerLog:
    return ServerLog(tmp_path / "log")


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up sooner on servers that do not end."""
    monkeypatch.setattr(stdio_transport, "STDIN_CLOSE_TIMEOUT", 0.3)
    monkeypatch.setattr(stdio_transport, "KILL_TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 1.0)


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for servers in the mode ``slow_exit`` until the test releases them."""
    monkeypatch.setattr(stdio_transport, "STDIN_CLOSE_TIMEOUT", TIMEOUT)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", TIMEOUT)


def stdio_server(log: ServerLog, *modes: str, script: str = PLAIN_SERVER, **options: Any) -> MCPServerStdio:
    """Declare a server in a child process. The default script starts at once, ``SDK_SERVER`` takes seconds."""
    env = {"SERVER_LOG": str(log.path), "SHOP_NAME": options.get("name", "shop"), **options.pop("env", {})}
    flags = ["-S", "-E"] if script == PLAIN_SERVER else []
    params = {"command": sys.executable, "args": [*flags, script, *modes], "env": env}
    return MCPServerStdio(params, **{"name": "shop", "client_session_timeout_seconds": TIMEOUT, **options})


def http_server(url: str, **options: Any) -> MCPServerStreamableHttp:
    params = {"url": url, **options.pop("params", {})}
    return MCPServerStreamableHttp(params, **{"name": "web", "client_session_timeout_seconds": TIMEOUT, **options})


def wait_for_ports(*ports: int) -> None:
    deadline = time.monotonic() + 120
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"no server listens on port {port}"
                time.sleep(0.02)


class PlainHttpServer:
    """The plain server over a real socket, in a process that can be killed and started again."""

    def __init__(self, log: ServerLog) -> None:
        self.log, self.port = log, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        env = {**os.environ, "SERVER_LOG": str(self.log.path)}
        self.process = subprocess.Popen([sys.executable, "-S", "-E", PLAIN_SERVER, "http", str(self.port)], env=env)
        wait_for_ports(self.port)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def server(self, **options: Any) -> MCPServerStreamableHttp:
        return http_server(self.url, **options)


@asynccontextmanager
async def start_http_server(log: ServerLog) -> AsyncIterator[PlainHttpServer]:
    """Start a plain HTTP server for a test that kills it."""
    server = PlainHttpServer(log)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def plain_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainHttpServer]:
    """A plain HTTP server that the tests of a module share; its log contains the calls of all of them."""
    server = PlainHttpServer(ServerLog(tmp_path_factory.mktemp("http") / "log"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


class SdkServers:
    """Servers built with the ``mcp`` library in one process: with events, JSON only, without sessions, and with SSE."""

    def __init__(self, log: ServerLog) -> None:
        self.log = log
        self.ports = {kind: free_port() for kind in ("events", "json", "stateless", "sse")}
        env = {**os.environ, "SERVER_LOG": str(log.path)}
        self.process = subprocess.Popen([sys.executable, SDK_SERVER, *map(str, self.ports.values())], env=env)

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.ports[kind]}/{'sse' if kind == 'sse' else 'mcp'}"

    def server(self, kind: str = "events", **options: Any) -> MCPServerStreamableHttp:
        return http_server(self.url(kind), **options)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def sdk_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkServers]:
    """Started once; its log contains the calls of all tests."""
    servers = SdkServers(ServerLog(tmp_path_factory.mktemp("sdk") / "log"))
    try:
        wait_for_ports(*servers.ports.values())
        yield servers
    finally:
        servers.kill()


class Relay:
    """A TCP relay to a port. Closing it looks to a client as if the server was killed."""

    def __init__(self, port: int) -> None:
        self._target_port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers += [writer, target_writer]
        await asyncio.gather(self._copy(reader, target_writer), self._copy(target_reader, writer))

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class DoublingServer(MCPServer):
    """A custom server. Its tools double a number, or raise ``error``."""

    def __init__(self, error: BaseException | None = None, hints: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.error, self.hints = error, hints or {"double": None}

    @property
    def name(self) -> str:
        return "own"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        return [Tool(name=name, input_schema={}, annotations=hints) for name, hints in self.hints.items()]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        if self.error is not None:
            raise self.error
        return CallToolResult(content=[TextContent(type="text", text=str(2 * arguments["n"]))])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


def sse_server(port: int) -> MCPServerSse:
    return MCPServerSse({"url": f"http://127.0.0.1:{port}/sse"}, client_session_timeout_seconds=TIMEOUT)


async def wait_until(condition: Callable[[], Any]) -> None:
    """Poll for something that another process does."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - the other process cannot set an event
            await asyncio.sleep(0.02)


def make_run_arguments() -> tuple[RunContextWrapper[Any], Agent[Any]]:
    """Return a context and an agent to list tools for."""
    return RunContextWrapper(None), Agent("clerk")
