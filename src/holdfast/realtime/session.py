"""A live conversation: entered once, listened to by anyone, closed from anywhere."""

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

from holdfast.agents.approvals import Decision
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.errors import UserError
from holdfast.base.errors import Closed
from holdfast.base.usage import Usage
from holdfast.history.contract import Session
from holdfast.lifecycle.finishing import finish
from holdfast.lifecycle.scope import Deadline
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.calls import Calls
from holdfast.realtime.changing import Changing
from holdfast.realtime.checking import check_audio, check_message, check_numbers, check_parts, tell_unknown_keys
from holdfast.realtime.config import RealtimeRunConfig, RealtimeUserInput
from holdfast.realtime.errors import Unacknowledged
from holdfast.realtime.events import RealtimeAudio, RealtimeCloseReport, RealtimeSessionEvent
from holdfast.realtime.guarding import Guard
from holdfast.realtime.items import RealtimeItem, RealtimeToolCallItem
from holdfast.realtime.lifetime import Lifetime
from holdfast.realtime.metrics import RealtimeMetrics
from holdfast.realtime.model import RealtimeModel, RealtimeModelConfig, RealtimeModelListener
from holdfast.realtime.model_events import RealtimeModelEvent
from holdfast.realtime.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendUserInput,
)
from holdfast.realtime.outlet import Iteration
from holdfast.realtime.passing_on import PassedOn
from holdfast.realtime.pump import Pump
from holdfast.realtime.reconnecting import Reconnecting
from holdfast.realtime.retelling import retell_changed, send_raw
from holdfast.realtime.room import Room, log
from holdfast.realtime.snapshot import base_settings
from holdfast.realtime.states import RealtimeState
from holdfast.realtime.writing import Writer

_SECTIONS = ("guardrails_settings", "reconnect", "tool_execution")
OVER_WITHIN = 5.0
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
        settings = cast(RealtimeModelConfig, _said(model_config))
        said = _said(run_config)
        parts = {key: _said(said[key]) for key in _SECTIONS if key in said}
        rules = cast(RealtimeRunConfig, {**said, **parts})
        check_parts(model, session)
        check_numbers(rules)
        tell_unknown_keys(rules, settings)
        wrapped = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        self._agent = agent
        base = base_settings(rules, settings.get("initial_model_settings"))
        self._room = room = Room(model, wrapped, rules, base)
        self._changing = Changing(room, replace=lambda error: reconnecting.replace(error))
        self._calls = Calls(room, self._changing)
        self._guard = Guard(room, let_go=self._calls.let_go)
        if self._guard.holds_back and "playback_tracker" not in settings:
            room.passed_on = PassedOn()
            settings = {**settings, "playback_tracker": room.passed_on}
        tracker = None if room.passed_on is not None else settings.get("playback_tracker")
        writer = None if session is None else Writer(room, session, tracker=tracker)
        self._life = Lifetime(
            room,
            self,
            agent=agent,
            model_config=settings,
            calls=self._calls,
            writer=writer,
            beside=lambda: reconnecting.roll_over(),
            ended=self._ended,
        )
        reconnecting = Reconnecting(
            room,
            connect=self._life.connect,
            settle=lambda: self._pump.settle(),
            restored=self._restored,
            give_up=self._life.give_up,
        )
        self._pump = Pump(
            room,
            calls=self._calls,
            guard=self._guard,
            reconnecting=reconnecting,
            end=self._life.give_up,
        )
        self.raw_server_events = rules.get("raw_server_events", True)

    @property
    def model(self) -> RealtimeModel:
        """The model that is talked to, for what a session has no method for: ``session.model.send_event(...)``."""
        return self._room.model

    @property
    def state(self) -> RealtimeState:
        """Where in its life the session is."""
        return self._room.state

    @property
    def current_agent(self) -> RealtimeAgent[Any]:
        """Who is speaking: the agent whose settings the model has acknowledged."""
        snapshot = getattr(self._room.transitions, "current", None)
        return self._agent if snapshot is None else snapshot.agent

    @property
    def context(self) -> RunContextWrapper[Any]:
        """What tools, hooks and guardrails are given: the program's own object, wrapped."""
        return self._room.context

    @property
    def history(self) -> list[RealtimeItem]:
        """What was said so far, as far as it was heard. A snapshot; readable after the end, too."""
        return self._room.ledger.items()

    @property
    def usage(self) -> Usage:
        """What was consumed so far."""
        return self._room.context.usage

    @property
    def metrics(self) -> RealtimeMetrics:
        """What was measured so far."""
        return self._room.metrics

    async def __aenter__(self) -> Self:
        return await self.enter()

    async def enter(self) -> Self:
        """Resolve the agent and connect. When it raises, nothing is left open and the session is over.

        A session is entered once: a second entry is refused and leaves the first alone.
        """
        await self._life.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await finish(self.close(), grace=None)  # Its deadline bounds it: nobody leaves before the end.
        except Exception as failed:
            if error is None:
                raise
            log.warning("closing failed after %r: %s", error, failed)
        outlet = self._room.outlet
        if error is None and outlet.error is not None and not outlet.error_was_read:
            outlet.error_was_read = True
            raise outlet.error

    async def close(self, deadline: float = 2.0) -> RealtimeCloseReport | None:
        """End the session within so many seconds, and tell what had to be cut off.

        Any task of the session's event loop may call it, any number of times; a thread reaches that loop by
        ``asyncio.run_coroutine_threadsafe``. From inside (a tool, a guardrail, a listener) it only asks and gives
        ``None``. If the model fails to close, everything else is released, iterators end, and the error is raised,
        once.
        """
        return await self._life.end(deadline)

    def __aiter__(self) -> Iteration[RealtimeSessionEvent]:
        self._room.refuse_elsewhere()
        return self._room.outlet.iterate()

    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Called by the model with everything that it tells."""
        if not self._room.outlet.closed:
            waiting = self._pump.take(event)
            if waiting is not None:
                await waiting

    async def send_message(self, message: RealtimeUserInput) -> None:
        """Say something in writing; the model answers when no other response is active."""
        check_message(message)
        room = self._room
        room.refuse_elsewhere()
        await room.connected()
        room.asked_at = room.now()
        await room.say(RealtimeModelSendUserInput(message))

    async def send_audio(self, audio: bytes, *, commit: bool = False) -> None:
        """Pass on what the user says. What comes while there is no connection is dropped: it would be stale."""
        check_audio(audio)
        room = self._room
        room.refuse_elsewhere()
        if not room.up.is_set() and room.state is RealtimeState.RECONNECTING:
            return
        await room.connected()
        if commit:
            room.asked_at = room.now()
        await room.send_now(RealtimeModelSendAudio(audio, commit))

    async def interrupt(self) -> None:
        """Stop the model now: no audio of what it has said so far is emitted after this was called.

        Returns when the response is really over; nothing happens if there is none. In a listener of the model, which
        nobody can tell that it is over, it returns when the model was told to stop.
        """
        room = self._room
        room.refuse_elsewhere()
        response = room.responses.active
        speaking = response or room.responses.latest
        if speaking is not None:
            self._guard.interrupt(speaking)
            room.outlet.forget(lambda event: isinstance(event, RealtimeAudio))
        if response is not None:
            response.interrupted_at = room.now()
        self._calls.barge_in()
        if room.state is RealtimeState.RECONNECTING:
            with suppress(Exception):  # Not every model knows between two connections what plays.
                await room.model.send_event(RealtimeModelSendInterrupt(playback_only=True))
            return
        await room.connected()
        self._calls.let_go()
        await room.send_now(RealtimeModelSendInterrupt(force_response_cancel=response is not None))
        if response is not None and not room.model.telling():
            try:
                async with Deadline.after(OVER_WITHIN).timeout():
                    await response.over()
            except TimeoutError:
                room.fail(Unacknowledged("the interruption", OVER_WITHIN))

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Let another agent take over: returns when the model has its settings, or raises and nothing has changed.

        In a listener of the model, which nobody can tell that the model has them, it only asks for the change, and
        what keeps it from being made is an ``error`` event.
        """
        room = self._room
        room.refuse_elsewhere()
        room.refuse_to_resolve("update_agent")
        if room.model.telling():
            if room.start(self._change(agent), "change of the agent") is None:
                raise Closed("the session is closed")
            return
        await self._change(agent)

    async def _change(self, agent: RealtimeAgent[Any]) -> None:
        await self._room.connected()
        self._calls.let_go()
        change = self._changing.to(agent, reason="update")
        await finish(change, grace=OVER_WITHIN, on_cancel=self._unless_closing)

    def _unless_closing(self) -> None:
        """Whoever is cancelled because the session closes does not wait for a change."""
        if not self._room.open:
            self._changing.end()

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> bool:
        """Let a waiting call be made; with ``always`` every further call of that tool by that agent, too.

        False if no call of that id waits any more.
        """
        return await self._decide(call_id, Decision(True), always=always)

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> bool:
        """Refuse a waiting call; the model is told the message. False if no call of that id waits any more."""
        return await self._decide(call_id, Decision(False, message=rejection_message), always=always)

    async def _decide(self, call_id: str, decision: Decision, *, always: bool) -> bool:
        self._room.refuse_elsewhere()
        record = self._calls.decide(call_id, decision, always=always) if self._room.open else None
        if record is None:
            return False
        settled = self._calls.settled(record)
        if settled is not None:
            await settled
        return True

    def _ended(self) -> None:
        """Nothing more is said or heard."""
        self._guard.silence()
        self._changing.end()

    async def _restored(self, known: list[RealtimeItem]) -> None:
        """A new connection knows these items; say again what else it has to know."""
        room = self._room
        outputs = {item.call_id for item in known if isinstance(item, RealtimeToolCallItem) and item.output is not None}
        self._calls.replayed(outputs)
        await retell_changed(room, known)
        again = bool(room.owed.unsaid)
        while room.owed.unsaid and room.up.is_set():
            await room.model.send_event(room.owed.say_again())
        owes = room.owed.answer or (room.responses.latest is not None and room.responses.latest.owed)
        if owes and not again:
            await send_raw(room, "response.create")


def _said(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys that say something: one that is ``None`` is as good as left out, unless it is a time without a limit."""
    if config is not None and not isinstance(config, Mapping):
        raise UserError(f"what configures a session is a dict, not {config!r}")
    endless = ("timeout", "roll_over_after")
    return {key: value for key, value in (config or {}).items() if value is not None or key in endless}
