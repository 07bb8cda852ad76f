"""The messages between the runtimes of one store about the runs that they drive and read."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.runtime._engine.live_stream import StreamMessage, make_live_event


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
