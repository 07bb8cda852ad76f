"""The lifecycle of a realtime session as a table. The diagram in the documentation is drawn from it."""

from enum import Enum, StrEnum

from standfast.lifecycle.state_machine import TransitionTable


class RealtimeState(StrEnum):
    """The states of a session's lifecycle."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    RECONNECTING = "reconnecting"
    CLOSING = "closing"
    CLOSED = "closed"


class RealtimeLifecycleEvent(Enum):
    """The events that change the state of a session."""

    ENTERED = "entered"
    CONNECTED = "connected"
    CONNECTION_LOST = "lost the connection"
    CLOSE_REQUESTED = "asked to close"
    RELEASED = "released everything"


S, E = RealtimeState, RealtimeLifecycleEvent

# An entry that fails releases its resources without a close request.
_CLOSING_TRANSITIONS = {E.CLOSE_REQUESTED: S.CLOSING, E.RELEASED: S.CLOSED}

TABLE: TransitionTable[RealtimeState, RealtimeLifecycleEvent] = TransitionTable(
    states=RealtimeState,
    transitions={
        S.NEW: {E.ENTERED: S.OPENING, **_CLOSING_TRANSITIONS},
        S.OPENING: {E.CONNECTED: S.OPEN, **_CLOSING_TRANSITIONS},
        S.OPEN: {E.CONNECTION_LOST: S.RECONNECTING, **_CLOSING_TRANSITIONS},
        S.RECONNECTING: {E.CONNECTED: S.OPEN, **_CLOSING_TRANSITIONS},
        S.CLOSING: {E.CLOSE_REQUESTED: S.CLOSING, E.RELEASED: S.CLOSED},
        S.CLOSED: {E.CLOSE_REQUESTED: S.CLOSED, E.RELEASED: S.CLOSED},
    },
    initial=S.NEW,
    terminal=frozenset({S.CLOSED}),
)
