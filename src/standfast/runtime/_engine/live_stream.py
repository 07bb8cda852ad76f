"""The messages of a run while one runtime drives it, and the messages between the runtimes that drive and read runs.

Live events and notices of journal entries are numbered from 1. The numbers show other processes what they have missed.
The messages since the last complete response are kept, so that a reader that joins in the middle of a response gets
its beginning.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from standfast.runtime.types import Event

EntryMark: TypeAlias = tuple[int, int]

MAX_KEPT_BYTES = 2**20
_EVENT_OVERHEAD = 200


class StreamMessage(msgspec.Struct, frozen=True):
    """A live event, or, without ``event``, the notice that the journal has grown.

    ``mark`` is that of the last entry that the driver had written by then, ``(token, 0)`` if there was none, and
    ``base`` the number of entries that it had read before. ``settled``: the response so far is in the journal now.
    """

    number: int
    mark: EntryMark
    base: int = 0
    event: Event | None = None
    settled: bool = False
    stopped: bool = False
    at: float = 0.0
    """When this process received it, on the clock of its event loop."""


class LiveStream:
    """The messages of one driver, which is identified by its fencing token. ``source`` is its runtime if elsewhere."""

    def __init__(self, token: int, *, source: str | None = None, next_number: int = 1) -> None:
        self.token, self.source, self.next_number = token, source, next_number
        self.mark: EntryMark = (token, 0)
        self.base = 0
        self.kept: deque[StreamMessage] = deque()
        self.missed = 0
        """How many live events of the current response are no longer kept."""
        self._size = 0

    def add(self, message: StreamMessage, *, keep_settled: bool) -> None:
        """Add the next message. With ``keep_settled``, earlier responses are kept too, up to a limit."""
        self.next_number, self.mark, self.base = message.number + 1, message.mark, message.base
        if message.settled and not keep_settled:
            self.kept.clear()
            self._size = 0
        else:
            self.kept.append(message)
            self._size += estimate_size(message)
        if message.settled:
            self.missed = 0
        while self._size > MAX_KEPT_BYTES:
            dropped = self.kept.popleft()
            self._size -= estimate_size(dropped)
            self.missed += dropped.event is not None

    def list_from(self, number: int) -> list[StreamMessage]:
        return [message for message in self.kept if message.number >= number]

    def list_current(self) -> list[StreamMessage]:
        """Return the messages since the last complete response."""
        current: deque[StreamMessage] = deque()
        for message in reversed(self.kept):
            if message.settled:
                break
            current.appendleft(message)
        return list(current)


def estimate_size(message: StreamMessage) -> int:
    """Return the approximate size in bytes: of its text, not of the objects within it, which repeat the same text."""
    if message.event is None:
        return _EVENT_OVERHEAD
    return _EVENT_OVERHEAD + sum(len(value) for value in message.event.data.values() if isinstance(value, str))


def make_live_event(run_id: str, token: int, number: int, kind: str, data: dict[str, Any], at: float) -> Event:
    return Event(None, run_id, kind, data, at, live=True, position=f"{token}.{number}")


def parse_position(position: str | None) -> EntryMark:
    """Return the token and number of a live event's position; numbers below all others for ``None``."""
    if position is None:
        return (0, 0)
    token, _, number = position.partition(".")
    if not (token.isascii() and token.isdigit() and number.isascii() and number.isdigit()):
        raise ValueError(position)
    return int(token), int(number)


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A runtime has joined or reconnected. The receiver answers with the runs that it watches."""


class Watched(msgspec.Struct, frozen=True, array_like=True):
    """A run that the sender reads; ``next_number`` is what it expects of the driver with this token."""

    run_id: str
    live: bool
    token: int
    next_number: int


class Watch(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The sender reads these runs."""

    runs: list[Watched]


class Unwatch(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The sender no longer reads the run."""

    run_id: str


class Changed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The run was changed by a process that does not drive it."""

    run_id: str
    stopped: bool


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Messages of the driver of a run; ``start``: earlier ones are lost, ``missed`` of the current response.

    ``content`` is encrypted with the key of the run if the run is.
    """

    run_id: str
    token: int
    first: int
    start: bool
    missed: int
    content: bytes


class Runnable(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """There is a run that the sender cannot execute, and another runtime may."""


class WireMessage(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A :class:`StreamMessage` in a batch."""

    mark: int
    base: int
    flags: int
    type: str | None = None
    data: dict[str, Any] | None = None
    at: float = 0.0


_SETTLED, _STOPPED = 1, 2
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Hello | Watch | Unwatch | Changed | Batch | Runnable).decode
_decode_content = msgspec.msgpack.Decoder(list[WireMessage]).decode


def encode_content(messages: Sequence[StreamMessage]) -> bytes:
    wire = [_to_wire(message) for message in messages]
    try:
        return encode(wire)
    except (UnicodeEncodeError, OverflowError, TypeError, msgspec.MsgspecError):
        return encode([_without_unsendable(one) for one in wire])


def _to_wire(message: StreamMessage) -> WireMessage:
    flags = _SETTLED * message.settled | _STOPPED * message.stopped
    event = message.event
    if event is None:
        return WireMessage(message.mark[1], message.base, flags)
    return WireMessage(message.mark[1], message.base, flags, event.type, event.data, event.at)


def _without_unsendable(message: WireMessage) -> WireMessage:
    """Return the message, without data that has no encoding, such as half of a surrogate pair."""
    try:
        encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError, msgspec.MsgspecError):
        return msgspec.structs.replace(message, type="model.gap", data={"missed": 1})
    return message


def decode_content(run_id: str, token: int, first: int, content: bytes) -> list[StreamMessage]:
    found, now = [], asyncio.get_running_loop().time()
    for number, wire in enumerate(_decode_content(content), start=first):
        event = None
        if wire.type is not None:
            event = make_live_event(run_id, token, number, wire.type, wire.data or {}, wire.at)
        settled, stopped = bool(wire.flags & _SETTLED), bool(wire.flags & _STOPPED)
        found.append(StreamMessage(number, (token, wire.mark), wire.base, event, settled, stopped, now))
    return found
