"""The life of a session: what it acquires in which order, and how all of it is released again."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal

from standfast.agents.errors import UserError
from standfast.lifecycle.owner import Owner
from standfast.lifecycle.scope import NEVER, CloseTimeout, Deadline, Scope
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.history_sync import send_history
from standfast.realtime._session.history_writer import HistoryWriter
from standfast.realtime._session.states import RealtimeLifecycleEvent, RealtimeState
from standfast.realtime._session.tool_calls import ToolCallManager
from standfast.realtime._session.tracing import open_session_trace
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.audio import parse_audio_format
from standfast.realtime.errors import AlreadyConnected, ConnectionLost, NotConnected
from standfast.realtime.events import RealtimeCloseReport, RealtimeSessionClosed
from standfast.realtime.items import RealtimeItem
from standfast.realtime.model import RealtimeModelConfig, RealtimeModelListener

SELF_CLOSE_TIMEOUT = 5.0
"""How long a session takes at most that ends by itself."""
_CLOSE_MARGIN = 0.25


class SessionLifecycle:
    """One owner for the listener, the connection, the history's writer and every task. It serves once."""

    def __init__(
        self,
        ctx: SessionContext,
        listener: RealtimeModelListener,
        *,
        agent: RealtimeAgent[Any],
        model_config: RealtimeModelConfig,
        tool_calls: ToolCallManager,
        history_writer: HistoryWriter | None,
        run_background: Callable[[], Coroutine[Any, Any, None]],
        on_ended: Callable[[], None],
    ) -> None:
        self._ctx, self._listener, self._agent = ctx, listener, agent
        self._model_config, self._tool_calls, self._history_writer = model_config, tool_calls, history_writer
        self._run_background, self._on_ended = run_background, on_ended
        self._owner = Owner(self._run_session, name="realtime session")
        self._deadline = NEVER
        self._enforce_deadline: Callable[[], None] = lambda: None
        """Makes what is being released keep to the deadline, which may have come closer."""
        self._model_in_use = False
        self._early_error: BaseException | None = None
        """What ended the conversation before the entry was over."""
        self._cancelled: list[str] = []
        self._still_running: list[str] = []
        self._reason: Literal["asked", "ended", "failed"] = "asked"
        self._error: BaseException | None = None
        self._close_error: Exception | None = None
        self._is_listening = False
        self._report: RealtimeCloseReport | None = None

    async def start(self) -> None:
        """Acquire everything. When it raises, nothing is left open."""
        self._ctx.loop = self._ctx.loop or asyncio.get_running_loop()
        try:
            await self._owner.start()
        except asyncio.CancelledError:
            if self._owner.closed:
                self._finish()  # It may have been cancelled before its first step.
            raise

    async def close(self, deadline: float) -> RealtimeCloseReport | None:
        """Release everything, in time. From inside it only asks, and gives ``None``."""
        if not isinstance(deadline, int | float) or math.isnan(deadline):
            raise UserError(f"the deadline is a number of seconds, math.inf for no limit, and not {deadline!r}")
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
            # The owner has a little more time than its parts, so that these can say what they had to cut off.
            await self._owner.close(deadline=Deadline.after(deadline + _CLOSE_MARGIN), grace=_CLOSE_MARGIN)
        except CloseTimeout as cut:
            self._still_running += cut.still_running
        except Exception as error:  # noqa: BLE001 - whoever entered has it, or it is in the report
            log.debug("the session had ended with %r", error)
        if self._owner.closed or self._still_running:
            self._finish()
        failed, self._close_error = self._close_error, None
        if failed is not None and self._owner.closed:
            raise failed
        return self._report

    def abort(self, error: BaseException | None) -> None:
        """The conversation cannot go on. Whoever enters, iterates or leaves the session hears of it."""
        if self._ctx.state is RealtimeState.OPENING:
            self._early_error = self._early_error or error or ConnectionLost("the connection ended during the entry")
        elif self._reason == "asked" and self._ctx.is_open:
            self._reason, self._error = "ended" if error is None else "failed", error
            self._ctx.start_task(self._close_self(), "closing")

    async def connect(self) -> None:
        """Connect with the settings of the agent that is speaking."""
        settings = self._ctx.resolved_agent.settings
        await self._ctx.model.connect({**self._model_config, "initial_model_settings": settings})

    @asynccontextmanager
    async def _run_session(self) -> AsyncIterator[None]:
        room = self._ctx
        room.state_machine.fire(RealtimeLifecycleEvent.ENTERED)
        try:
            with open_session_trace(room.run_config, room.base_settings):
                async with Scope() as resources:
                    known = await self._acquire(resources)
                    async with self._run_conversation(resources, known):
                        yield
                    self._enforce_deadline = lambda: resources.cancel(deadline=self._deadline)
                    self._enforce_deadline()
        except CloseTimeout as cut:
            self._record_cut_off(cut)
        except Exception as error:
            self._reason, self._error = "failed", self._error or error
            raise
        finally:
            self._finish()

    @asynccontextmanager
    async def _run_conversation(self, resources: Scope, history_items: list[RealtimeItem]) -> AsyncIterator[None]:
        room = self._ctx
        try:
            async with Scope() as tasks:
                room.attach_tasks(tasks)  # A model may make calls as soon as it is connected.
                await self._connect_and_replay(history_items)
                if self._history_writer is not None:
                    resources.push_callback(self._history_writer.close, name="history")
                self._start_background_tasks()
                yield
                self._stop_accepting()
                self._stop_listening()
                self._enforce_deadline = partial(self._cancel_tasks, tasks)
                self._enforce_deadline()
        except CloseTimeout as cut:
            self._record_cut_off(cut)
        finally:
            if (cut_short := room.responses.active) is not None:
                cut_short.end()
                if room.history.end_response(cut_short.id, complete=False):
                    room.emit_history_updated()
            self._on_ended()

    def _cancel_tasks(self, tasks: Scope) -> None:
        """Tasks must not use up the time that the releases need."""
        tasks.cancel(deadline=_halve_deadline(self._deadline))

    async def _acquire(self, resources: Scope) -> list[RealtimeItem]:
        """Everything but the connection itself. Gives what was said before."""
        room, initial = self._ctx, self._model_config.get("initial_model_settings")
        first = await room.resolve_agent(self._agent, overrides=initial)
        room.transitions.current = first
        room.history.set_audio_format(parse_audio_format(first.get_output_setting("format", "output_audio_format")))
        known = [] if self._history_writer is None else await self._history_writer.load()
        for item in known:
            room.history.upsert_item(item)
        room.model.add_listener(self._listener)
        self._is_listening = True
        resources.push_callback(self._stop_listening, name="listener")
        # Before connecting: a model that is cancelled half way may not keep its promise to leave nothing open.
        resources.push_callback(self._close_model, name="model")
        return known

    async def _connect_and_replay(self, history_items: list[RealtimeItem]) -> None:
        try:
            await self.connect()
        except AlreadyConnected:
            self._model_in_use = True
            raise
        try:
            await send_history(self._ctx, history_items)
        except NotConnected as error:
            with suppress(Exception):
                await self._ctx.model.close()  # Then it has told why it is not.
            self._early_error = self._early_error or error
        if self._early_error is not None:
            raise self._early_error

    def _start_background_tasks(self) -> None:
        room = self._ctx
        room.set_connected(connected=True)
        room.emit_history_updated()
        room.start_task(self._run_background(), "roll-over")
        if self._history_writer is not None:
            room.start_task(self._history_writer.run(), "history")

    async def _close_model(self) -> None:
        if self._model_in_use:
            return
        try:
            await self._ctx.model.close()
            self._cancelled += ["connection"] if self._ctx.model.was_aborted else []
        except Exception as error:  # noqa: BLE001 - raised to whoever closes the session
            self._close_error = error

    async def _close_self(self) -> None:
        await self.close(SELF_CLOSE_TIMEOUT)

    def _stop_listening(self) -> None:
        """Once: a model need not forgive a listener that it does not know."""
        if self._is_listening:
            self._is_listening = False
            self._ctx.model.remove_listener(self._listener)

    def _stop_accepting(self) -> None:
        if self._ctx.state_machine.allows(RealtimeLifecycleEvent.CLOSE_REQUESTED):
            self._ctx.state_machine.fire(RealtimeLifecycleEvent.CLOSE_REQUESTED)
        # Those who wait for a connection, or to hear whether it was lost, learn that there will be none.
        self._ctx.connection_up.set()
        self._ctx.connection_down.set()

    def _finish(self) -> None:
        """Tell how it ended and let the iterators end, once."""
        if self._report is not None:
            return
        room = self._ctx
        self._stop_accepting()
        self._report = RealtimeCloseReport(
            reason=self._reason,
            error=self._error or self._close_error,
            cancelled=tuple(self._cancelled),
            still_running=(
                *self._still_running,
                *self._tool_calls.running_threads,
                *(() if self._history_writer is None else self._history_writer.still_running),
            ),
            unsent_outputs=self._tool_calls.unsent_call_ids,
            pending_approvals=self._tool_calls.pending_approval_ids,
            undelivered_messages=tuple(
                message.user_input for message in room.resend_queue.to_resend if not message.follow_up
            ),
            unwritten_count=0 if self._history_writer is None else self._history_writer.unwritten_count,
        )
        room.state_machine.fire(RealtimeLifecycleEvent.RELEASED)
        room.emit(RealtimeSessionClosed(self._report, room.info))
        room.broadcast.close(self._error)

    def _record_cut_off(self, cut: CloseTimeout) -> None:
        self._cancelled += cut.interrupted
        self._still_running += cut.still_running


def _halve_deadline(deadline: Deadline) -> Deadline:
    """Half of the time that is left."""
    remaining = deadline.remaining()
    return deadline if remaining is None else Deadline.after(remaining / 2)
