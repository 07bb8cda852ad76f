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

from holdfast.lifecycle import Scope
from holdfast.lifecycle.finishing import finish

_log = logging.getLogger("holdfast.mcp")

# A server ends by itself when its input is closed; one that does not is told to, and then made to.
PATIENCE = 2.0
LAST_PATIENCE = 1.0
# A message longer than this is no message: the server has lost its way.
LONGEST = 64 * 2**20
_CHUNK = 2**16
_KEPT = 2000


@dataclass
class ServerProcess:
    """How to start it, and while it runs or after it, what is known about it."""

    name: str
    command: Sequence[str] = field(repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None
    encoding: str = "utf-8"
    errors: str = "strict"
    child: asyncio.subprocess.Process | None = None
    said: str = ""
    """The end of what it wrote to its standard error."""

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it; its messages, and where to put those for it. It is gone when the context is left."""
        self.said = ""
        async with Scope() as scope:
            self.child = child = await asyncio.create_subprocess_exec(
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
            scope.start(self._listen(child, heard))
            scope.start(self._speak(child, to_say, heard))
            scope.start(self._overhear(child))
            try:
                yield incoming, outgoing
            finally:
                incoming.close()
                outgoing.close()
                await finish(stop(child), grace=0)
                scope.cancel()

    async def epitaph(self) -> str:
        """How it ended and what it said last; nothing while it runs."""
        if self.child is None:
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_PATIENCE):
                await self.child.wait()
        code = self.child.returncode
        if code is None:
            return ""
        how = f"it ended with exit code {code}" if code >= 0 else f"it was ended by {signal.Signals(-code).name}"
        return f"{how}; it said: {self.said.strip()}" if self.said.strip() else how

    async def _listen(self, child: asyncio.subprocess.Process, heard: MemoryObjectSendStream[Any]) -> None:
        assert child.stdout is not None  # noqa: S101 - it was asked for
        with heard:
            pieces: list[bytes] = []
            while chunk := await child.stdout.read(_CHUNK):
                first, *lines = chunk.split(b"\n")
                pieces.append(first)
                if not lines:
                    if sum(map(len, pieces)) > LONGEST:
                        _log.error("the MCP server %r writes without end; it is not listened to any more", self.name)
                        break
                    continue
                lines, pieces = [b"".join(pieces), *lines[:-1]], [lines[-1]]
                with suppress(anyio.BrokenResourceError):
                    for line in filter(bytes.strip, lines):
                        await self._deliver(line, heard)
        while await child.stdout.read(_CHUNK):  # or a server that still writes could not end
            pass

    async def _deliver(self, line: bytes, heard: MemoryObjectSendStream[Any]) -> None:
        try:
            message = jsonrpc_message_adapter.validate_json(line.decode(self.encoding, self.errors), by_name=False)
        except ValueError:
            start = line[:200].decode(self.encoding, "replace")
            _log.warning(
                "the MCP server %r wrote something to its standard output that is not a message: %s", self.name, start
            )
        else:
            await heard.send(SessionMessage(message))

    async def _speak(
        self,
        child: asyncio.subprocess.Process,
        to_say: MemoryObjectReceiveStream[SessionMessage],
        heard: MemoryObjectSendStream[Any],
    ) -> None:
        assert child.stdin is not None  # noqa: S101 - it was asked for
        with to_say:
            try:
                async for message in to_say:
                    plain = message.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                    # Escaped to ASCII, which every encoding that is allowed can write.
                    child.stdin.write(json.dumps(plain).encode() + b"\n")
                    await child.stdin.drain()
            except (OSError, RuntimeError):
                heard.close()  # nobody reads there; the session is to hear of it

    async def _overhear(self, child: asyncio.subprocess.Process) -> None:
        """What it writes to its standard error is kept in part, for errors, and logged."""
        assert child.stderr is not None  # noqa: S101 - it was asked for
        while chunk := await child.stderr.read(_CHUNK):
            text = chunk.decode(self.encoding, "replace")
            self.said = (self.said + text[-_KEPT:])[-_KEPT:]
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s: %s", self.name, text.rstrip())


async def stop(child: asyncio.subprocess.Process) -> None:
    """Close its input and wait; tell it to end and wait; kill it. The last is done however the others come out."""
    try:
        if child.stdin is not None:
            child.stdin.close()
        if not await _gone(child, PATIENCE):
            _signal(child, signal.SIGTERM)
            await _gone(child, LAST_PATIENCE)
    finally:
        _signal(child, getattr(signal, "SIGKILL", signal.SIGTERM))
        if not await _gone(child, LAST_PATIENCE):
            _log.warning("a process that the MCP server %d has started keeps its pipes open", child.pid)
        child._transport.close()  # type: ignore[attr-defined]


async def _gone(child: asyncio.subprocess.Process, within: float) -> bool:
    """Whether it ends in time, with everything that it has started and that holds its pipes."""
    try:
        async with asyncio.timeout(within):
            await child.wait()
    except TimeoutError:
        return False
    return True


def _signal(child: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, number)
        else:
            child.kill()
