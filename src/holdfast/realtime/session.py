"""A live conversation: entered once, listened to by anyone, closed from anywhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

from holdfast.agents.context import RunContextWrapper
from holdfast.base.usage import Usage
from holdfast.history.contract import Session
from holdfast.lifecycle.finishing import finish
from holdfast.lifecycle.owner import Owner
from holdfast.lifecycle.scope import NEVER, CutOff, Deadline, Scope
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.audio import PCM16, audio_format
from holdfast.realtime.calls import Calls
from holdfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings, RealtimeUserInput
from holdfast.realtime.errors import NotConnected, Unacknowledged
from holdfast.realtime.events import RealtimeAudio, RealtimeCloseReport, RealtimeSessionClosed, RealtimeSessionEvent
from holdfast.realtime.guarding import Guard
from holdfast.realtime.items import RealtimeItem, RealtimeToolCallItem
from holdfast.realtime.metrics import RealtimeMetrics
from holdfast.realtime.model import RealtimeModel, RealtimeModelConfig, RealtimeModelListener
from holdfast.realtime.model_events import RealtimeModelEvent
from holdfast.realtime.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendUserInput,
)
from holdfast.realtime.outlet import Iteration
from holdfast.realtime.pump import Pump
from holdfast.realtime.reconnecting import Reconnecting, send_raw, tell_history
from holdfast.realtime.room import Room, log
from holdfast.realtime.snapshot import base_settings, resolve
from holdfast.realtime.states import Event, RealtimeState
from holdfast.realtime.transition import Transitions
from holdfast.realtime.writing import Writer

OVER_WITHIN = 5.0
"""How long an interrupted response may take to be over."""
_MOMENT = 0.25


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
        self._agent = agent
        self._model_config: RealtimeModelConfig = model_config or {}
        self._run_config: RealtimeRunConfig = run_config or {}
        self._initial = self._model_config.get("initial_model_settings")
        wrapped = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        self._room = room = Room(model, wrapped, self._run_config)
        self._base = base_settings(self._run_config, self._initial)
        self._transitions = Transitions(room, self._base)
        self._calls = Calls(room, self._transitions)
        self._guard = Guard(room)
        self._writer = None if session is None else Writer(room, session)
        self._reconnecting = Reconnecting(
            room, connect=self._connect, settle=self._settle, restored=self._restored, give_up=self._end
        )
        said = (lambda: None) if self._writer is None else self._writer.wanted
        self._pump = Pump(
            room, calls=self._calls, guard=self._guard, reconnecting=self._reconnecting, said=said, end=self._end
        )
        self._owner = Owner(self._opened, name="realtime session")
        self._deadline = NEVER
        self._cut: list[str] = []
        self._left: list[str] = []
        self._ended_by: tuple[str, BaseException | None] | None = None
        self._close_error: Exception | None = None
        self._report: RealtimeCloseReport | None = None
        self.raw_server_events = self._run_config.get("raw_server_events", True)

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
        await self._owner.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
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

        Anyone may call it, any number of times. From inside (a tool, a guardrail, a listener) it only asks and
        gives ``None``. If the model fails to close, everything else is released, iterators end, and the error is
        raised, once.
        """
        room = self._room
        if room.machine.state is RealtimeState.NEW:
            room.machine.fire(Event.ASKED_TO_CLOSE)
            await self._owner.close()
            self._released()
            return self._report
        self._stop_accepting()
        try:
            # The owner has a little more time than its parts, so that these can say what they had to cut off.
            self._deadline = min(self._deadline, Deadline.after(deadline))
            await self._owner.close(deadline=Deadline.after(deadline + _MOMENT))
        except CutOff as cut:
            self._left += cut.left
        except Exception as error:  # noqa: BLE001 - whoever entered has it, or it is in the report
            log.debug("the session had ended with %r", error)
        if self._owner.closed or self._left:
            self._released()
        failed, self._close_error = self._close_error, None
        if failed is not None and self._owner.closed:
            raise failed
        return self._report

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
        sent = RealtimeModelSendUserInput(cast(Any, message))
        room.unconfirmed.append(sent)
        room.asked_at, room.owes_a_response = room.now(), True
        try:
            await room.model.send_event(sent)
        except Exception as error:
            lost = isinstance(error, ConnectionError | NotConnected) and await room.lost()
            if not lost:  # Otherwise the next connection is told.
                room.forget(sent)
                raise

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
        await finish(self._transitions.to(agent, reason="update"), grace=OVER_WITHIN)

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> bool:
        """Let a waiting call be made; with ``always`` every further call of that tool by that agent, too.

        False if no call of that id waits any more.
        """
        record = self._calls.approve(call_id, always=always)
        if record is not None:
            await self._calls.settled(record)
        return record is not None

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> bool:
        """Refuse a waiting call; the model is told the message. False if no call of that id waits any more."""
        record = self._calls.reject(call_id, always=always, message=rejection_message)
        if record is not None:
            await self._calls.settled(record)
        return record is not None

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        room = self._room
        room.machine.fire(Event.ENTERED)
        try:
            async with Scope() as resources:
                await self._acquire(resources)
                try:
                    async with Scope() as tasks:
                        room.adopt(tasks)
                        self._begin()
                        yield
                        self._stop_accepting()
                        room.model.remove_listener(self)
                        tasks.cancel(deadline=_half(self._deadline))
                except CutOff as cut:
                    self._cut += cut.cut
                    self._left += cut.left
                resources.cancel(deadline=self._deadline)
        except CutOff as cut:
            self._cut += cut.cut
            self._left += cut.left
        except Exception as error:
            self._ended_by = self._ended_by or ("failed", error)
            raise
        finally:
            self._released()

    async def _acquire(self, resources: Scope) -> None:
        room = self._room
        room.snapshot = await resolve(
            self._agent, room.context, self._run_config, base=self._base, overrides=self._initial
        )
        room.ledger.audio_format = audio_format(_output_format(room.snapshot.settings)) or PCM16
        known = [] if self._writer is None else await self._writer.load()
        for item in known:
            room.ledger.tell(item)
        room.model.add_listener(self)
        resources.push(lambda: room.model.remove_listener(self), name="listener")
        await self._connect()
        resources.push(self._close_model, name="model")
        await tell_history(room, known)
        if self._writer is not None:
            resources.push(self._writer.finish, name="history")

    def _begin(self) -> None:
        room = self._room
        room.link_is(up=True)
        room.updated()
        room.start(self._reconnecting.roll_over(), "roll-over")
        if self._writer is not None:
            room.start(self._writer.run(), "history")

    async def _connect(self) -> None:
        settings = self._room.snapshot.settings
        await self._room.model.connect({**self._model_config, "initial_model_settings": settings})

    async def _close_model(self) -> None:
        try:
            await self._room.model.close()
        except Exception as error:  # noqa: BLE001 - raised by close()
            self._close_error = error

    def _settle(self) -> None:
        self._pump.settle()

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

    def _end(self, error: BaseException | None) -> None:
        """The conversation cannot go on. Whoever iterates hears of it, or whoever leaves the session."""
        if self._ended_by is None and self._room.open:
            self._ended_by = ("ended" if error is None else "failed", error)
            self._room.start(self._ask_to_close(), "closing")

    async def _ask_to_close(self) -> None:
        await self.close(OVER_WITHIN)

    def _stop_accepting(self) -> None:
        if self._room.machine.allows(Event.ASKED_TO_CLOSE):
            self._room.machine.fire(Event.ASKED_TO_CLOSE)
        self._room.up.set()  # Those who wait for a connection learn that there will be none.

    def _released(self) -> None:
        if self._report is not None:
            return
        room = self._room
        reason, error = self._ended_by or ("asked", None)
        self._report = RealtimeCloseReport(
            reason=cast(Any, reason),
            error=error or self._close_error,
            cut=tuple(self._cut),
            left=(*self._left, *self._calls.threads),
            unsent=self._calls.unsent,
            undecided=self._calls.undecided,
            unwritten=0 if self._writer is None else self._writer.unwritten,
        )
        self._stop_accepting()
        room.machine.fire(Event.RELEASED)
        room.emit(RealtimeSessionClosed(self._report, room.info))
        room.outlet.close(error)


def _half(deadline: Deadline) -> Deadline:
    """Half of the time that is left: tasks must not use up what the releases need."""
    remaining = deadline.remaining()
    return deadline if remaining is None else Deadline.after(remaining / 2)


def _output_format(settings: RealtimeSessionModelSettings) -> Any:
    nested = settings.get("audio", {}).get("output", {}).get("format")
    return nested or settings.get("output_audio_format")
