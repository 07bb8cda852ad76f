"""The shared context of a realtime session: states, model, configuration, clock, events, metrics and tasks.

Every part of a session holds the context. It has no knowledge of the parts.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, copy_context
from enum import Enum, StrEnum
from functools import partial
from typing import Any, Literal

from standfast.agents.context import RunContextWrapper, RunHooksBase
from standfast.agents.errors import UserError
from standfast.base.errors import Closed
from standfast.base.log import get_logger
from standfast.lifecycle.scope import Scope
from standfast.lifecycle.state_machine import StateMachine, TransitionTable
from standfast.realtime._session.broadcast import EventBroadcast
from standfast.realtime.config import RealtimeRunConfig
from standfast.realtime.errors import ConnectionLost
from standfast.realtime.events import (
    AnyRealtimeEvent,
    RealtimeError,
    RealtimeEventInfo,
    RealtimeEventsDropped,
    RealtimeMetric,
    get_payload_size,
)
from standfast.realtime.metrics import RealtimeMetrics
from standfast.realtime.model import RealtimeModel
from standfast.tracing.spans import Span, Trace, get_recorded_parent


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


log = get_logger("standfast.realtime")


class SessionContext:
    """What every part of one session needs. All of it runs in one event loop, so no lock guards its fields."""

    def __init__(
        self, model: RealtimeModel, run_context: RunContextWrapper[Any], run_config: RealtimeRunConfig
    ) -> None:
        self.model, self.run_context, self.run_config = model, run_context, run_config
        self.info = RealtimeEventInfo(run_context)
        self.state_machine = StateMachine(TABLE)
        self.broadcast: EventBroadcast[AnyRealtimeEvent] = EventBroadcast(
            lambda dropped: RealtimeEventsDropped(dropped.count, self.info, bytes=dropped.bytes), get_payload_size
        )
        self.metrics = RealtimeMetrics(run_context.usage, get_dropped=lambda: self.broadcast.dropped)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the session was entered; while the session is open, it works in this one only."""
        self.trace_parent: Trace | Span[Any] | None = None
        self._tasks: tuple[Scope, Context] | None = None

    @property
    def state(self) -> RealtimeState:
        return self.state_machine.state

    @property
    def is_open(self) -> bool:
        return self.state_machine.state in (RealtimeState.OPEN, RealtimeState.RECONNECTING)

    @property
    def hooks(self) -> RunHooksBase[Any, Any] | None:
        return self.run_config.get("hooks")

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def emit(self, event: AnyRealtimeEvent) -> None:
        """Emit an event that every iterator will see."""
        self.broadcast.put(event)

    def emit_error(self, error: Any) -> None:
        """Report a failure that does not end the session."""
        self.emit(RealtimeError(error, self.info))

    def record_metric(self, name: str, ms: float, subject: str | None = None) -> None:
        self.metrics.add(name, ms)
        self.emit(RealtimeMetric(name, ms, self.info, subject=subject))

    def attach_tasks(self, tasks: Scope) -> None:
        """Allow background tasks from now on. They run with the context variables of this call."""
        self._tasks, self.trace_parent = (tasks, copy_context()), get_recorded_parent()

    def start_task(self, coro: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None] | None":
        """Run a coroutine in the background; an exception becomes an ``error`` event.

        Returns ``None`` and closes the coroutine if the session is not open yet or closing.
        """
        if self._tasks is None:
            coro.close()
            return None
        tasks, variables = self._tasks
        reporting = self._run_and_report(coro)
        try:
            task = variables.copy().run(partial(tasks.start, reporting, name=name))
        except Closed:
            coro.close()
            return None
        task.add_done_callback(lambda _: coro.close())  # A task cancelled before its first step never awaited it.
        return task

    @property
    def is_other_loop(self) -> bool:
        """Whether the caller runs in another event loop than the session."""
        try:
            return self.loop not in (None, asyncio.get_running_loop())
        except RuntimeError:
            return False  # The caller runs in no event loop and cannot wait for anything.

    def check_event_loop(self) -> None:
        """Raise :class:`UserError` if the session is open and the caller runs in another event loop."""
        if self.is_other_loop and not self.state_machine.ended:
            raise UserError(
                "a realtime session can only be used in the event loop in which it was entered; from another thread, "
                "including a tool that is a plain function, use asyncio.run_coroutine_threadsafe(..., loop)"
            )

    async def _run_and_report(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            await coro
        except Exception as error:
            if isinstance(error, Closed) and not self.is_open:
                return  # The session closed before the task ended.
            log.warning("a background task of the session failed: %s", error, exc_info=error)
            self.emit_error(error)


class SessionOutcome:
    """How the session ends: requested by the program, by the model's end of stream, or by an error."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self.reason: Literal["asked", "ended", "failed"] = "asked"
        self.error: BaseException | None = None
        self.entry_error: BaseException | None = None
        """The error that ended the conversation before the session was open."""
        self.abort_requested = asyncio.Event()

    def abort(self, error: BaseException | None) -> None:
        """Let the session end by itself, with the error if there is one. Only the first call counts."""
        if self._ctx.state is RealtimeState.OPENING:
            self.entry_error = (
                self.entry_error or error or ConnectionLost("the connection ended while the session was opening")
            )
        elif self.reason == "asked" and self._ctx.is_open:
            self.reason, self.error = "ended" if error is None else "failed", error
            self.abort_requested.set()

    def fail(self, error: BaseException) -> None:
        """Record that the session failed; an earlier error is kept."""
        self.reason, self.error = "failed", self.error or error
