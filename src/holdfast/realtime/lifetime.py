"""The life of a session: what it acquires in which order, and how all of it is released again."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal

from holdfast.agents.errors import UserError
from holdfast.lifecycle.owner import Owner
from holdfast.lifecycle.scope import NEVER, CutOff, Deadline, Scope
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.audio import audio_format
from holdfast.realtime.calls import Calls
from holdfast.realtime.errors import AlreadyConnected, ConnectionLost, NotConnected
from holdfast.realtime.events import RealtimeCloseReport, RealtimeSessionClosed
from holdfast.realtime.items import RealtimeItem
from holdfast.realtime.model import RealtimeModelConfig, RealtimeModelListener
from holdfast.realtime.retelling import tell_history
from holdfast.realtime.room import Room, log
from holdfast.realtime.spans import call_trace
from holdfast.realtime.states import Event, RealtimeState
from holdfast.realtime.writing import Writer

ENDING_WITHIN = 5.0
"""How long a session takes at most that ends by itself."""
_MOMENT = 0.25


class Lifetime:
    """One owner for the listener, the connection, the history's writer and every task. It serves once."""

    def __init__(
        self,
        room: Room,
        listener: RealtimeModelListener,
        *,
        agent: RealtimeAgent[Any],
        model_config: RealtimeModelConfig,
        calls: Calls,
        writer: Writer | None,
        beside: Callable[[], Coroutine[Any, Any, None]],
        ended: Callable[[], None],
    ) -> None:
        self._room, self._listener, self._agent = room, listener, agent
        self._model_config, self._calls, self._writer = model_config, calls, writer
        self._beside, self._ended = beside, ended
        self._owner = Owner(self._opened, name="realtime session")
        self._deadline = NEVER
        self._hurry: Callable[[], None] = lambda: None
        """Makes what is being released keep to the deadline, which may have come closer."""
        self._model_is_taken = False
        self._ended_early: BaseException | None = None
        """What ended the conversation before the entry was over."""
        self._cut: list[str] = []
        self._left: list[str] = []
        self._reason: Literal["asked", "ended", "failed"] = "asked"
        self._error: BaseException | None = None
        self._close_error: Exception | None = None
        self._listens = False
        self._report: RealtimeCloseReport | None = None

    async def begin(self) -> None:
        """Acquire everything. When it raises, nothing is left open."""
        self._room.loop = self._room.loop or asyncio.get_running_loop()
        try:
            await self._owner.start()
        except asyncio.CancelledError:
            if self._owner.closed:
                self._released()  # It may have been cancelled before its first step.
            raise

    async def end(self, deadline: float) -> RealtimeCloseReport | None:
        """Release everything, in time. From inside it only asks, and gives ``None``."""
        if not isinstance(deadline, int | float) or math.isnan(deadline):
            raise UserError(f"the deadline is a number of seconds, math.inf for no limit, and not {deadline!r}")
        if self._room.state is RealtimeState.NEW:
            await self._owner.close()
            self._released()
            return self._report
        if self._room.elsewhere:
            self._room.refuse_elsewhere()
            return self._report
        self._stop_accepting()
        self._deadline = min(self._deadline, Deadline.after(deadline))
        self._hurry()
        try:
            # The owner has a little more time than its parts, so that these can say what they had to cut off.
            await self._owner.close(deadline=Deadline.after(deadline + _MOMENT), grace=_MOMENT)
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

    def give_up(self, error: BaseException | None) -> None:
        """The conversation cannot go on. Whoever enters, iterates or leaves the session hears of it."""
        if self._room.state is RealtimeState.OPENING:
            self._ended_early = self._ended_early or error or ConnectionLost("the connection ended during the entry")
        elif self._reason == "asked" and self._room.open:
            self._reason, self._error = "ended" if error is None else "failed", error
            self._room.start(self._ask_to_end(), "closing")

    async def connect(self) -> None:
        """Connect with the settings of the agent that is speaking."""
        settings = self._room.snapshot.settings
        await self._room.model.connect({**self._model_config, "initial_model_settings": settings})

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        room = self._room
        room.machine.fire(Event.ENTERED)
        try:
            with call_trace(room.run_config, room.base):
                async with Scope() as resources:
                    known = await self._acquire(resources)
                    async with self._talking(resources, known):
                        yield
                    self._hurry = lambda: resources.cancel(deadline=self._deadline)
                    self._hurry()
        except CutOff as cut:
            self._note(cut)
        except Exception as error:
            self._reason, self._error = "failed", self._error or error
            raise
        finally:
            self._released()

    @asynccontextmanager
    async def _talking(self, resources: Scope, known: list[RealtimeItem]) -> AsyncIterator[None]:
        room = self._room
        try:
            async with Scope() as tasks:
                room.adopt(tasks)  # A model may make calls as soon as it is connected.
                await self._begin_call(known)
                if self._writer is not None:
                    resources.push(self._writer.finish, name="history")
                self._start()
                yield
                self._stop_accepting()
                self._stop_listening()
                self._hurry = partial(self._end_tasks, tasks)
                self._hurry()
        except CutOff as cut:
            self._note(cut)
        finally:
            if (cut_short := room.responses.active) is not None:
                cut_short.end()
                if room.ledger.ended(cut_short.id, complete=False):
                    room.updated()
            self._ended()

    def _end_tasks(self, tasks: Scope) -> None:
        """Tasks must not use up the time that the releases need."""
        tasks.cancel(deadline=_half(self._deadline))

    async def _acquire(self, resources: Scope) -> list[RealtimeItem]:
        """Everything but the connection itself. Gives what was said before."""
        room, initial = self._room, self._model_config.get("initial_model_settings")
        first = await room.resolve(self._agent, overrides=initial)
        room.transitions.current = first
        room.ledger.use_format(audio_format(first.output("format", "output_audio_format")))
        known = [] if self._writer is None else await self._writer.load()
        for item in known:
            room.ledger.tell(item)
        room.model.add_listener(self._listener)
        self._listens = True
        resources.push(self._stop_listening, name="listener")
        # Before connecting: a model that is cancelled half way may not keep its promise to leave nothing open.
        resources.push(self._close_model, name="model")
        return known

    async def _begin_call(self, known: list[RealtimeItem]) -> None:
        try:
            await self.connect()
        except AlreadyConnected:
            self._model_is_taken = True
            raise
        try:
            await tell_history(self._room, known)
        except NotConnected as error:
            with suppress(Exception):
                await self._room.model.close()  # Then it has told why it is not.
            self._ended_early = self._ended_early or error
        if self._ended_early is not None:
            raise self._ended_early

    def _start(self) -> None:
        room = self._room
        room.link_is(up=True)
        room.updated()
        room.start(self._beside(), "roll-over")
        if self._writer is not None:
            room.start(self._writer.run(), "history")

    async def _close_model(self) -> None:
        if self._model_is_taken:
            return
        try:
            await self._room.model.close()
            self._cut += ["connection"] if self._room.model.cut_off else []
        except Exception as error:  # noqa: BLE001 - raised to whoever closes the session
            self._close_error = error

    async def _ask_to_end(self) -> None:
        await self.end(ENDING_WITHIN)

    def _stop_listening(self) -> None:
        """Once: a model need not forgive a listener that it does not know."""
        if self._listens:
            self._listens = False
            self._room.model.remove_listener(self._listener)

    def _stop_accepting(self) -> None:
        if self._room.machine.allows(Event.ASKED_TO_CLOSE):
            self._room.machine.fire(Event.ASKED_TO_CLOSE)
        # Those who wait for a connection, or to hear whether it was lost, learn that there will be none.
        self._room.up.set()
        self._room.down.set()

    def _released(self) -> None:
        """Tell how it ended and let the iterators end, once."""
        if self._report is not None:
            return
        room = self._room
        self._stop_accepting()
        self._report = RealtimeCloseReport(
            reason=self._reason,
            error=self._error or self._close_error,
            cut=tuple(self._cut),
            left=(*self._left, *self._calls.threads, *(() if self._writer is None else self._writer.left)),
            unsent=self._calls.unsent,
            undecided=self._calls.undecided,
            unsaid=tuple(message.user_input for message in room.owed.unsaid if not message.follow_up),
            unwritten=0 if self._writer is None else self._writer.unwritten,
        )
        room.machine.fire(Event.RELEASED)
        room.emit(RealtimeSessionClosed(self._report, room.info))
        room.outlet.close(self._error)

    def _note(self, cut: CutOff) -> None:
        self._cut += cut.cut
        self._left += cut.left


def _half(deadline: Deadline) -> Deadline:
    """Half of the time that is left."""
    remaining = deadline.remaining()
    return deadline if remaining is None else Deadline.after(remaining / 2)
