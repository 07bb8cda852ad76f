"""The life of a session, as data. The diagram in the documentation is drawn from this table."""

from enum import Enum, StrEnum

from holdfast.lifecycle.machine import Table


class SessionState(StrEnum):
    # An enum's own hash is a call of Python code, in every step through the table.
    __hash__ = str.__hash__

    CREATING = "creating"
    WARMING = "warming"
    READY = "ready"
    BUSY = "busy"
    IDLE = "idle"
    ERROR = "error"
    SHUTTING_DOWN = "shutting_down"
    TERMINATED = "terminated"


class Event(Enum):
    __hash__ = object.__hash__

    STARTED = "started"
    SAID_READY = "said ready"
    BEGAN = "began code"
    ENDED = "ended code"
    RESTED = "rested"
    FAILED = "failed to start"
    EXITED = "exited"
    RESTARTED = "restarted"
    ASKED_TO_STOP = "asked to stop"
    CLOSED = "closed"


S, E = SessionState, Event

_STOPPING = {E.ASKED_TO_STOP: S.SHUTTING_DOWN, E.CLOSED: S.TERMINATED}
_DEAD = {E.EXITED: S.ERROR, E.FAILED: S.ERROR, E.RESTARTED: S.CREATING}

TRANSITIONS: dict[SessionState, dict[Event, SessionState]] = {
    S.CREATING: {E.STARTED: S.WARMING, **_DEAD, **_STOPPING},
    # Warm-up code runs before anybody is told that the session is ready.
    S.WARMING: {E.SAID_READY: S.READY, E.BEGAN: S.WARMING, E.ENDED: S.WARMING, **_DEAD, **_STOPPING},
    S.READY: {E.BEGAN: S.BUSY, E.ENDED: S.READY, E.RESTED: S.IDLE, **_DEAD, **_STOPPING},
    S.BUSY: {E.ENDED: S.READY, **_DEAD, **_STOPPING},
    S.IDLE: {E.BEGAN: S.BUSY, E.RESTED: S.IDLE, **_DEAD, **_STOPPING},
    # The end of code is told after the end of its worker; it does not bring the session back.
    S.ERROR: {E.ENDED: S.ERROR, **_DEAD, **_STOPPING},
    S.SHUTTING_DOWN: {
        **dict.fromkeys((E.ENDED, E.EXITED, E.FAILED, E.ASKED_TO_STOP, E.SAID_READY), S.SHUTTING_DOWN),
        E.CLOSED: S.TERMINATED,
    },
    S.TERMINATED: dict.fromkeys((E.ENDED, E.EXITED, E.FAILED, E.ASKED_TO_STOP, E.CLOSED), S.TERMINATED),
}

TABLE: Table[SessionState, Event] = Table(
    states=SessionState,
    transitions=TRANSITIONS,
    initial=S.CREATING,
    terminal=frozenset({S.TERMINATED}),
)
