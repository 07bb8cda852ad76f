"""A live conversation: entered once, listened to by anyone, closed from anywhere."""

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

from standfast.agents.approvals import ApprovalDecision
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.base.errors import Closed
from standfast.base.usage import Usage
from standfast.history.session import Session
from standfast.lifecycle.cancellation import run_to_end
from standfast.lifecycle.scope import Deadline
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.broadcast import BroadcastIterator
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.event_handler import ModelEventHandler
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.history_sync import resend_changed_items, send_raw_message
from standfast.realtime._session.history_writer import HistoryWriter
from standfast.realtime._session.lifecycle import SessionLifecycle
from standfast.realtime._session.playback_clock import ReleasedAudioTracker
from standfast.realtime._session.reconnect import Reconnector
from standfast.realtime._session.resolved_agent import build_base_settings
from standfast.realtime._session.states import RealtimeState
from standfast.realtime._session.tool_calls import ToolCallManager
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeUserInput
from standfast.realtime.errors import AcknowledgementTimeout
from standfast.realtime.events import RealtimeAudio, RealtimeCloseReport, RealtimeSessionEvent
from standfast.realtime.items import RealtimeItem, RealtimeToolCallItem
from standfast.realtime.metrics import RealtimeMetrics
from standfast.realtime.model import RealtimeModel, RealtimeModelConfig, RealtimeModelListener
from standfast.realtime.model_events import RealtimeModelEvent
from standfast.realtime.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendUserInput,
)
from standfast.realtime.validation import (
    check_audio,
    check_message,
    check_model_and_session,
    check_numbers,
    warn_unknown_keys,
)

_NESTED_SECTIONS = ("guardrails_settings", "reconnect", "tool_execution")
INTERRUPT_TIMEOUT = 5.0
"""How long an interrupted response may take to be over."""


class RealtimeSession(RealtimeModelListener):
    """A conversation with a realtime model.

    ``async with session:`` connects, ``async for event in session:`` tells what happens; any number of iterators see
    every event, the first one from the beginning. One task owns everything that was acquired, so :meth:`close` may be
    called by anyone. An error that ended the session is raised by the iterators, after what they had yet to read, or at
    the end of the ``async with`` block if nobody iterated.
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
        settings = cast(RealtimeModelConfig, _drop_none_values(model_config))
        said = _drop_none_values(run_config)
        parts = {key: _drop_none_values(said[key]) for key in _NESTED_SECTIONS if key in said}
        rules = cast(RealtimeRunConfig, {**said, **parts})
        check_model_and_session(model, session)
        check_numbers(rules)
        warn_unknown_keys(rules, settings)
        wrapped = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        self._agent = agent
        base = build_base_settings(rules, settings.get("initial_model_settings"))
        self._ctx = room = SessionContext(model, wrapped, rules, base)
        self._agent_switcher = AgentSwitcher(
            room, replace_connection=lambda error: reconnecting.replace_connection(error)
        )
        self._tool_calls = ToolCallManager(room, self._agent_switcher)
        self._guardrails = GuardrailMonitor(room, release_reader=self._tool_calls.release_reader)
        if self._guardrails.holds_back_audio and "playback_tracker" not in settings:
            room.released_audio = ReleasedAudioTracker()
            settings = {**settings, "playback_tracker": room.released_audio}
        tracker = None if room.released_audio is not None else settings.get("playback_tracker")
        writer = None if session is None else HistoryWriter(room, session, tracker=tracker)
        self._lifecycle = SessionLifecycle(
            room,
            self,
            agent=agent,
            model_config=settings,
            tool_calls=self._tool_calls,
            history_writer=writer,
            run_background=lambda: reconnecting.roll_over(),
            on_ended=self._on_ended,
        )
        reconnecting = Reconnector(
            room,
            connect=self._lifecycle.connect,
            on_lost=lambda: self._event_handler.on_connection_lost(),
            on_restored=self._on_restored,
            abort=self._lifecycle.abort,
        )
        self._event_handler = ModelEventHandler(
            room,
            tool_calls=self._tool_calls,
            guardrails=self._guardrails,
            reconnector=reconnecting,
            abort=self._lifecycle.abort,
        )
        self.raw_server_events = rules.get("raw_server_events", True)

    @property
    def model(self) -> RealtimeModel:
        """The model that is talked to, for what a session has no method for: ``session.model.send_event(...)``."""
        return self._ctx.model

    @property
    def state(self) -> RealtimeState:
        """Where in its life the session is."""
        return self._ctx.state

    @property
    def current_agent(self) -> RealtimeAgent[Any]:
        """Who is speaking: the agent whose settings the model has acknowledged."""
        snapshot = getattr(self._ctx.transitions, "current", None)
        return self._agent if snapshot is None else snapshot.agent

    @property
    def context(self) -> RunContextWrapper[Any]:
        """What tools, hooks and guardrails are given: the program's own object, wrapped."""
        return self._ctx.run_context

    @property
    def history(self) -> list[RealtimeItem]:
        """What was said so far, as far as it was heard. A snapshot; readable after the end, too."""
        return self._ctx.history.get_items()

    @property
    def usage(self) -> Usage:
        """What was consumed so far."""
        return self._ctx.run_context.usage

    @property
    def metrics(self) -> RealtimeMetrics:
        """What was measured so far."""
        return self._ctx.metrics

    async def __aenter__(self) -> Self:
        return await self.enter()

    async def enter(self) -> Self:
        """Resolve the agent and connect. When it raises, nothing is left open and the session is over.

        A session is entered once: a second entry is refused and leaves the first alone.
        """
        await self._lifecycle.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await run_to_end(self.close(), grace=None)  # Its deadline bounds it: nobody leaves before the end.
        except Exception as failed:
            if error is None:
                raise
            log.warning("closing failed after %r: %s", error, failed)
        outlet = self._ctx.broadcast
        if error is None and outlet.error is not None and not outlet.error_was_raised:
            outlet.error_was_raised = True
            raise outlet.error

    async def close(self, deadline: float = 2.0) -> RealtimeCloseReport | None:
        """End the session within so many seconds, and tell what had to be cut off.

        Any task of the session's event loop may call it, any number of times; a thread reaches that loop by
        ``asyncio.run_coroutine_threadsafe``. From inside (a tool, a guardrail, a listener) it only asks and gives
        ``None``. If the model fails to close, everything else is released, iterators end, and the error is raised,
        once.
        """
        return await self._lifecycle.close(deadline)

    def __aiter__(self) -> BroadcastIterator[RealtimeSessionEvent]:
        self._ctx.check_event_loop()
        return self._ctx.broadcast.subscribe()

    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Called by the model with everything that it tells."""
        if not self._ctx.broadcast.closed:
            waiting = self._event_handler.handle(event)
            if waiting is not None:
                await waiting

    async def send_message(self, message: RealtimeUserInput) -> None:
        """Say something in writing; the model answers when no other response is active."""
        check_message(message)
        room = self._ctx
        room.check_event_loop()
        await room.wait_connected()
        room.requested_at = room.now()
        await room.send_user_input(RealtimeModelSendUserInput(message))

    async def send_audio(self, audio: bytes, *, commit: bool = False) -> None:
        """Pass on what the user says. What comes while there is no connection is dropped: it would be stale."""
        check_audio(audio)
        room = self._ctx
        room.check_event_loop()
        if not room.connection_up.is_set() and room.state is RealtimeState.RECONNECTING:
            return
        await room.wait_connected()
        if commit:
            room.requested_at = room.now()
        await room.send_or_drop(RealtimeModelSendAudio(audio, commit))

    async def interrupt(self) -> None:
        """Stop the model now: no audio of what it has said so far is emitted after this was called.

        Returns when the response is really over; nothing happens if there is none. In a listener of the model, which
        nobody can tell that it is over, it returns when the model was told to stop.
        """
        room = self._ctx
        room.check_event_loop()
        response = room.responses.active
        speaking = response or room.responses.latest
        if speaking is not None:
            self._guardrails.interrupt(speaking)
            room.broadcast.discard(lambda event: isinstance(event, RealtimeAudio))
        if response is not None:
            response.interrupted_at = room.now()
        self._tool_calls.handle_barge_in()
        if room.state is RealtimeState.RECONNECTING:
            with suppress(Exception):  # Not every model knows between two connections what plays.
                await room.model.send_event(RealtimeModelSendInterrupt(playback_only=True))
            return
        await room.wait_connected()
        self._tool_calls.release_reader()
        await room.send_or_drop(RealtimeModelSendInterrupt(force_response_cancel=response is not None))
        if response is not None and not room.model.is_listener_task():
            try:
                async with Deadline.after(INTERRUPT_TIMEOUT).timeout():
                    await response.wait_ended()
            except TimeoutError:
                room.emit_error(AcknowledgementTimeout("the interruption", INTERRUPT_TIMEOUT))

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Let another agent take over: returns when the model has its settings, or raises and nothing has changed.

        In a listener of the model, which nobody can tell that the model has them, it only asks for the change, and
        what keeps it from being made is an ``error`` event.
        """
        room = self._ctx
        room.check_event_loop()
        room.check_not_resolving("update_agent")
        if room.model.is_listener_task():
            if room.start_task(self._switch_agent(agent), "change of the agent") is None:
                raise Closed("the session is closed")
            return
        await self._switch_agent(agent)

    async def _switch_agent(self, agent: RealtimeAgent[Any]) -> None:
        await self._ctx.wait_connected()
        self._tool_calls.release_reader()
        change = self._agent_switcher.switch_to(agent, reason="update")
        await run_to_end(change, grace=INTERRUPT_TIMEOUT, on_cancel=self._close_switcher_if_closing)

    def _close_switcher_if_closing(self) -> None:
        """Whoever is cancelled because the session closes does not wait for a change."""
        if not self._ctx.is_open:
            self._agent_switcher.close()

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> bool:
        """Let a waiting call be made; with ``always`` every further call of that tool by that agent, too.

        False if no call of that id waits any more.
        """
        return await self._decide(call_id, ApprovalDecision(True), always=always)

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> bool:
        """Refuse a waiting call; the model is told the message. False if no call of that id waits any more."""
        return await self._decide(call_id, ApprovalDecision(False, message=rejection_message), always=always)

    async def _decide(self, call_id: str, decision: ApprovalDecision, *, always: bool) -> bool:
        self._ctx.check_event_loop()
        record = self._tool_calls.decide(call_id, decision, always=always) if self._ctx.is_open else None
        if record is None:
            return False
        settled = self._tool_calls.make_waiter(record)
        if settled is not None:
            await settled
        return True

    def _on_ended(self) -> None:
        """Nothing more is said or heard."""
        self._guardrails.discard_all_audio()
        self._agent_switcher.close()

    async def _on_restored(self, sent_items: list[RealtimeItem]) -> None:
        """A new connection knows these items; say again what else it has to know."""
        room = self._ctx
        outputs = {
            item.call_id for item in sent_items if isinstance(item, RealtimeToolCallItem) and item.output is not None
        }
        self._tool_calls.mark_replayed(outputs)
        await resend_changed_items(room, sent_items)
        again = bool(room.resend_queue.to_resend)
        while room.resend_queue.to_resend and room.connection_up.is_set():
            await room.model.send_event(room.resend_queue.pop_next())
        owes = room.resend_queue.response_pending or (
            room.responses.latest is not None and room.responses.latest.needs_retry
        )
        if owes and not again:
            await send_raw_message(room, "response.create")


def _drop_none_values(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys that say something: one that is ``None`` is as good as left out, unless it is a time without a limit."""
    if config is not None and not isinstance(config, Mapping):
        raise UserError(f"what configures a session is a dict, not {config!r}")
    endless = ("timeout", "roll_over_after")
    return {key: value for key, value in (config or {}).items() if value is not None or key in endless}
