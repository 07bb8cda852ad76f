"""One connection of a :class:`~standfast.testing.RealtimeServer`: its socket, frames and injected faults.

``server.inject("response.output_audio.delta", Disconnect(code=1011), skip=3)`` lets three such frames pass and
disconnects instead of sending the fourth. The first argument is the type of a client or server event, ``"connect"`` for
the opening handshake, or ``"*"`` for any frame of the server.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from standfast.base.errors import MissingExtra
from standfast.lifecycle.scope import Scope
from standfast.realtime.local.actions import Frame, InvalidRequest
from standfast.realtime.local.conversation import EngineConversation
from standfast.realtime.local.engine import Engine
from standfast.realtime.local.engine_runner import EngineRunner
from standfast.realtime.local.handlers import CLIENT_EVENT_HANDLERS


@dataclass(frozen=True)
class Disconnect:
    """Close the connection instead. Without a code it is aborted, without a close handshake."""

    code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Delay:
    """Send this frame, and all frames after it, this many seconds later."""

    seconds: float


@dataclass(frozen=True)
class Reorder:
    """Send this frame out of order: after the next frame of another type."""

    after: str


@dataclass(frozen=True)
class Discard:
    """Do not send this frame or, if it is a frame of the client, ignore it."""


@dataclass(frozen=True)
class Insert:
    """Send another frame first, such as text that is not JSON or an unknown event."""

    frame: str | dict[str, Any]


@dataclass(frozen=True)
class Collide:
    """Start a response, as speech does, just before the client's frame is handled."""


@dataclass(frozen=True)
class Expire:
    """Close the session as if it had reached its maximum duration."""


@dataclass(frozen=True)
class Reject:
    """Answer the client's frame with an error. For ``"connect"``, ``status`` is the HTTP status of the handshake."""

    code: str = "invalid_request"
    message: str = "rejected by the test"
    status: int = 503


@dataclass(frozen=True)
class Stall:
    """Stop reading and writing without closing the socket, like a peer that hangs."""


Fault: TypeAlias = Disconnect | Delay | Reorder | Discard | Insert | Collide | Expire | Reject | Stall


@dataclass
class PlannedFault:
    """A fault that waits for its frame. ``connection`` is an index from 0; ``None`` means any connection."""

    on: str
    fault: Fault
    skip: int = 0
    times: int | None = 1
    connection: int | None = None
    trigger_count: int = 0

    def try_trigger(self, event_type: str, connection: int) -> bool:
        """Whether the fault applies to this frame; each call counts as one frame."""
        if self.on not in (event_type, "*") or self.connection not in (None, connection):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None and self.trigger_count >= self.times:
            return False
        self.trigger_count += 1
        return True


# The events of a client, to which Reject and Collide can be applied.
CLIENT_EVENT_TYPES = frozenset(kind.__struct_config__.tag for kind in CLIENT_EVENT_HANDLERS)


class FaultPlan:
    """The planned faults of a server, in order."""

    def __init__(self) -> None:
        self._faults: list[PlannedFault] = []

    def add(self, planned: PlannedFault) -> PlannedFault:
        """Plan a fault. Raises :class:`ValueError` if it does not apply to frames of this direction."""
        from_client = planned.on in CLIENT_EVENT_TYPES or (
            planned.on == "connect" and isinstance(planned.fault, Reject)
        )
        needs_client = {Reject: True, Collide: True, Reorder: False}.get(type(planned.fault), from_client)
        if from_client is not needs_client:
            side = "client" if needs_client else "server"
            raise ValueError(f"{planned.fault} applies to events of the {side} only, not to {planned.on!r}")
        self._faults.append(planned)
        return planned

    def clear(self) -> None:
        self._faults.clear()

    def take_faults(self, event_type: str, connection: int) -> list[Fault]:
        """Return the faults that apply to this frame."""
        return [planned.fault for planned in self._faults if planned.try_trigger(event_type, connection)]


try:
    from websockets.asyncio.server import ServerConnection
    from websockets.exceptions import ConnectionClosed
except ImportError as error:
    raise MissingExtra("realtime", "a realtime server for tests") from error

_encode = msgspec.json.Encoder().encode

# Close codes that stand for a missing close handshake and so cannot be sent in one.
_UNSENDABLE_CODES = (None, 1005, 1006, 1015)


class RealtimeConnection:
    """A connection of one client. ``received`` and ``sent`` are its frames in order, as text if they are not JSON."""

    def __init__(self, index: int, socket: ServerConnection, fault_plan: FaultPlan) -> None:
        self.index = index
        self.is_open = True
        self.received: list[Any] = []
        self.sent: list[Any] = []
        request = socket.request
        self.path = "" if request is None else request.path
        self.headers = {} if request is None else dict(request.headers.raw_items())
        self._socket, self._fault_plan = socket, fault_plan
        self._runner: EngineRunner | None = None
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._held_frames: list[tuple[str, Frame]] = []
        self._not_stalled = asyncio.Event()
        self._not_stalled.set()
        self._frame_received = asyncio.Event()
        self._closing = False

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of the URL."""
        return dict(parse_qsl(urlsplit(self.path).query))

    @property
    def engine(self) -> Engine:
        """The server's side of the session."""
        assert self._runner is not None, "this connection was not served"
        return self._runner.engine

    @property
    def conversation(self) -> EngineConversation:
        """The conversation on the server side."""
        return self.engine.conversation

    @property
    def session(self) -> dict[str, Any]:
        """The ``session`` object of the protocol, with the current settings."""
        return self.engine.to_wire()

    def get_received(self, event_type: str) -> list[Frame]:
        """Return the frames of one type that the client sent."""
        return [frame for frame in self.received if isinstance(frame, dict) and frame.get("type") == event_type]

    def get_sent(self, event_type: str) -> list[Frame]:
        """Return the frames of one type that the server sent."""
        return [frame for frame in self.sent if isinstance(frame, dict) and frame.get("type") == event_type]

    async def wait_for_frame(self, event_type: str, *, count: int = 1) -> Frame:
        """Wait until the client has sent ``count`` frames of this type, and return the last of them."""
        while len(self.get_received(event_type)) < count:
            self._frame_received.clear()
            await self._frame_received.wait()
        return self.get_received(event_type)[count - 1]

    def start_unsolicited_response(self) -> None:
        """Start a response that the client did not request, as speech does. Does nothing if one is active."""
        try:
            self.engine.start_response(asyncio.get_running_loop().time())
        except InvalidRequest:
            return
        self._flush()

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Close the connection after the frames sent before; without a code, abort it.

        Frames that the client sends from now on are ignored.
        """
        self._closing = True
        self._outgoing.put_nowait(Disconnect(code, reason))

    def abort(self) -> None:
        """Abort the connection now, without writing the remaining frames."""
        self._socket.transport.abort()

    def expire(self) -> None:
        """Close the session as if it had reached its maximum duration."""
        self.engine.expire()
        self._flush()

    def stall(self) -> None:
        """Stop reading and writing, including the answer to a close handshake."""
        self._not_stalled.clear()
        self._socket.transport.pause_reading()

    def resume(self) -> None:
        """Continue after :meth:`stall`."""
        if not self._not_stalled.is_set():
            self._not_stalled.set()
            if not self._socket.transport.is_closing():
                self._socket.transport.resume_reading()

    def send(self, frame: Frame | str) -> None:
        """Send a frame, text as it is, and apply the faults that are planned for it."""
        kind = frame["type"] if isinstance(frame, dict) else ""
        for fault in self._fault_plan.take_faults(kind, self.index) if kind else ():
            match fault:
                case Insert(other):
                    self._outgoing.put_nowait(other)
                case Delay():
                    self._outgoing.put_nowait(fault)
                case Reorder(until) if isinstance(frame, dict):
                    self._held_frames.append((until, frame))
                    return
                case Discard():
                    return
                case Disconnect(code, reason):
                    self.close(code, reason)
                    return
                case Stall():
                    self._outgoing.put_nowait(fault)
                case Expire():
                    self.expire()
        self._outgoing.put_nowait(frame)
        self._release_held_frames(kind)

    async def serve(self, runner: EngineRunner, scope: Scope) -> None:
        """Read until the connection ends, and write concurrently."""
        self._runner = runner
        writer = scope.start(self._write())
        runner.start()
        try:
            async for data in self._socket:
                await self._not_stalled.wait()
                if not self._closing:
                    self._read(data, runner)
        finally:
            self.is_open = False
            writer.cancel()

    def _read(self, data: str | bytes, runner: EngineRunner) -> None:
        frame = _parse_frame(data)
        self.received.append(frame)
        self._frame_received.set()
        kind = frame.get("type") if isinstance(frame, dict) else None
        for fault in self._fault_plan.take_faults(kind, self.index) if isinstance(kind, str) else ():
            match fault:
                case Disconnect(code, reason):
                    self.close(code, reason)
                    return
                case Discard():
                    return
                case Reject(code, message):
                    event_id = frame.get("event_id") if isinstance(frame, dict) else None
                    runner.engine.outbox.emit_error(InvalidRequest(code, message), event_id=event_id)
                    runner.flush()
                    return
                case Collide():
                    self.start_unsolicited_response()
                case Expire():
                    self.expire()
                case Stall():
                    self.stall()
                case Insert(other):
                    self._outgoing.put_nowait(other)
                case Delay():
                    self._outgoing.put_nowait(fault)
        runner.receive(frame if isinstance(frame, dict) else data)

    async def _write(self) -> None:
        try:
            while True:
                frame = await self._outgoing.get()
                await self._not_stalled.wait()
                match frame:
                    case Delay(seconds):
                        await asyncio.sleep(seconds)
                    case Stall():
                        self.stall()
                    case Disconnect(code, reason):
                        await self._close_socket(code, reason)
                    case _:
                        self.sent.append(frame)
                        await self._socket.send(frame if isinstance(frame, str) else _encode(frame), text=True)
        except ConnectionClosed:
            return  # serve() notices it too

    async def _close_socket(self, code: int | None, reason: str) -> None:
        self.is_open = False
        if code is None or code in _UNSENDABLE_CODES:
            self._socket.transport.abort()
        else:
            await self._socket.close(code, reason)

    def _release_held_frames(self, event_type: str) -> None:
        """Send the frames that were held until a frame of this type was sent."""
        for entry in [held for held in self._held_frames if held[0] == event_type]:
            self._held_frames.remove(entry)
            self._outgoing.put_nowait(entry[1])

    def _flush(self) -> None:
        assert self._runner is not None
        self._runner.flush()


def _parse_frame(data: str | bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return data
