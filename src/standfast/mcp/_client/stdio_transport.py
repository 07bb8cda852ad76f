"""The stdio transport: a child process that exchanges JSON messages, one per line, over its standard streams."""

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

from standfast.base.log import get_logger
from standfast.lifecycle import Scope
from standfast.lifecycle.scope import run_to_end
from standfast.mcp._client.message_limits import MessageMeter, MessageRefused

_log = get_logger("standfast.mcp")

# A server should exit when its input is closed. After the first timeout it gets SIGTERM, after the second SIGKILL.
STDIN_CLOSE_TIMEOUT = 2.0
KILL_TIMEOUT = 1.0
_CHUNK = 2**16
_STDERR_TAIL_CHARS = 2000


@dataclass
class ServerProcess:
    """The parameters of a server process, and its state while it runs and after it."""

    name: str
    command: Sequence[str] = field(repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None
    encoding: str = "utf-8"
    errors: str = "strict"
    max_message_bytes: int = 8 * 2**20
    process: asyncio.subprocess.Process | None = None
    stderr_tail: str = ""
    """The end of its standard error output."""
    refused: str = ""
    """Why its output is no longer read, while it runs."""

    @asynccontextmanager
    async def open_streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the process. The value is a stream of its messages and a stream for messages to it.

        The process has ended when the context is left.
        """
        self.stderr_tail = self.refused = ""
        async with Scope() as scope:
            self.process = child = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=get_default_environment() | self.env,
                cwd=self.cwd,
                # In its own process group, Ctrl-C does not reach the server, and its child processes can be killed.
                start_new_session=True,
            )
            inbox, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            outgoing, outbox = anyio.create_memory_object_stream[SessionMessage](0)
            scope.start(self._read_stdout(child, inbox))
            scope.start(self._write_stdin(child, outbox, inbox))
            scope.start(self._read_stderr(child))
            try:
                yield incoming, outgoing
            finally:
                incoming.close()
                outgoing.close()
                await run_to_end(stop_process(child), grace=0)
                scope.cancel()

    async def describe_exit(self) -> str:
        """Return why it was abandoned, or its exit code and the end of its standard error, or nothing while it runs."""
        if self.process is None or self.refused:
            return self.refused
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT):
                await self.process.wait()
        code = self.process.returncode
        if code is None:
            return ""
        how = f"it exited with code {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}"
        return f"{how}; its standard error ends with: {self.stderr_tail.strip()}" if self.stderr_tail.strip() else how

    async def _read_stdout(self, process: asyncio.subprocess.Process, inbox: MemoryObjectSendStream[Any]) -> None:
        assert process.stdout is not None  # noqa: S101 - opened with PIPE
        with inbox:
            try:
                await self._read_lines(process.stdout, inbox)
            except MessageRefused as error:
                self.refused = f"it sent {error}"
                _log.error("the MCP server %r sent %s; its output is ignored from now on", self.name, error)
        while await process.stdout.read(_CHUNK):  # otherwise a server that is still writing could not exit
            pass

    async def _read_lines(self, stdout: asyncio.StreamReader, inbox: MemoryObjectSendStream[Any]) -> None:
        meter, pieces = MessageMeter(self.max_message_bytes), list[bytes]()
        while chunk := await stdout.read(_CHUNK):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                meter.add(end)
                meter.reset()
                line, pieces = b"".join([*pieces, end]), []
                if line.strip():
                    with suppress(anyio.BrokenResourceError):
                        await self._deliver_line(line, inbox)
            meter.add(rest)
            pieces.append(rest)

    async def _deliver_line(self, line: bytes, inbox: MemoryObjectSendStream[Any]) -> None:
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode(self.encoding, self.errors), by_name=False)
        except ValueError:
            start = line[:200].decode(self.encoding, "replace")
            _log.warning(
                "the MCP server %r wrote a line to its standard output that is not a message: %s", self.name, start
            )
        else:
            await inbox.send(SessionMessage(message))

    async def _write_stdin(
        self,
        process: asyncio.subprocess.Process,
        outbox: MemoryObjectReceiveStream[SessionMessage],
        inbox: MemoryObjectSendStream[Any],
    ) -> None:
        assert process.stdin is not None  # noqa: S101 - opened with PIPE
        with outbox:
            try:
                async for message in outbox:
                    plain = message.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                    # ASCII only, because every allowed encoding is a superset of it.
                    process.stdin.write(json.dumps(plain).encode() + b"\n")
                    await process.stdin.drain()
            except (OSError, RuntimeError):
                inbox.close()  # the process no longer reads, so the session must end

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Log the standard error, and keep the end of it for error messages."""
        assert process.stderr is not None  # noqa: S101 - opened with PIPE
        while chunk := await process.stderr.read(_CHUNK):
            text = chunk.decode(self.encoding, "replace")
            self.stderr_tail = (self.stderr_tail + text[-_STDERR_TAIL_CHARS:])[-_STDERR_TAIL_CHARS:]
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s: %s", self.name, text.rstrip())


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Close the standard input and wait; send SIGTERM and wait; send SIGKILL, whatever happens before."""
    try:
        if process.stdin is not None:
            process.stdin.close()
        if not await _wait_for_exit(process, STDIN_CLOSE_TIMEOUT):
            _send_signal(process, signal.SIGTERM)
            await _wait_for_exit(process, KILL_TIMEOUT)
    finally:
        _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        if not await _wait_for_exit(process, KILL_TIMEOUT):
            _log.warning("a child process of the MCP server with pid %d keeps its pipes open", process.pid)
        process._transport.close()  # type: ignore[attr-defined]


async def _wait_for_exit(process: asyncio.subprocess.Process, timeout: float) -> bool:
    """Return True if the process and all processes that hold its pipes end within the timeout."""
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
