"""Faults of realtime connections, to be injected into a :class:`~standfast.testing.RealtimeServer`.

``server.inject("response.output_audio.delta", Disconnect(code=1011), skip=3)`` lets three such frames pass and
disconnects instead of sending the fourth. The first argument is the type of a client or server event, ``"connect"`` for
the opening handshake, or ``"*"`` for any frame of the server.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

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
