"""A server as a child process that speaks in lines of JSON on its standard streams."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from standfast.lifecycle import Scope
from standfast.lifecycle.cancellation import run_to_end

_log = logging.getLogger("standfast.mcp")

# A server ends by itself when its input is closed; one that does not is told to, and then made to.
STDIN_CLOSE_TIMEOUT = 2.0
KILL_TIMEOUT = 1.0
# A message longer than this is no message: the server has lost its way.
MAX_MESSAGE_BYTES = 64 * 2**20
_CHUNK = 2**16
_STDERR_TAIL_CHARS = 2000


@dataclass
class ServerProcess:
    """How to start it, and while it runs or after it, what is known about it."""

    name: str
    command: Sequence[str] = field(repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None
    encoding: str = "utf-8"
    errors: str = "strict"
    process: asyncio.subprocess.Process | None = None
    stderr_tail: str = ""
    """The end of what it wrote to its standard error."""

    @asynccontextmanager
    async def open_streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it; its messages, and where to put those for it. It is gone when the context is left."""
        self.stderr_tail = ""
        async with Scope() as scope:
            self.process = child = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=get_default_environment() | self.env,
                cwd=self.cwd,
                # A group of its own: a Ctrl-C is for the program, and what the server starts ends with it.
                start_new_session=True,
            )
            heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            outgoing, to_say = anyio.create_memory_object_stream[SessionMessage](0)
            scope.start(self._read_stdout(child, heard))
            scope.start(self._write_stdin(child, to_say, heard))
            scope.start(self._read_stderr(child))
            try:
                yield incoming, outgoing
            finally:
                incoming.close()
                outgoing.close()
                await run_to_end(stop_process(child), grace=0)
                scope.cancel()

    async def describe_exit(self) -> str:
        """How it ended and what it said last; nothing while it runs."""
        if self.process is None:
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT):
                await self.process.wait()
        code = self.process.returncode
        if code is None:
            return ""
        how = f"it ended with exit code {code}" if code >= 0 else f"it was ended by {signal.Signals(-code).name}"
        return f"{how}; it said: {self.stderr_tail.strip()}" if self.stderr_tail.strip() else how

    async def _read_stdout(self, process: asyncio.subprocess.Process, inbox: MemoryObjectSendStream[Any]) -> None:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        with inbox:
            pieces: list[bytes] = []
            while chunk := await process.stdout.read(_CHUNK):
                first, *lines = chunk.split(b"\n")
                pieces.append(first)
                if not lines:
                    if sum(map(len, pieces)) > MAX_MESSAGE_BYTES:
                        _log.error("the MCP server %r writes without end; it is not listened to any more", self.name)
                        break
                    continue
                lines, pieces = [b"".join(pieces), *lines[:-1]], [lines[-1]]
                with suppress(anyio.BrokenResourceError):
                    for line in filter(bytes.strip, lines):
                        await self._deliver_line(line, inbox)
        while await process.stdout.read(_CHUNK):  # or a server that still writes could not end
            pass

    async def _deliver_line(self, line: bytes, inbox: MemoryObjectSendStream[Any]) -> None:
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode(self.encoding, self.errors), by_name=False)
        except ValueError:
            start = line[:200].decode(self.encoding, "replace")
            _log.warning(
                "the MCP server %r wrote something to its standard output that is not a message: %s", self.name, start
            )
        else:
            await inbox.send(SessionMessage(message))

    async def _write_stdin(
        self,
        process: asyncio.subprocess.Process,
        outbox: MemoryObjectReceiveStream[SessionMessage],
        inbox: MemoryObjectSendStream[Any],
    ) -> None:
        assert process.stdin is not None  # noqa: S101 - it was asked for
        with outbox:
            try:
                async for message in outbox:
                    plain = message.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                    # Escaped to ASCII, which every encoding that is allowed can write.
                    process.stdin.write(json.dumps(plain).encode() + b"\n")
                    await process.stdin.drain()
            except (OSError, RuntimeError):
                inbox.close()  # nobody reads there; the session is to hear of it

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        """What it writes to its standard error is kept in part, for errors, and logged."""
        assert process.stderr is not None  # noqa: S101 - it was asked for
        while chunk := await process.stderr.read(_CHUNK):
            text = chunk.decode(self.encoding, "replace")
            self.stderr_tail = (self.stderr_tail + text[-_STDERR_TAIL_CHARS:])[-_STDERR_TAIL_CHARS:]
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s: %s", self.name, text.rstrip())


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Close its input and wait; tell it to end and wait; kill it. The last is done however the others come out."""
    try:
        if process.stdin is not None:
            process.stdin.close()
        if not await _wait_for_exit(process, STDIN_CLOSE_TIMEOUT):
            _send_signal(process, signal.SIGTERM)
            await _wait_for_exit(process, KILL_TIMEOUT)
    finally:
        _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        if not await _wait_for_exit(process, KILL_TIMEOUT):
            _log.warning("a process that the MCP server %d has started keeps its pipes open", process.pid)
        process._transport.close()  # type: ignore[attr-defined]


async def _wait_for_exit(process: asyncio.subprocess.Process, timeout: float) -> bool:
    """Whether it ends in time, with everything that it has started and that holds its pipes."""
    try:
        async with asyncio.timeout(timeout):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.kill()
