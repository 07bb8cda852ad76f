"""A live conversation: entered once, listened to by anyone, closed from anywhere."""

from types import TracebackType
from typing import Any, Self, cast

from holdfast.agents.context import RunContextWrapper
from holdfast.base.usage import Usage
from holdfast.history.contract import Session
from holdfast.lifecycle.finishing import finish
from holdfast.lifecycle.scope import Deadline
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.calls import Calls
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
from holdfast.realtime.reconnecting import Reconnecting, send_raw
from holdfast.realtime.room import Room, log
from holdfast.realtime.snapshot import base_settings
from holdfast.realtime.states import RealtimeState
from holdfast.realtime.transition import Transitions
from holdfast.realtime.writing import Writer

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
        settings: RealtimeModelConfig = model_config or {}
        rules: RealtimeRunConfig = run_config or {}
        wrapped = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        base = base_settings(rules, settings.get("initial_model_settings"))
        self._agent = agent
        self._room = room = Room(model, wrapped, rules)
        self._transitions = Transitions(room, base)
        self._calls = Calls(room, self._transitions)
        self._guard = Guard(room)
        if self._guard.holds_back and "playback_tracker" not in settings:
            room.passed_on = PassedOn()
            settings = {**settings, "playback_tracker": room.passed_on}
        writer = None if session is None else Writer(room, session)
        self._life = Lifetime(
            room,
            self,
            agent=agent,
            model_config=settings,
            base=base,
            calls=self._calls,
            writer=writer,
            beside=lambda: reconnecting.roll_over(),
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
            said=(lambda: None) if writer is None else writer.wanted,
            end=self._life.give_up,
        )
        self.raw_server_events = rules.get("raw_server_events", True)

    @property
    def model(self) -> RealtimeModel:
        return self._room.model

    @property
    def state(self) -> RealtimeState:
        return self._room.state

    @property
    def current_agent(self) -> RealtimeAgent[Any]:
        """Who is speaking: the agent whose settings the model has acknowledged."""
        snapshot = getattr(self._room, "snapshot", None)
        return self._agent if snapshot is None else snapshot.agent

    @property
    def context(self) -> RunContextWrapper[Any]:
        return self._room.context

    @property
    def history(self) -> list[RealtimeItem]:
        """What was said so far, as far as it was heard. A snapshot; readable after the end, too."""
        return self._room.ledger.items()

    @property
    def usage(self) -> Usage:
        return self._room.context.usage

    @property
    def metrics(self) -> RealtimeMetrics:
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

        Any task of the session's event loop may call it, any number of times. From inside (a tool, a guardrail, a
        listener) it only asks and gives ``None``. If the model fails to close, everything else is released,
        iterators end, and the error is raised, once.
        """
        return await self._life.end(deadline)

    def __aiter__(self) -> Iteration[RealtimeSessionEvent]:
        return self._room.outlet.iterate()

    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Called by the model with everything that it tells."""
        if not self._room.outlet.closed:
            waiting = self._pump.take(event)
            if waiting is not None:
                await waiting

    async def send_message(self, message: RealtimeUserInput) -> None:
        """Say something in writing; the model answers when no other response is active."""
        room = self._room
        await room.connected()
        room.asked_at = room.now()
        await room.say(RealtimeModelSendUserInput(cast(Any, message)))

    async def send_audio(self, audio: bytes, *, commit: bool = False) -> None:
        """Pass on what the user says. What comes while there is no connection is dropped: it would be stale."""
        room = self._room
        if not room.up.is_set() and room.state is RealtimeState.RECONNECTING:
            return
        await room.connected()
        if commit:
            room.asked_at = room.now()
        await room.send_now(RealtimeModelSendAudio(audio, commit))

    async def interrupt(self) -> None:
        """Stop the model now: no audio of its response is emitted after this was called.

        Returns when the response is really over; nothing happens if there is none.
        """
        room = self._room
        response = room.responses.active
        speaking = response or room.responses.latest
        if speaking is not None:
            speaking.muted = True
            self._guard.drop(speaking)
            name = speaking.id
            room.outlet.forget(lambda event: isinstance(event, RealtimeAudio) and event.audio.response_id == name)
        if response is not None:
            response.interrupted_at = room.now()
        self._calls.barge_in()
        if room.state is RealtimeState.RECONNECTING:
            return
        await room.connected()
        self._calls.let_go()
        await room.send_now(RealtimeModelSendInterrupt(force_response_cancel=response is not None))
        if response is not None:
            try:
                async with Deadline.after(OVER_WITHIN).timeout():
                    await response.over()
            except TimeoutError:
                room.fail(Unacknowledged("the interruption", OVER_WITHIN))

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Let another agent take over: returns when the model has its settings, or raises and nothing has changed."""
        await self._room.connected()
        self._calls.let_go()
        await finish(self._transitions.to(agent, reason="update"), grace=OVER_WITHIN)

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> bool:
        """Let a waiting call be made; with ``always`` every further call of that tool by that agent, too.

        False if no call of that id waits any more.
        """
        record = self._calls.approve(call_id, always=always) if self._room.open else None
        if record is not None:
            await self._calls.settled(record)
        return record is not None

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> bool:
        """Refuse a waiting call; the model is told the message. False if no call of that id waits any more."""
        record = self._calls.reject(call_id, always=always, message=rejection_message) if self._room.open else None
        if record is not None:
            await self._calls.settled(record)
        return record is not None

    async def _restored(self, known: list[RealtimeItem]) -> None:
        """A new connection knows these items; say again what else it has to know."""
        room = self._room
        outputs = {item.call_id for item in known if isinstance(item, RealtimeToolCallItem) and item.output is not None}
        self._calls.replayed(outputs)
        again = list(room.unconfirmed)
        for message in again:
            await room.model.send_event(message)
        if room.owes_a_response and not again:
            await send_raw(room, "response.create")
