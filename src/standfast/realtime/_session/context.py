"""What the parts of an open session share: the model, the events, the history, and the tasks they may start."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.agents.hooks import RunHooks
from standfast.base.errors import Closed
from standfast.lifecycle.scope import Scope
from standfast.lifecycle.state_machine import StateMachine
from standfast.realtime._session.agent_transitions import AgentTransitions
from standfast.realtime._session.broadcast import EventBroadcast
from standfast.realtime._session.history import ConversationHistory
from standfast.realtime._session.playback_clock import PlaybackSchedule, ReleasedAudioTracker
from standfast.realtime._session.resend_queue import ResendQueue
from standfast.realtime._session.resolved_agent import ResolvedAgent, resolve_agent
from standfast.realtime._session.responses import ResponseRegistry, TrackedResponse
from standfast.realtime._session.states import TABLE, RealtimeLifecycleEvent, RealtimeState
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings
from standfast.realtime.errors import NotConnected
from standfast.realtime.events import (
    RealtimeAudio,
    RealtimeError,
    RealtimeEventInfo,
    RealtimeEventsDropped,
    RealtimeHistoryAdded,
    RealtimeHistoryUpdated,
    RealtimeMetric,
    RealtimeSessionEvent,
    get_payload_size,
)
from standfast.realtime.metrics import RealtimeMetrics
from standfast.realtime.model import RealtimeModel
from standfast.realtime.model_inputs import RealtimeModelSendEvent, RealtimeModelSendUserInput
from standfast.tracing.spans import Span, Trace, get_recorded_parent

log = logging.getLogger("standfast.realtime")

LOSS_DETECTION_TIMEOUT = 1.0
"""How long after a send failed the loss of the connection may take to be told."""


class _AgentResolution:
    """An agent is being asked for its instructions, tools and handoffs."""

    def __init__(self, ctx: "SessionContext") -> None:
        self.ctx, self.finished = ctx, False


# What the current task is asked by, directly or not: an answer that waited for the session would wait for itself.
_active_resolutions: ContextVar[tuple[_AgentResolution, ...]] = ContextVar("standfast_realtime_asked", default=())


class SessionContext:
    """The inside of one session. Its fields are changed without waiting in between, so no lock guards them."""

    def __init__(
        self,
        model: RealtimeModel,
        run_context: RunContextWrapper[Any],
        run_config: RealtimeRunConfig,
        base_settings: RealtimeSessionModelSettings,
    ) -> None:
        self.model, self.run_context, self.run_config = model, run_context, run_config
        self.base_settings = base_settings
        """The settings that hold whoever speaks."""
        self.info = RealtimeEventInfo(run_context)
        self.state_machine = StateMachine(TABLE)
        self.broadcast: EventBroadcast[RealtimeSessionEvent] = EventBroadcast(
            lambda lost: RealtimeEventsDropped(lost.count, self.info, bytes=lost.bytes), get_payload_size
        )
        self.history = ConversationHistory()
        self.transitions = AgentTransitions()
        self.responses = ResponseRegistry()
        self.metrics = RealtimeMetrics(run_context.usage, get_dropped=lambda: self.broadcast.dropped)
        self.connection_up = asyncio.Event()
        self.connection_down = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the session was entered: nothing of it may be used anywhere else while it lasts."""
        self.connection_count = 0
        """How many connections there were."""
        self.requested_at: float | None = None
        self.resend_queue = ResendQueue()
        self.is_restoring = False
        """Whether a new connection is being told what it has to know: that it owes a response is part of it."""
        self.user_is_speaking = False
        self.resending: set[str] = set()
        """Items that the model was told to forget, and not yet told anew."""
        self.write_requested = asyncio.Event()
        """Something that was said may have become final: whoever writes it down looks."""
        self.released_audio: ReleasedAudioTracker | None = None
        self.playback_schedule: PlaybackSchedule | None = None
        self.trace_parent: Trace | Span[Any] | None = None
        self._tasks: tuple[Scope, Context] | None = None
        self._agents_by_owner: dict[str, RealtimeAgent[Any]] = {}

    @property
    def resolved_agent(self) -> ResolvedAgent:
        """Who is speaking."""
        return self.transitions.current

    @property
    def state(self) -> RealtimeState:
        return self.state_machine.state

    @property
    def is_open(self) -> bool:
        return self.state_machine.state in (RealtimeState.OPEN, RealtimeState.RECONNECTING)

    @property
    def hooks(self) -> RunHooks[Any] | None:
        return self.run_config.get("hooks")

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def emit(self, event: RealtimeSessionEvent) -> None:
        self.broadcast.put(event)

    def emit_error(self, error: Any) -> None:
        """Tell of something that failed without ending the session."""
        self.emit(RealtimeError(error, self.info))

    def record_metric(self, name: str, ms: float, subject: str | None = None) -> None:
        self.metrics.add(name, ms)
        self.emit(RealtimeMetric(name, ms, self.info, subject=subject))

    def play(self, response: TrackedResponse, audio: RealtimeAudio, duration_ms: float) -> None:
        """Pass audio on to whoever plays it."""
        response.produced_output = True
        if response.awaiting_first_audio:
            response.awaiting_first_audio = False
            since = response.started_at if response.requested_at is None else response.requested_at
            self.record_metric("time_to_first_audio", (self.now() - since) * 1000, response.id)
        self.broadcast.put_droppable(audio, len(audio.audio.data))
        if self.released_audio is not None:
            self.released_audio.add_audio(audio)
        if self.playback_schedule is not None:
            self.playback_schedule.schedule(response, duration_ms)

    def stop_playback(self, response: TrackedResponse) -> None:
        """Nothing more of a response is heard."""
        response.muted = True
        if self.released_audio is not None:
            self.released_audio.stop_response(response.id)
        if self.playback_schedule is not None:
            self.playback_schedule.stop(response, self.responses.by_id.values())

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """No more than this was heard of a part."""
        in_vain = self.history.truncate(item_id, content_index, heard_ms)
        if in_vain is not None:
            self.record_metric("truncated", in_vain, item_id)
            self.emit_history_updated()
            self.write_requested.set()

    def emit_history_added(self, item_id: str) -> None:
        self.emit(RealtimeHistoryAdded(self.history.get_item(item_id), self.info, revision=self.history.revision))

    def emit_history_updated(self) -> None:
        self.emit(RealtimeHistoryUpdated(self.history.get_items(), self.info, revision=self.history.revision))

    def attach_tasks(self, tasks: Scope) -> None:
        """From now on tasks can be started. They see the context variables of this moment, whoever starts them."""
        self._tasks, self.trace_parent = (tasks, copy_context()), get_recorded_parent()

    def start_task(self, coro: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None] | None":
        """Run ``work`` beside the conversation; what it raises becomes an error event. Nothing starts while closing."""
        if self._tasks is None:
            coro.close()
            return None
        tasks, variables = self._tasks
        contained = self._run_and_report(coro)
        try:
            task = variables.copy().run(partial(tasks.start, contained, name=name))
        except Closed:
            coro.close()
            return None
        task.add_done_callback(lambda _: coro.close())  # If it was cancelled before its first step, it never began.
        return task

    async def resolve_agent(
        self, agent: RealtimeAgent[Any], *, overrides: RealtimeSessionModelSettings | None = None
    ) -> ResolvedAgent:
        """What the model has to know of an agent, as :func:`~standfast.realtime._session.resolved_agent.resolve` finds it out."""
        question = _AgentResolution(self)
        token = _active_resolutions.set((*_active_resolutions.get(), question))
        try:
            return await resolve_agent(
                agent, self.run_context, self.run_config, base=self.base_settings, overrides=overrides
            )
        finally:
            question.finished = True
            _active_resolutions.reset(token)

    def check_not_resolving(self, operation: str) -> None:
        """Raise if the caller is a function that an agent is just being resolved with."""
        if any(question.ctx is self and not question.finished for question in _active_resolutions.get()):
            raise UserError(
                f"{operation} was called by the instructions, or by an is_enabled, of an agent that is about to take over: "
                "it would wait for itself. Call it when the agent has taken over, for example on `agent_changed`"
            )

    @property
    def is_other_loop(self) -> bool:
        """Whether the caller runs in another event loop than the session."""
        try:
            return self.loop not in (None, asyncio.get_running_loop())
        except RuntimeError:
            return False  # In none, so nothing can be waited for.

    def check_event_loop(self) -> None:
        """Raise if the caller runs in another event loop, and so in another thread, than the session that is open."""
        if self.is_other_loop and not self.state_machine.ended:
            raise UserError(
                "a realtime session can only be used in the event loop in which it was entered; in another thread, "
                "a tool that is a plain function included, use asyncio.run_coroutine_threadsafe(..., that loop)"
            )

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model. Without a connection it waits for the next one, and tells that."""
        while True:
            await self.wait_connected()
            try:
                return await self.model.send_event(event)
            except (ConnectionError, NotConnected):
                if not await self.wait_lost():
                    raise

    async def send_user_input(self, message: RealtimeModelSendUserInput) -> None:
        """Tell the model a message that it is to answer. One that it has not confirmed is told the next connection."""
        await self.wait_connected()
        if self.is_restoring and self.resend_queue.to_resend:
            self.resend_queue.to_resend.append(message)  # It is told behind those that were said before it.
            return
        before = self.resend_queue.response_pending
        self.resend_queue.mark_sent(message)
        try:
            await self.model.send_event(message)
        except Exception as error:
            lost = isinstance(error, ConnectionError | NotConnected) and await self.wait_lost()
            if not lost:  # Otherwise the next connection is told.
                self.resend_queue.withdraw(message, response_pending=before)
                raise

    async def send_or_drop(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model what is of no use later: a connection that is lost meanwhile takes it along."""
        try:
            await self.model.send_event(event)
        except (ConnectionError, NotConnected):
            if not await self.wait_lost():
                raise

    async def wait_connected(self) -> None:
        """Wait for a connection; raises when there will be none."""
        if self.state_machine.state is RealtimeState.NEW:
            raise NotConnected("the session was not entered yet: use `async with session:`")
        if self.state_machine.state is RealtimeState.OPENING:
            self.check_not_resolving("the session")
        await self.connection_up.wait()
        if not self.is_open:
            raise Closed("the session is closed")

    def set_connected(self, connected: bool) -> None:
        """The connection was made or has gone."""
        machine, event = (
            self.state_machine,
            RealtimeLifecycleEvent.CONNECTED if connected else RealtimeLifecycleEvent.CONNECTION_LOST,
        )
        if machine.allows(event):
            machine.fire(event)
        self.connection_count += connected
        if not connected:
            self.resend_queue.on_connection_lost()
        (self.connection_up if connected else self.connection_down).set()
        (self.connection_down if connected else self.connection_up).clear()

    def get_owner_name(self, agent: RealtimeAgent[Any]) -> str:
        """A name for an agent that no other agent of this session has."""
        number, name = 1, agent.name
        while self._agents_by_owner.setdefault(name, agent) is not agent:
            number += 1
            name = f"{agent.name}#{number}"
        return name

    async def _run_and_report(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            await coro
        except Exception as error:
            if isinstance(error, Closed) and not self.is_open:
                return  # The end of the session has overtaken it.
            log.warning("a part of the session failed: %s", error, exc_info=error)
            self.emit_error(error)

    async def wait_lost(self) -> bool:
        """Whether the connection turns out to be gone and the session to be waiting for another."""
        try:
            async with asyncio.timeout(LOSS_DETECTION_TIMEOUT):
                await self.connection_down.wait()
        except TimeoutError:
            return False
        return self.is_open
