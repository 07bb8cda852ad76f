"""One connection of a :class:`~holdfast.testing.RealtimeServer`: the socket, the faults on it, and what passed."""

import asyncio
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from holdfast.base.errors import MissingExtra
from holdfast.lifecycle.scope import Scope
from holdfast.realtime.local.conversation import Conversation
from holdfast.realtime.local.engine import Engine
from holdfast.realtime.local.host import Host
from holdfast.realtime.local.outbox import Frame, Refused
from holdfast.testing.realtime_faults import (
    Collide,
    Delay,
    Drop,
    Expire,
    FaultPlan,
    Hold,
    Insert,
    Lose,
    Refuse,
    Stall,
)

try:
    from websockets.asyncio.server import ServerConnection
    from websockets.exceptions import ConnectionClosed
except ImportError as error:
    raise MissingExtra("realtime", "a realtime server for tests") from error

_encode = msgspec.json.Encoder().encode

# Codes that mean that there was no closing handshake, and so cannot be sent in one.
_UNSAYABLE = (None, 1005, 1006, 1015)


class RealtimeConnection:
    """What a server knows of one client. ``received`` and ``sent`` are the frames in order; text that is no JSON
    object is kept as text."""

    def __init__(self, index: int, socket: ServerConnection, plan: FaultPlan) -> None:
        self.index = index
        self.open = True
        self.received: list[Any] = []
        self.sent: list[Any] = []
        request = socket.request
        self.path = "" if request is None else request.path
        self.headers = {} if request is None else dict(request.headers.raw_items())
        self._socket, self._plan = socket, plan
        self._host: Host | None = None
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._held: list[tuple[str, Frame]] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._news = asyncio.Event()
        self._dropped = False

    @property
    def query(self) -> dict[str, str]:
        """The parameters in the URL that the client asked for."""
        return dict(parse_qsl(urlsplit(self.path).query))

    @property
    def engine(self) -> Engine:
        assert self._host is not None, "this connection was not served"
        return self._host.engine

    @property
    def conversation(self) -> Conversation:
        """What the server remembers."""
        return self.engine.conversation

    @property
    def session(self) -> dict[str, Any]:
        """The session with its settings, as the wire shows it."""
        return self.engine.shown()

    def received_of(self, kind: str) -> list[Frame]:
        """The client's frames of one type."""
        return [frame for frame in self.received if isinstance(frame, dict) and frame.get("type") == kind]

    def sent_of(self, kind: str) -> list[Frame]:
        """The frames of one type that were put on the wire."""
        return [frame for frame in self.sent if isinstance(frame, dict) and frame.get("type") == kind]

    async def until_received(self, kind: str, *, count: int = 1) -> Frame:
        """Wait for the client's frame of that type and number."""
        while len(self.received_of(kind)) < count:
            self._news.clear()
            await self._news.wait()
        return self.received_of(kind)[count - 1]

    def answer_unasked(self) -> None:
        """Begin a response that the client did not ask for, as a turn of speech does; nothing if one is active."""
        try:
            self.engine.begin_response(asyncio.get_running_loop().time())
        except Refused:
            return
        self._settle()

    def drop(self, code: int | None = None, reason: str = "") -> None:
        """End the connection once what was sent before is on the wire; without a code, break it.

        What the client sends from now on is not read any more.
        """
        self._dropped = True
        self._outgoing.put_nowait(Drop(code, reason))

    def cut(self) -> None:
        """Break the connection now, whatever is still to be written."""
        self._socket.transport.abort()

    def expire(self) -> None:
        """End the session as one that has reached its longest duration."""
        self.engine.expire()
        self._settle()

    def stall(self) -> None:
        """Neither read nor write from now on; nor answer a closing handshake."""
        self._flowing.clear()
        self._socket.transport.pause_reading()

    def resume(self) -> None:
        """Go on after :meth:`stall`."""
        if not self._flowing.is_set():
            self._flowing.set()
            if not self._socket.transport.is_closing():
                self._socket.transport.resume_reading()

    def send(self, frame: Frame | str) -> None:
        """Put a frame on the wire, as it is if it is text. The faults that wait for it strike now."""
        kind = frame["type"] if isinstance(frame, dict) else ""
        for fault in self._plan.striking(kind, self.index) if kind else ():
            match fault:
                case Insert(other):
                    self._outgoing.put_nowait(other)
                case Delay():
                    self._outgoing.put_nowait(fault)
                case Hold(until) if isinstance(frame, dict):
                    self._held.append((until, frame))
                    return
                case Lose():
                    return
                case Drop(code, reason):
                    self.drop(code, reason)
                    return
                case Stall():
                    self._outgoing.put_nowait(fault)
                case Expire():
                    self.expire()
        self._outgoing.put_nowait(frame)
        self._release(kind)

    async def serve(self, host: Host, scope: Scope) -> None:
        """Read until the connection ends; write beside it."""
        self._host = host
        writer = scope.start(self._write())
        host.start()
        try:
            async for data in self._socket:
                await self._flowing.wait()
                if not self._dropped:
                    self._read(data, host)
        finally:
            self.open = False
            writer.cancel()

    def _read(self, data: str | bytes, host: Host) -> None:
        frame = _frame_in(data)
        self.received.append(frame)
        self._news.set()
        kind = frame.get("type") if isinstance(frame, dict) else None
        for fault in self._plan.striking(kind, self.index) if isinstance(kind, str) else ():
            match fault:
                case Drop(code, reason):
                    self.drop(code, reason)
                    return
                case Lose():
                    return
                case Refuse(code, message):
                    event_id = frame.get("event_id") if isinstance(frame, dict) else None
                    host.engine.outbox.error(Refused(code, message), event_id=event_id)
                    host.settle()
                    return
                case Collide():
                    self.answer_unasked()
                case Expire():
                    self.expire()
                case Stall():
                    self.stall()
                case Insert(other):
                    self._outgoing.put_nowait(other)
                case Delay():
                    self._outgoing.put_nowait(fault)
        host.receive(frame if isinstance(frame, dict) else data)

    async def _write(self) -> None:
        try:
            while True:
                frame = await self._outgoing.get()
                await self._flowing.wait()
                match frame:
                    case Delay(seconds):
                        await asyncio.sleep(seconds)
                    case Stall():
                        self.stall()
                    case Drop(code, reason):
                        await self._end(code, reason)
                    case _:
                        self.sent.append(frame)
                        await self._socket.send(frame if isinstance(frame, str) else _encode(frame), text=True)
        except ConnectionClosed:
            return  # the reader notices

    async def _end(self, code: int | None, reason: str) -> None:
        self.open = False
        if code is None or code in _UNSAYABLE:
            self._socket.transport.abort()
        else:
            await self._socket.close(code, reason)

    def _release(self, kind: str) -> None:
        """Let go of the frames that were held until one of this type had passed."""
        for entry in [held for held in self._held if held[0] == kind]:
            self._held.remove(entry)
            self._outgoing.put_nowait(entry[1])

    def _settle(self) -> None:
        assert self._host is not None
        self._host.settle()


def _frame_in(data: str | bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return data
