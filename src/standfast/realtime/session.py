"""The realtime session: a live conversation with a realtime model."""

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, cast

from standfast.agents.approvals import ApprovalDecision
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.base.errors import Closed
from standfast.base.usage import Usage
from standfast.history.session import Session
from standfast.lifecycle.scope import run_to_end
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.broadcast import BroadcastIterator
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import RealtimeState, SessionContext, SessionOutcome, log
from standfast.realtime._session.event_handler import ModelEventHandler
from standfast.realtime._session.guardrails import GuardrailMonitor, holds_back_audio
from standfast.realtime._session.history_writer import HistoryWriter
from standfast.realtime._session.interruption import INTERRUPT_TIMEOUT, Interruption
from standfast.realtime._session.lifecycle import SessionLifecycle
from standfast.realtime._session.playback_clock import AudioOutput, PlaybackClock
from standfast.realtime._session.reconnect import Reconnector
from standfast.realtime._session.resolved_agent import AgentResolver, build_base_settings
from standfast.realtime._session.responses import ResponseRegistry
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_calls import ToolCallRunner
from standfast.realtime._session.turns import TurnTracker
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeUserInput
from standfast.realtime.events import (
    AnyRealtimeEvent,
    RealtimeAdditionalEvent,
    RealtimeCloseReport,
    RealtimeSessionEvent,
)
from standfast.realtime.items import RealtimeItem
from standfast.realtime.metrics import RealtimeMetrics
from standfast.realtime.model import (
    RealtimeModel,
    RealtimeModelConfig,
    RealtimeModelListener,
    RealtimeModelSendAudio,
    RealtimeModelSendUserInput,
)
from standfast.realtime.model_events import RealtimeModelEvent
from standfast.realtime.validation import (
    check_audio,
    check_message,
    check_model_and_session,
    check_numbers,
    warn_unknown_keys,
)

_NESTED_SECTIONS = ("guardrails_settings", "reconnect", "tool_execution")
_OPTIONAL_LIMITS = ("timeout", "roll_over_after")
"""Keys whose value ``None`` means no limit."""


class SelectedEvents:
    """One ``async for`` over the events that openai-agents has."""

    def __init__(self, events: BroadcastIterator[AnyRealtimeEvent]) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RealtimeSessionEvent:
        while isinstance(event := await anext(self._events), RealtimeAdditionalEvent):
            pass
        return event

    async def aclose(self) -> None:
        await self._events.aclose()


class RealtimeSession(RealtimeModelListener):
    """A conversation with a realtime model.

    ``async with session:`` connects, ``async for event in session:`` iterates over the events, and :meth:`events` gives
    more of them. Any number of iterators see every event, the first one from the beginning. One task owns every
    resource, so :meth:`close` may be called from any task. An error that ends the session is raised by the iterators,
    after their unread events, or at the end of the ``async with`` block if there was no iterator.

    Methods that send raise ``NotConnected`` before the session is entered, ``Closed`` after its end, and ``UserError``
    for an argument that no realtime model takes, or in another event loop.
    """

    def __init__(
        self,
        model: RealtimeModel,
        agent: RealtimeAgent[Any],
        context: Any | None,
        model_config: RealtimeModelConfig | None = None,
        run_config: RealtimeRunConfig | None = None,
        *,
        session: Session | None = None,
    ) -> None:
        connect_options = cast(RealtimeModelConfig, _drop_none_values(model_config))
        config = _normalize_config(run_config)
        check_model_and_session(model, session)
        check_numbers(config)
        warn_unknown_keys(config, connect_options)
        run_context = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        initial_settings = connect_options.get("initial_model_settings")
        base_settings = build_base_settings(config, initial_settings)
        clock = PlaybackClock(connect_options.get("playback_tracker"), holds_back_audio=holds_back_audio(config))
        if clock.released_tracker is not None:
            connect_options = {**connect_options, "playback_tracker": clock.released_tracker}

        # In the order of their dependencies: each part holds only parts that are made before it.
        self._agent = agent
        self._ctx = ctx = SessionContext(model, run_context, config)
        outcome = SessionOutcome(ctx)
        self._resolver = AgentResolver(run_context, config, base_settings)
        self._connection = connection = SessionConnection(ctx, self._resolver, connect_options)
        responses = ResponseRegistry()
        output = AudioOutput(ctx, clock, responses)
        self._history = history = SessionHistory(ctx, connection, clock)
        self._agent_switcher = switcher = AgentSwitcher(ctx, connection, self._resolver)
        self._tool_calls = calls = ToolCallRunner(ctx, connection, responses, history, switcher)
        guardrails = GuardrailMonitor(ctx, connection, responses, history, clock, output, calls)
        self._turns = turns = TurnTracker(ctx, connection, responses, history, switcher, guardrails)
        reconnector = Reconnector(ctx, connection, responses, history, switcher, calls, turns, outcome)
        self._interruption = Interruption(ctx, connection, responses, clock, history, output, calls, guardrails, turns)
        self._event_handler = ModelEventHandler(
            ctx, connection, responses, history, clock, output, calls, guardrails, turns,
            self._interruption, reconnector, outcome,
        )  # fmt: skip
        self._lifecycle = SessionLifecycle(
            ctx, connection, responses, history, clock, switcher, calls, guardrails, reconnector, outcome,
            listener=self,
            history_writer=None if session is None else HistoryWriter(ctx, session, responses, history, clock),
            agent=agent,
            initial_settings=initial_settings,
            base_settings=base_settings,
        )  # fmt: skip
        self.raw_server_events = config.get("raw_server_events", True)

    @property
    def model(self) -> RealtimeModel:
        """The model, for everything that the session has no method for: ``session.model.send_event(...)``."""
        return self._ctx.model

    @property
    def state(self) -> RealtimeState:
        """The state of the session's lifecycle."""
        return self._ctx.state

    @property
    def current_agent(self) -> RealtimeAgent[Any]:
        """The agent whose settings the model has acknowledged."""
        return self._agent_switcher.current.agent if self._agent_switcher.has_current else self._agent

    @property
    def context(self) -> RunContextWrapper[Any]:
        """The wrapped context object of the program, as tools, hooks and guardrails get it."""
        return self._ctx.run_context

    @property
    def history(self) -> list[RealtimeItem]:
        """A snapshot of the conversation so far, as far as it was heard. It stays readable after the end."""
        return self._history.conversation.get_items()

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        return self._ctx.run_context.usage

    @property
    def metrics(self) -> RealtimeMetrics:
        """The measurements so far."""
        return self._ctx.metrics

    async def __aenter__(self) -> Self:
        return await self.enter()

    async def enter(self) -> Self:
        """Resolve the agent and connect. If it raises, nothing is left open and the session is closed.

        A session can be entered once. A second entry raises ``AlreadyStarted``, or ``Closed`` after the end, and
        changes nothing.
        """
        await self._lifecycle.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await run_to_end(self.close(), grace=None)  # ``close`` is bounded by its own deadline.
        except Exception as failed:
            if error is None:
                raise
            log.warning("closing failed after %r: %s", error, failed)
        broadcast = self._ctx.broadcast
        if error is None and broadcast.error is not None and not broadcast.error_was_raised:
            broadcast.error_was_raised = True
            raise broadcast.error

    async def close(self, deadline: float = 2.0) -> RealtimeCloseReport | None:
        """Close the session within ``deadline`` seconds. The report says what had to be cancelled.

        Any task of the session's event loop may call it, any number of times; other threads use
        ``asyncio.run_coroutine_threadsafe``. A task of the session itself (a tool, a guardrail, a listener) only
        requests the close and gets ``None``. If the model fails to close, everything else is released, iterators end,
        and the error is raised once.
        """
        return await self._lifecycle.close(deadline)

    def __aiter__(self) -> AsyncIterator[RealtimeSessionEvent]:
        """Iterate over the events that openai-agents has; the others are skipped."""
        return SelectedEvents(self.events())

    def events(self) -> BroadcastIterator[AnyRealtimeEvent]:
        """Return an iterator over all events, those that openai-agents does not have included."""
        self._ctx.check_event_loop()
        return self._ctx.broadcast.subscribe()

    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Handle an event of the model. Called by the model."""
        if not self._ctx.broadcast.closed:
            waiting = self._event_handler.handle(event)
            if waiting is not None:
                await waiting

    async def send_message(self, message: RealtimeUserInput) -> None:
        """Send a message of the user; the model responds when no other response is active."""
        check_message(message)
        self._ctx.check_event_loop()
        await self._connection.wait_connected()
        self._turns.mark_requested()
        await self._connection.send_user_input(RealtimeModelSendUserInput(message))

    async def send_audio(self, audio: bytes, *, commit: bool = False) -> None:
        """Send audio of the user. ``commit`` turns the audio sent so far into an item, without requesting a response.

        While the session reconnects, audio is dropped: it would arrive too late.
        """
        check_audio(audio)
        self._ctx.check_event_loop()
        if not self._connection.is_up and self._ctx.state is RealtimeState.RECONNECTING:
            return
        await self._connection.wait_connected()
        if commit:
            self._turns.mark_requested()
        await self._connection.send_or_drop(RealtimeModelSendAudio(audio, commit))

    async def interrupt(self) -> None:
        """Stop the model. No audio that it has produced so far is emitted after this call.

        Returns when the response has ended, or at once without an active response. If the server does not read or
        answer, it returns after five seconds and emits an ``error`` event. Called by a listener of the model, it
        returns when the request was sent: waiting there would block the event that it waits for.
        """
        self._ctx.check_event_loop()
        await self._interruption.interrupt()

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Make another agent the current one. Returns when the model has its settings; if it raises, nothing changes.

        Called by a listener of the model, it only starts the switch, and a failure becomes an ``error`` event: waiting
        there would block the event that it waits for.
        """
        self._ctx.check_event_loop()
        self._resolver.check_not_resolving("update_agent")
        if self._ctx.model.is_listener_task():
            if self._ctx.start_task(self._switch_agent(agent), "agent switch") is None:
                raise Closed("the session is closed")
            return
        await self._switch_agent(agent)

    async def _switch_agent(self, agent: RealtimeAgent[Any]) -> None:
        await self._connection.wait_connected()
        self._tool_calls.unblock_events()
        switch = self._agent_switcher.switch_to(agent, reason="update")
        await run_to_end(switch, grace=INTERRUPT_TIMEOUT, on_cancel=self._close_switcher_if_closing)

    def _close_switcher_if_closing(self) -> None:
        """Cancel the switch of a task that is cancelled because the session closes."""
        if not self._ctx.is_open:
            self._agent_switcher.close()

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> bool:
        """Approve a call; with ``always``, all later calls of the same tool by the same agent as well.

        Returns False if no call with this id waits for approval.
        """
        return await self._decide(call_id, ApprovalDecision(True), always=always)

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> bool:
        """Reject a call. Its output is ``rejection_message``, or a default text.

        Returns False if no call with this id waits for approval.
        """
        return await self._decide(call_id, ApprovalDecision(False, message=rejection_message), always=always)

    async def _decide(self, call_id: str, decision: ApprovalDecision, *, always: bool) -> bool:
        self._ctx.check_event_loop()
        call = self._tool_calls.decide(call_id, decision, always=always) if self._ctx.is_open else None
        if call is None:
            return False
        waiter = self._tool_calls.make_waiter(call)
        if waiter is not None:
            await waiter
        return True


def _normalize_config(run_config: RealtimeRunConfig | None) -> RealtimeRunConfig:
    config = _drop_none_values(run_config)
    sections = {key: _drop_none_values(config[key]) for key in _NESTED_SECTIONS if key in config}
    return cast(RealtimeRunConfig, {**config, **sections})


def _drop_none_values(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Drop keys whose value is ``None``, except limits: there ``None`` means no limit."""
    if config is not None and not isinstance(config, Mapping):
        raise UserError(f"the configuration of a realtime session must be a dict, got {config!r}")
    return {key: value for key, value in (config or {}).items() if value is not None or key in _OPTIONAL_LIMITS}
