"""The life of a session, as data. The diagram in the documentation is drawn from this table."""

from enum import Enum, StrEnum

from standfast.lifecycle.state_machine import TransitionTable


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


class WorkerSessionEvent(Enum):
    __hash__ = object.__hash__

    STARTED = "started"
    BECAME_READY = "said ready"
    EXECUTION_STARTED = "began code"
    EXECUTION_ENDED = "ended code"
    BECAME_IDLE = "rested"
    START_FAILED = "failed to start"
    WORKER_EXITED = "exited"
    RESTARTED = "restarted"
    SHUTDOWN_REQUESTED = "asked to stop"
    CLOSED = "closed"


S, E = SessionState, WorkerSessionEvent

_SHUTDOWN_TRANSITIONS = {E.SHUTDOWN_REQUESTED: S.SHUTTING_DOWN, E.CLOSED: S.TERMINATED}
_EXIT_TRANSITIONS = {E.WORKER_EXITED: S.ERROR, E.START_FAILED: S.ERROR, E.RESTARTED: S.CREATING}

TRANSITIONS: dict[SessionState, dict[WorkerSessionEvent, SessionState]] = {
    S.CREATING: {E.STARTED: S.WARMING, **_EXIT_TRANSITIONS, **_SHUTDOWN_TRANSITIONS},
    # Warm-up code runs before anybody is told that the session is ready.
    S.WARMING: {
        E.BECAME_READY: S.READY,
        E.EXECUTION_STARTED: S.WARMING,
        E.EXECUTION_ENDED: S.WARMING,
        **_EXIT_TRANSITIONS,
        **_SHUTDOWN_TRANSITIONS,
    },
    S.READY: {
        E.EXECUTION_STARTED: S.BUSY,
        E.EXECUTION_ENDED: S.READY,
        E.BECAME_IDLE: S.IDLE,
        **_EXIT_TRANSITIONS,
        **_SHUTDOWN_TRANSITIONS,
    },
    S.BUSY: {E.EXECUTION_ENDED: S.READY, **_EXIT_TRANSITIONS, **_SHUTDOWN_TRANSITIONS},
    S.IDLE: {E.EXECUTION_STARTED: S.BUSY, E.BECAME_IDLE: S.IDLE, **_EXIT_TRANSITIONS, **_SHUTDOWN_TRANSITIONS},
    # The end of code is told after the end of its worker; it does not bring the session back.
    S.ERROR: {E.EXECUTION_ENDED: S.ERROR, **_EXIT_TRANSITIONS, **_SHUTDOWN_TRANSITIONS},
    S.SHUTTING_DOWN: {
        **dict.fromkeys(
            (E.EXECUTION_ENDED, E.WORKER_EXITED, E.START_FAILED, E.SHUTDOWN_REQUESTED, E.BECAME_READY), S.SHUTTING_DOWN
        ),
        E.CLOSED: S.TERMINATED,
    },
    S.TERMINATED: dict.fromkeys(
        (E.EXECUTION_ENDED, E.WORKER_EXITED, E.START_FAILED, E.SHUTDOWN_REQUESTED, E.CLOSED), S.TERMINATED
    ),
}

TABLE: TransitionTable[SessionState, WorkerSessionEvent] = TransitionTable(
    states=SessionState,
    transitions=TRANSITIONS,
    initial=S.CREATING,
    terminal=frozenset({S.TERMINATED}),
)
