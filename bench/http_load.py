"""Servers in processes of their own, and requests to them that cost the client little."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.environments import CompetitorUnavailable

START_SECONDS = 120.0


@dataclass
class Server:
    """A server in a process of its own. ``headers`` are sent with every request."""

    port: int
    pid: int
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return self.headers["authorization"].removeprefix("Bearer ")

    def read_memory(self) -> int:
        """Return the resident bytes of the process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def open(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request on a connection of its own; a client library would take more time than the server."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        data = b"" if body is None else json.dumps(body).encode()
        fields = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "content-length": str(len(data)),
            "connection": "close",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in (fields | self.headers | headers).items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        return reader, writer

    async def request(self, method: str, path: str, body: object = None) -> bytes:
        """Return the whole answer, head included."""
        reader, writer = await self.open(method, path, body)
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def serve(store: str, *options: str) -> AsyncIterator[Server]:
    """Start ``standfast serve`` with the agents of the benchmark."""
    agents = ("bench.server:instant", "bench.server:speaker")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "standfast", "serve", *agents, "--store", store),
        *("--port", "0", "--rate-limit", "1e6", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"http://[^/]+:(\d+)/\?token=(\S+)\n", line)
        assert found is not None, line
        yield Server(int(found[1]), process.pid, {"authorization": f"Bearer {found[2]}"})
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def serve_competitor(
    name: str, command: Sequence[str], folder: Path, ready: str, environment: Mapping[str, str]
) -> AsyncIterator[Server]:
    """Start the server of another library in a folder.

    ``{port}`` in the command is its port, ``ready`` a path that it answers.
    """
    port = find_free_port()
    process = await asyncio.create_subprocess_exec(
        *(word.format(port=port) for word in command),
        cwd=folder,
        env=os.environ | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    server, deadline = Server(port, process.pid), time.monotonic() + START_SECONDS
    try:
        while not await is_answering(server, ready):
            if process.returncode is not None or time.monotonic() > deadline:
                raise CompetitorUnavailable(f"{name} does not answer at {ready}, exit code {process.returncode}")
            await asyncio.sleep(0.2)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):  # the group: some servers start processes of their own
            os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def is_answering(server: Server, path: str) -> bool:
    try:
        return b" 200 " in (await server.request("GET", path)).partition(b"\r\n")[0]
    except OSError:
        return False


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
