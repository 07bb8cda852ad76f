"""What can go wrong on a realtime connection, to be told to a :class:`~standfast.testing.RealtimeServer`.

``server.inject("response.output_audio.delta", Drop(code=1011), skip=3)`` lets three such frames pass and drops the
connection in place of the fourth. The name is that of a client's or of a server's event, ``"connect"`` for the
opening handshake, or ``"*"`` for any frame of the server.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.realtime.local.handlers import CLIENT_EVENT_HANDLERS


@dataclass(frozen=True)
class Disconnect:
    """End the connection instead. Without a code there is no closing handshake: the socket just breaks."""

    code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Delay:
    """Send this frame so many seconds late, and everything behind it too."""

    seconds: float


@dataclass(frozen=True)
class Reorder:
    """Send this frame only behind the next one of another type: out of order."""

    after: str


@dataclass(frozen=True)
class Discard:
    """Never send this frame; or, if it is the client's, never answer it."""


@dataclass(frozen=True)
class Insert:
    """Send something else first: text that is no JSON, or an event that nobody knows."""

    frame: str | dict[str, Any]


@dataclass(frozen=True)
class Collide:
    """Begin a response first, as a turn of speech does, just before the client's frame is read."""


@dataclass(frozen=True)
class Expire:
    """End the session as one that has reached its longest duration."""


@dataclass(frozen=True)
class Reject:
    """Answer the client's frame with an error. For ``"connect"``, ``status`` is the answer to the handshake."""

    code: str = "invalid_request"
    message: str = "refused by the test"
    status: int = 503


@dataclass(frozen=True)
class Stall:
    """Stop reading from the socket and writing to it, without closing it: the peer hangs."""


Fault: TypeAlias = Disconnect | Delay | Reorder | Discard | Insert | Collide | Expire | Reject | Stall


@dataclass
class PlannedFault:
    """A fault that is waiting for its frame. ``connection`` counts from 0; ``None`` is any."""

    on: str
    fault: Fault
    skip: int = 0
    times: int | None = 1
    connection: int | None = None
    trigger_count: int = 0

    def try_trigger(self, event_type: str, connection: int) -> bool:
        """Whether it is the turn of this frame; each asking counts."""
        if self.on not in (event_type, "*") or self.connection not in (None, connection):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None and self.trigger_count >= self.times:
            return False
        self.trigger_count += 1
        return True


# The events of a client that a server may refuse, or begin a response in front of.
CLIENT_EVENT_TYPES = frozenset(kind.__struct_config__.tag for kind in CLIENT_EVENT_HANDLERS)


class FaultPlan:
    """The faults of a server, in the order in which they were told."""

    def __init__(self) -> None:
        self._faults: list[PlannedFault] = []

    def add(self, planned: PlannedFault) -> PlannedFault:
        """Plan it; :class:`ValueError` when such a fault cannot happen to such a frame."""
        from_client = planned.on in CLIENT_EVENT_TYPES or (
            planned.on == "connect" and isinstance(planned.fault, Reject)
        )
        wanted = {Reject: True, Collide: True, Reorder: False}.get(type(planned.fault), from_client)
        if from_client is not wanted:
            raise ValueError(f"{planned.fault} cannot happen to {planned.on!r}: that comes from the other side")
        self._faults.append(planned)
        return planned

    def clear(self) -> None:
        self._faults.clear()

    def take_faults(self, event_type: str, connection: int) -> list[Fault]:
        """What is to happen to this frame."""
        return [planned.fault for planned in self._faults if planned.try_trigger(event_type, connection)]
