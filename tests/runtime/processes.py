"""Real processes for the tests of durable runs, forked from one that has everything imported."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import standfast

SOURCE = Path(standfast.__file__).parent.parent


class Child:
    """A forked process: its output, exit status and signals."""

    def __init__(self, pid: int, reader: asyncio.StreamReader) -> None:
        self.pid, self._reader = pid, reader
        self.status: int | None = None

    async def line(self, seconds: float = 300) -> str | None:
        """Return the next line that it prints, or ``None`` when it has ended."""
        found = (await asyncio.wait_for(self._reader.readline(), seconds)).decode().rstrip("\n")
        if found.startswith("exit "):
            self.status = int(found.removeprefix("exit "))
            return None
        return found

    async def end(self, seconds: float = 300) -> int:
        """Wait for its end and return its exit status, negative for a signal."""
        async with asyncio.timeout(seconds):
            while self.status is None:
                await self.line(seconds)
        return self.status

    def signal(self, number: int) -> None:
        if self.status is None:
            os.kill(self.pid, number)


Spawn: TypeAlias = Callable[..., AbstractAsyncContextManager[Child]]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[str]:
    """The socket of the process that forks the others."""
    with tempfile.TemporaryDirectory(prefix="standfast-fork_server-") as folder:
        path = str(Path(folder) / "socket")
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), path]
        environment = {"PYTHONPATH": str(SOURCE), "PATH": ""}
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield path
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture
def spawn(fork_server: str) -> Spawn:
    """``async with spawn(job, *arguments) as child``: it is killed at the latest when the block ends."""

    @asynccontextmanager
    async def spawned(job: str, *arguments: Any) -> AsyncIterator[Child]:
        reader, writer = await asyncio.open_unix_connection(fork_server)
        try:
            writer.write(json.dumps([job, arguments]).encode() + b"\n")
            child = Child(int((await reader.readline()).split()[1]), reader)
            try:
                yield child
            finally:
                with suppress(ProcessLookupError):
                    child.signal(signal.SIGKILL)
                await child.end()
        finally:
            writer.close()
            await writer.wait_closed()

    return spawned
