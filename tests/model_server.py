"""A server of OpenAI's model APIs over real HTTP and WebSockets, with scripted responses and faults."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from websockets.frames import Opcode
from websockets.server import ServerProtocol


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as the server received it."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class Reply:
    """A complete response."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Stream:
    """A response in events. ``cut`` aborts the connection after them, without an end; ``close`` closes a WebSocket."""

    events: Sequence[dict[str, Any]]
    cut: bool = False
    close: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Drop:
    """No response: the connection is closed."""


@dataclass
class Hang:
    """No complete response, until the client disconnects; the events of ``first`` are streamed before.

    ``received`` is set when the server has the request, ``disconnected`` when the client has closed the connection.
    """

    first: Sequence[dict[str, Any]] = ()
    received: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)


ScriptedReply: TypeAlias = Reply | Stream | Drop | Hang


class ModelServer:
    """Sends scripted responses in order and records the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.websockets = 0
        self.closed = asyncio.Event()
        self.requests: list[ReceivedRequest] = []
        self._script: deque[ScriptedReply] = deque()

    @property
    def last_body(self) -> dict[str, Any]:
        return self.requests[-1].body

    def enqueue(self, *replies: ScriptedReply) -> None:
        self._script.extend(replies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                if headers.get("upgrade") == "websocket" and not isinstance(self._script[0], Reply):
                    await self._serve_websocket("\r\n".join(head).encode(), headers, reader, writer)
                    return
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(ReceivedRequest(head[0].split()[1], headers, json.loads(body or b"{}")))
                await self._reply(self._script.popleft(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve_websocket(
        self, head: bytes, headers: Mapping[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer each message with a scripted reply. A ``Reply`` refuses the handshake instead."""
        protocol = ServerProtocol(max_size=None)
        protocol.receive_data(head)
        (request,) = protocol.events_received()
        protocol.send_response(protocol.accept(request))
        self.websockets += 1
        while not protocol.close_expected():
            writer.write(b"".join(protocol.data_to_send()))
            await writer.drain()
            protocol.receive_data(await reader.read(65536)) if not reader.at_eof() else protocol.receive_eof()
            for frame in protocol.events_received():
                if frame.opcode is Opcode.TEXT:
                    self.requests.append(ReceivedRequest(request.path, headers, json.loads(frame.data)))
                    await self._send_messages(protocol, self._script.popleft(), reader, writer)
        writer.write(b"".join(protocol.data_to_send()))
        self.closed.set()

    async def _send_messages(
        self,
        protocol: ServerProtocol,
        reply: ScriptedReply,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        events = reply.events if isinstance(reply, Stream) else reply.first if isinstance(reply, Hang) else ()
        for event in events:
            protocol.send_text(json.dumps(event).encode())
        if isinstance(reply, Stream) and reply.close:
            protocol.send_close(1001)
        writer.write(b"".join(protocol.data_to_send()))
        await writer.drain()
        if isinstance(reply, Hang):
            reply.received.set()
            await reader.read(1)  # the frame that closes the connection
            reply.disconnected.set()
        if isinstance(reply, Hang | Drop) or reply.cut:
            raise ConnectionAbortedError

    async def _reply(self, reply: ScriptedReply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match reply:
            case Reply():
                body = json.dumps(reply.body).encode()
                head = {"content-type": "application/json", "content-length": str(len(body)), **reply.headers}
                writer.write(_format_head(reply.status, head) + body)
                await writer.drain()
            case Stream():
                await self._stream(writer, reply.events, reply.headers)
                if reply.cut:
                    raise ConnectionAbortedError
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            case Hang():
                reply.received.set()
                if reply.first:
                    await self._stream(writer, reply.first, {}, done=False)
                await reader.read()
                reply.disconnected.set()
                raise ConnectionAbortedError
            case Drop():
                raise ConnectionAbortedError

    async def _stream(
        self,
        writer: asyncio.StreamWriter,
        events: Sequence[dict[str, Any]],
        headers: Mapping[str, str],
        done: bool = True,
    ) -> None:
        head = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers}
        writer.write(_format_head(200, head))
        chat = bool(events) and "type" not in events[0]
        for event in events:
            name = "" if chat else f"event: {event['type']}\n"
            _write_chunk(writer, f"{name}data: {json.dumps(event)}\n\n")
        if chat and done:
            _write_chunk(writer, "data: [DONE]\n\n")
        await writer.drain()


def _format_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _write_chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


@asynccontextmanager
async def run_model_server() -> AsyncIterator[ModelServer]:
    model_server = ModelServer()
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        await model_server.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    model_server.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model_server
    finally:
        server.close()
        for writer in connections.values():
            writer.transport.abort()
        await asyncio.gather(*connections)
        await server.wait_closed()
