"""What the parts of an open session share: the model, the events, the history, and the tasks they may start."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

from holdfast.agents.context import RunContextWrapper
from holdfast.agents.errors import UserError
from holdfast.agents.hooks import RunHooks
from holdfast.base.errors import Closed
from holdfast.lifecycle.machine import Machine
from holdfast.lifecycle.scope import Scope
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings
from holdfast.realtime.errors import NotConnected
from holdfast.realtime.events import (
    RealtimeAudio,
    RealtimeError,
    RealtimeEventInfo,
    RealtimeEventsDropped,
    RealtimeHistoryAdded,
    RealtimeHistoryUpdated,
    RealtimeMetric,
    RealtimeSessionEvent,
    size_of,
)
from holdfast.realtime.ledger import Ledger
from holdfast.realtime.metrics import RealtimeMetrics
from holdfast.realtime.model import RealtimeModel
from holdfast.realtime.model_inputs import RealtimeModelSendEvent, RealtimeModelSendUserInput
from holdfast.realtime.outlet import Outlet
from holdfast.realtime.owed import Owed
from holdfast.realtime.passing_on import PassedOn
from holdfast.realtime.playing import Playing
from holdfast.realtime.responses import Response, Responses
from holdfast.realtime.snapshot import Snapshot, resolve
from holdfast.realtime.states import TABLE, Event, RealtimeState
from holdfast.realtime.transition import Transitions
from holdfast.tracing.spans import Span, Trace, here

log = logging.getLogger("holdfast.realtime")

NOTICED_WITHIN = 1.0
"""How long after a send failed the loss of the connection may take to be told."""


class _Question:
    """An agent is being asked for its instructions, tools and handoffs."""

    def __init__(self, room: "Room") -> None:
        self.room, self.answered = room, False


# What the current task is asked by, directly or not: an answer that waited for the session would wait for itself.
_asked: ContextVar[tuple[_Question, ...]] = ContextVar("holdfast_realtime_asked", default=())


class Room:
    """The inside of one session. Its fields are changed without waiting in between, so no lock guards them."""

    def __init__(
        self,
        model: RealtimeModel,
        context: RunContextWrapper[Any],
        run_config: RealtimeRunConfig,
        base: RealtimeSessionModelSettings,
    ) -> None:
        self.model, self.context, self.run_config = model, context, run_config
        self.base = base
        """The settings that hold whoever speaks."""
        self.info = RealtimeEventInfo(context)
        self.machine = Machine(TABLE)
        self.outlet: Outlet[RealtimeSessionEvent] = Outlet(
            lambda lost: RealtimeEventsDropped(lost.count, self.info, bytes=lost.bytes), size_of
        )
        self.ledger = Ledger()
        self.transitions = Transitions()
        self.responses = Responses()
        self.metrics = RealtimeMetrics(context.usage, lost=lambda: self.outlet.lost)
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the session was entered: nothing of it may be used anywhere else while it lasts."""
        self.links = 0
        """How many connections there were."""
        self.asked_at: float | None = None
        self.owed = Owed()
        self.restoring = False
        """Whether a new connection is being told what it has to know: that it owes a response is part of it."""
        self.user_is_speaking = False
        self.retelling: set[str] = set()
        """Items that the model was told to forget, and not yet told anew."""
        self.to_write = asyncio.Event()
        """Something that was said may have become final: whoever writes it down looks."""
        self.passed_on: PassedOn | None = None
        self.playing: Playing | None = None
        self.place: Trace | Span[Any] | None = None
        self._tasks: tuple[Scope, Context] | None = None
        self._owners: dict[str, RealtimeAgent[Any]] = {}

    @property
    def snapshot(self) -> Snapshot:
        """Who is speaking."""
        return self.transitions.current

    @property
    def state(self) -> RealtimeState:
        return self.machine.state

    @property
    def open(self) -> bool:
        return self.machine.state in (RealtimeState.OPEN, RealtimeState.RECONNECTING)

    @property
    def hooks(self) -> RunHooks[Any] | None:
        return self.run_config.get("hooks")

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def emit(self, event: RealtimeSessionEvent) -> None:
        self.outlet.put(event)

    def fail(self, error: Any) -> None:
        """Tell of something that failed without ending the session."""
        self.emit(RealtimeError(error, self.info))

    def measure(self, name: str, ms: float, about: str | None = None) -> None:
        self.metrics.add(name, ms)
        self.emit(RealtimeMetric(name, ms, self.info, about=about))

    def play(self, response: Response, audio: RealtimeAudio, lasts_ms: float) -> None:
        """Pass audio on to whoever plays it."""
        response.spoke = True
        if response.first_audio:
            response.first_audio = False
            since = response.began_at if response.asked_at is None else response.asked_at
            self.measure("time_to_first_audio", (self.now() - since) * 1000, response.id)
        self.outlet.flow(audio, len(audio.audio.data))
        if self.passed_on is not None:
            self.passed_on.pass_on(audio)
        if self.playing is not None:
            self.playing.play(response, lasts_ms)

    def stop(self, response: Response) -> None:
        """Nothing more of a response is heard."""
        response.muted = True
        if self.passed_on is not None:
            self.passed_on.stop(response.id)
        if self.playing is not None:
            self.playing.stop(response, self.responses.known.values())

    def cut(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """No more than this was heard of a part."""
        in_vain = self.ledger.cut(item_id, content_index, heard_ms)
        if in_vain is not None:
            self.measure("truncated", in_vain, item_id)
            self.updated()
            self.to_write.set()

    def added(self, item_id: str) -> None:
        self.emit(RealtimeHistoryAdded(self.ledger.item(item_id), self.info, revision=self.ledger.revision))

    def updated(self) -> None:
        self.emit(RealtimeHistoryUpdated(self.ledger.items(), self.info, revision=self.ledger.revision))

    def adopt(self, tasks: Scope) -> None:
        """From now on tasks can be started. They see the context variables of this moment, whoever starts them."""
        self._tasks, self.place = (tasks, copy_context()), here()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None] | None":
        """Run ``work`` beside the conversation; what it raises becomes an error event. Nothing starts while closing."""
        if self._tasks is None:
            work.close()
            return None
        tasks, variables = self._tasks
        contained = self._contained(work)
        try:
            task = variables.copy().run(partial(tasks.start, contained, name=name))
        except Closed:
            work.close()
            return None
        task.add_done_callback(lambda _: work.close())  # If it was cancelled before its first step, it never began.
        return task

    async def resolve(
        self, agent: RealtimeAgent[Any], *, overrides: RealtimeSessionModelSettings | None = None
    ) -> Snapshot:
        """What the model has to know of an agent, as :func:`~holdfast.realtime.snapshot.resolve` finds it out."""
        question = _Question(self)
        token = _asked.set((*_asked.get(), question))
        try:
            return await resolve(agent, self.context, self.run_config, base=self.base, overrides=overrides)
        finally:
            question.answered = True
            _asked.reset(token)

    def refuse_to_resolve(self, what: str) -> None:
        """Raise if the caller is a function that an agent is just being resolved with."""
        if any(question.room is self and not question.answered for question in _asked.get()):
            raise UserError(
                f"{what} was called by the instructions, or by an is_enabled, of an agent that is about to take over: "
                "it would wait for itself. Call it when the agent has taken over, for example on `agent_changed`"
            )

    @property
    def elsewhere(self) -> bool:
        """Whether the caller runs in another event loop than the session."""
        try:
            return self.loop not in (None, asyncio.get_running_loop())
        except RuntimeError:
            return False  # In none, so nothing can be waited for.

    def refuse_elsewhere(self) -> None:
        """Raise if the caller runs in another event loop, and so in another thread, than the session that is open."""
        if self.elsewhere and not self.machine.ended:
            raise UserError(
                "a realtime session can only be used in the event loop in which it was entered; in another thread, "
                "a tool that is a plain function included, use asyncio.run_coroutine_threadsafe(..., that loop)"
            )

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model. Without a connection it waits for the next one, and tells that."""
        while True:
            await self.connected()
            try:
                return await self.model.send_event(event)
            except (ConnectionError, NotConnected):
                if not await self.lost():
                    raise

    async def say(self, message: RealtimeModelSendUserInput) -> None:
        """Tell the model a message that it is to answer. One that it has not confirmed is told the next connection."""
        await self.connected()
        if self.restoring and self.owed.unsaid:
            self.owed.unsaid.append(message)  # It is told behind those that were said before it.
            return
        before = self.owed.answer
        self.owed.told(message)
        try:
            await self.model.send_event(message)
        except Exception as error:
            lost = isinstance(error, ConnectionError | NotConnected) and await self.lost()
            if not lost:  # Otherwise the next connection is told.
                self.owed.take_back(message, answer=before)
                raise

    async def send_now(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model what is of no use later: a connection that is lost meanwhile takes it along."""
        try:
            await self.model.send_event(event)
        except (ConnectionError, NotConnected):
            if not await self.lost():
                raise

    async def connected(self) -> None:
        """Wait for a connection; raises when there will be none."""
        if self.machine.state is RealtimeState.NEW:
            raise NotConnected("the session was not entered yet: use `async with session:`")
        if self.machine.state is RealtimeState.OPENING:
            self.refuse_to_resolve("the session")
        await self.up.wait()
        if not self.open:
            raise Closed("the session is closed")

    def link_is(self, up: bool) -> None:
        """The connection was made or has gone."""
        machine, event = self.machine, Event.CONNECTED if up else Event.LOST
        if machine.allows(event):
            machine.fire(event)
        self.links += up
        if not up:
            self.owed.lost()
        (self.up if up else self.down).set()
        (self.down if up else self.up).clear()

    def owner_of(self, agent: RealtimeAgent[Any]) -> str:
        """A name for an agent that no other agent of this session has."""
        number, name = 1, agent.name
        while self._owners.setdefault(name, agent) is not agent:
            number += 1
            name = f"{agent.name}#{number}"
        return name

    async def _contained(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            if isinstance(error, Closed) and not self.open:
                return  # The end of the session has overtaken it.
            log.warning("a part of the session failed: %s", error, exc_info=error)
            self.fail(error)

    async def lost(self) -> bool:
        """Whether the connection turns out to be gone and the session to be waiting for another."""
        try:
            async with asyncio.timeout(NOTICED_WITHIN):
                await self.down.wait()
        except TimeoutError:
            return False
        return self.open
