"""The lifecycle of a session: what it acquires, in which order, and how everything is released."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from standfast.agents.errors import UserError
from standfast.lifecycle.owner import Owner
from standfast.lifecycle.scope import NEVER, CloseTimeout, Deadline, Scope
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import (
    RealtimeLifecycleEvent,
    RealtimeState,
    SessionContext,
    SessionOutcome,
    log,
)
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.history_writer import HistoryWriter
from standfast.realtime._session.playback_clock import PlaybackClock
from standfast.realtime._session.reconnect import Reconnector
from standfast.realtime._session.responses import ResponseRegistry
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_calls import ToolCallRunner
from standfast.realtime._session.turns import open_session_trace
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.audio import parse_audio_format
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import AlreadyConnected, NotConnected
from standfast.realtime.events import RealtimeCloseReport, RealtimeSessionClosed
from standfast.realtime.items import RealtimeItem
from standfast.realtime.model import RealtimeModelListener

SELF_CLOSE_TIMEOUT = 5.0
"""Seconds that a session which ends by itself has to close."""
_CLOSE_MARGIN = 0.25


class SessionLifecycle:
    """Owns the listener, the connection, the history writer and every task of a session. It can be started once."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        history: SessionHistory,
        clock: PlaybackClock,
        agent_switcher: AgentSwitcher,
        tool_calls: ToolCallRunner,
        guardrails: GuardrailMonitor,
        reconnector: Reconnector,
        outcome: SessionOutcome,
        *,
        listener: RealtimeModelListener,
        history_writer: HistoryWriter | None,
        agent: RealtimeAgent[Any],
        initial_settings: RealtimeSessionModelSettings | None,
        base_settings: RealtimeSessionModelSettings,
    ) -> None:
        self._ctx, self._listener, self._agent = ctx, listener, agent
        self._initial_settings, self._base_settings = initial_settings, base_settings
        self._connection, self._clock, self._responses, self._history = connection, clock, responses, history
        self._agent_switcher, self._tool_calls, self._guardrails = agent_switcher, tool_calls, guardrails
        self._reconnector, self._history_writer, self._outcome = reconnector, history_writer, outcome
        self._owner = Owner(self._run_session, name="realtime session")
        self._deadline = NEVER
        self._enforce_deadline: Callable[[], None] = lambda: None
        """Applies the deadline, which may have become shorter, to the release under way."""
        self._model_in_use = False
        self._cancelled: list[str] = []
        self._still_running: list[str] = []
        self._close_error: Exception | None = None
        self._is_listening = False
        self._report: RealtimeCloseReport | None = None

    async def start(self) -> None:
        """Acquire everything. If it raises, nothing is left open."""
        self._ctx.loop = self._ctx.loop or asyncio.get_running_loop()
        try:
            await self._owner.start()
        except asyncio.CancelledError:
            if self._owner.closed:
                self._finish()  # It may have been cancelled before its first step.
            raise

    async def close(self, deadline: float) -> RealtimeCloseReport | None:
        """Release everything within ``deadline`` seconds. A task of the session only requests it and gets ``None``."""
        if not isinstance(deadline, int | float) or math.isnan(deadline):
            raise UserError(f"deadline must be a number of seconds, or math.inf for no limit, got {deadline!r}")
        if self._ctx.state is RealtimeState.NEW:
            await self._owner.close()
            self._finish()
            return self._report
        if self._ctx.is_other_loop:
            self._ctx.check_event_loop()
            return self._report
        self._stop_accepting()
        self._deadline = min(self._deadline, Deadline.after(deadline))
        self._enforce_deadline()
        try:
            # The owner has a little more time than its parts, so that they can report what they cancelled.
            await self._owner.close(deadline=Deadline.after(deadline + _CLOSE_MARGIN), grace=_CLOSE_MARGIN)
        except CloseTimeout as timeout:
            self._still_running += timeout.still_running
        except Exception as error:  # noqa: BLE001 - raised by the entry, or part of the report
            log.debug("the session had ended with %r", error)
        if self._owner.closed or self._still_running:
            self._finish()
        failed, self._close_error = self._close_error, None
        if failed is not None and self._owner.closed:
            raise failed
        return self._report

    @asynccontextmanager
    async def _run_session(self) -> AsyncIterator[None]:
        self._ctx.state_machine.fire(RealtimeLifecycleEvent.ENTERED)
        try:
            with open_session_trace(self._ctx.run_config, self._base_settings):
                async with Scope() as resources:
                    items = await self._acquire(resources)
                    async with self._run_conversation(resources, items):
                        yield
                    self._enforce_deadline = lambda: resources.cancel(deadline=self._deadline)
                    self._enforce_deadline()
        except CloseTimeout as timeout:
            self._record_timeout(timeout)
        except Exception as error:
            self._outcome.fail(error)
            raise
        finally:
            self._finish()

    @asynccontextmanager
    async def _run_conversation(self, resources: Scope, history_items: list[RealtimeItem]) -> AsyncIterator[None]:
        try:
            async with Scope() as tasks:
                self._ctx.attach_tasks(tasks)  # A model may make calls as soon as it is connected.
                await self._connect_and_replay(history_items)
                if self._history_writer is not None:
                    resources.push_callback(self._history_writer.close, name="history")
                self._start_background_tasks()
                yield
                self._stop_accepting()
                self._stop_listening()
                self._enforce_deadline = partial(self._cancel_tasks, tasks)
                self._enforce_deadline()
        except CloseTimeout as timeout:
            self._record_timeout(timeout)
        finally:
            if (active := self._responses.active) is not None:
                active.end()
                if self._history.conversation.end_response(active.id, complete=False):
                    self._history.emit_updated()
            self._guardrails.discard_all_audio()
            self._agent_switcher.close()

    def _cancel_tasks(self, tasks: Scope) -> None:
        """Cancel the tasks, and leave half of the time for the releases."""
        tasks.cancel(deadline=_halve_deadline(self._deadline))

    async def _acquire(self, resources: Scope) -> list[RealtimeItem]:
        """Acquire everything but the connection. Returns the items of the history session."""
        first = await self._agent_switcher.start_with(self._agent, overrides=self._initial_settings)
        self._clock.set_format(parse_audio_format(first.get_output_setting("format", "output_audio_format")))
        items = [] if self._history_writer is None else await self._history_writer.load()
        for item in items:
            self._history.conversation.upsert_item(item)
        self._ctx.model.add_listener(self._listener)
        self._is_listening = True
        resources.push_callback(self._stop_listening, name="listener")
        # Before connecting: a model whose connect is cancelled may leave a connection open.
        resources.push_callback(self._close_model, name="model")
        return items

    async def _connect_and_replay(self, history_items: list[RealtimeItem]) -> None:
        try:
            await self._connection.connect(self._agent_switcher.current.settings)
        except AlreadyConnected:
            self._model_in_use = True
            raise
        try:
            await self._history.replay(history_items)
        except NotConnected as error:
            with suppress(Exception):
                await self._ctx.model.close()  # This reports the reason as an event.
            self._outcome.entry_error = self._outcome.entry_error or error
        if self._outcome.entry_error is not None:
            raise self._outcome.entry_error

    def _start_background_tasks(self) -> None:
        self._connection.set_connected(connected=True)
        self._history.emit_updated()
        self._ctx.start_task(self._close_on_abort(), "closing")
        self._ctx.start_task(self._reconnector.roll_over(), "roll-over")
        if self._history_writer is not None:
            self._ctx.start_task(self._history_writer.run(), "history")

    async def _close_model(self) -> None:
        if self._model_in_use:
            return
        try:
            await self._ctx.model.close()
            self._cancelled += ["connection"] if self._ctx.model.was_aborted else []
        except Exception as error:  # noqa: BLE001 - raised by ``close`` of the session
            self._close_error = error

    async def _close_on_abort(self) -> None:
        await self._outcome.abort_requested.wait()
        await self.close(SELF_CLOSE_TIMEOUT)

    def _stop_listening(self) -> None:
        """Remove the listener once: a model may raise for a listener that it does not know."""
        if self._is_listening:
            self._is_listening = False
            self._ctx.model.remove_listener(self._listener)

    def _stop_accepting(self) -> None:
        if self._ctx.state_machine.allows(RealtimeLifecycleEvent.CLOSE_REQUESTED):
            self._ctx.state_machine.fire(RealtimeLifecycleEvent.CLOSE_REQUESTED)
        self._connection.release_waiters()

    def _finish(self) -> None:
        """Emit the report and end the iterators, once."""
        if self._report is not None:
            return
        self._stop_accepting()
        self._report = RealtimeCloseReport(
            reason=self._outcome.reason,
            error=self._outcome.error or self._close_error,
            cancelled=tuple(self._cancelled),
            still_running=(
                *self._still_running,
                *self._tool_calls.running_threads,
                *(() if self._history_writer is None else self._history_writer.still_running),
            ),
            unsent_outputs=self._tool_calls.unsent_call_ids,
            pending_approvals=self._tool_calls.pending_approval_ids,
            undelivered_messages=tuple(
                message.user_input for message in self._connection.resend_queue.to_resend if not message.follow_up
            ),
            unwritten_count=0 if self._history_writer is None else self._history_writer.unwritten_count,
        )
        self._ctx.state_machine.fire(RealtimeLifecycleEvent.RELEASED)
        self._ctx.emit(RealtimeSessionClosed(self._report, self._ctx.info))
        self._ctx.broadcast.close(self._outcome.error)

    def _record_timeout(self, timeout: CloseTimeout) -> None:
        self._cancelled += timeout.interrupted
        self._still_running += timeout.still_running


def _halve_deadline(deadline: Deadline) -> Deadline:
    """Return a deadline after half of the remaining time."""
    remaining = deadline.remaining()
    return deadline if remaining is None else Deadline.after(remaining / 2)
