"""The life of a realtime session, as data. The diagram in the documentation is drawn from this table."""

from enum import Enum, StrEnum

from holdfast.lifecycle.machine import Table


class RealtimeState(StrEnum):
    """Where in its life a session is."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    RECONNECTING = "reconnecting"
    CLOSING = "closing"
    CLOSED = "closed"


class Event(Enum):
    ENTERED = "entered"
    CONNECTED = "connected"
    LOST = "lost the connection"
    ASKED_TO_CLOSE = "asked to close"
    RELEASED = "released everything"


S, E = RealtimeState, Event

# An entry that fails releases what it had without being asked.
_ENDING = {E.ASKED_TO_CLOSE: S.CLOSING, E.RELEASED: S.CLOSED}

TABLE: Table[RealtimeState, Event] = Table(
    states=RealtimeState,
    transitions={
        S.NEW: {E.ENTERED: S.OPENING, **_ENDING},
        S.OPENING: {E.CONNECTED: S.OPEN, **_ENDING},
        S.OPEN: {E.LOST: S.RECONNECTING, **_ENDING},
        S.RECONNECTING: {E.CONNECTED: S.OPEN, **_ENDING},
        S.CLOSING: {E.ASKED_TO_CLOSE: S.CLOSING, E.RELEASED: S.CLOSED},
        S.CLOSED: {E.ASKED_TO_CLOSE: S.CLOSED, E.RELEASED: S.CLOSED},
    },
    initial=S.NEW,
    terminal=frozenset({S.CLOSED}),
)
