"""The life cycle of a session as a transition table. The diagram in the documentation is drawn from it."""

from enum import Enum, StrEnum

from standfast.lifecycle.state_machine import TransitionTable


class SessionState(StrEnum):
    """The states of a session, from ``creating`` to ``terminated``."""

    # The hash of an Enum is Python code, which every transition would run.
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
    """What can happen to a session."""

    __hash__ = object.__hash__

    STARTED = "started"
    BECAME_READY = "ready"
    EXECUTION_STARTED = "execution started"
    EXECUTION_ENDED = "execution ended"
    BECAME_IDLE = "idle"
    START_FAILED = "start failed"
    WORKER_EXITED = "worker exited"
    RESTARTED = "restarted"
    SHUTDOWN_REQUESTED = "shutdown requested"
    CLOSED = "closed"


S, E = SessionState, WorkerSessionEvent

_SHUTDOWN_TRANSITIONS = {E.SHUTDOWN_REQUESTED: S.SHUTTING_DOWN, E.CLOSED: S.TERMINATED}
_EXIT_TRANSITIONS = {E.WORKER_EXITED: S.ERROR, E.START_FAILED: S.ERROR, E.RESTARTED: S.CREATING}

TRANSITIONS: dict[SessionState, dict[WorkerSessionEvent, SessionState]] = {
    S.CREATING: {E.STARTED: S.WARMING, **_EXIT_TRANSITIONS, **_SHUTDOWN_TRANSITIONS},
    # The warm-up code runs before the session is ready.
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
    # The end of an execution is reported after the exit of its worker, and does not make the session usable.
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
