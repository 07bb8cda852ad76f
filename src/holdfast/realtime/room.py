"""What the parts of an open session share: the model, the events, the history, and the tasks they may start."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from holdfast.agents.context import AgentHookContext, RunContextWrapper
from holdfast.agents.hooks import RunHooks
from holdfast.base.errors import Closed
from holdfast.lifecycle.machine import Machine
from holdfast.lifecycle.scope import Scope
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.config import RealtimeRunConfig
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
)
from holdfast.realtime.ledger import Ledger
from holdfast.realtime.metrics import RealtimeMetrics
from holdfast.realtime.model import RealtimeModel
from holdfast.realtime.model_inputs import RealtimeModelSendEvent, RealtimeModelSendUserInput
from holdfast.realtime.outlet import Outlet
from holdfast.realtime.passing_on import PassedOn
from holdfast.realtime.responses import Response, Responses
from holdfast.realtime.snapshot import Snapshot
from holdfast.realtime.states import TABLE, Event, RealtimeState
from holdfast.tracing.spans import Span, Trace, here

log = logging.getLogger("holdfast.realtime")

NOTICED_WITHIN = 1.0
"""How long after a send failed the loss of the connection may take to be told."""
MOST_UNCONFIRMED = 32
"""How many messages are kept to be said again, for models that never confirm one."""


def told_to_stop() -> bool:
    """Whether somebody cancelled this task. Otherwise a cancellation is what became of some work inside of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Room:
    """The inside of one session. Its fields are changed without waiting in between, so no lock guards them."""

    snapshot: Snapshot
    """Who is speaking. Changed by a transition that the model has acknowledged, and by nothing else."""

    def __init__(self, model: RealtimeModel, context: RunContextWrapper[Any], run_config: RealtimeRunConfig) -> None:
        self.model, self.context, self.run_config = model, context, run_config
        self.info = RealtimeEventInfo(context)
        self.machine = Machine(TABLE)
        self.outlet: Outlet[RealtimeSessionEvent] = Outlet(
            lambda lost: RealtimeEventsDropped(lost.count, self.info, bytes=lost.bytes)
        )
        self.ledger = Ledger()
        self.responses = Responses()
        self.metrics = RealtimeMetrics(context.usage)
        self.metrics.dropped_events = lambda: self.outlet.lost.count
        self.metrics.dropped_bytes = lambda: self.outlet.lost.bytes
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.asked_at: float | None = None
        self.owes_a_response = False
        self.user_is_speaking = False
        self.unconfirmed: list[RealtimeModelSendUserInput] = []
        self.passed_on: PassedOn | None = None
        self.place: Trace | Span[Any] | None = None
        self._tasks: tuple[Scope, Context] | None = None
        self._owners: dict[str, RealtimeAgent[Any]] = {}

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

    def play(self, response: Response, audio: RealtimeAudio) -> None:
        """Pass audio on to whoever plays it."""
        if response.first_audio:
            response.first_audio = False
            since = response.began_at if response.asked_at is None else response.asked_at
            self.measure("time_to_first_audio", (self.now() - since) * 1000, response.id)
        self.outlet.flow(audio, len(audio.audio.data))
        if self.passed_on is not None:
            self.passed_on.pass_on(audio)

    def cut(self, item_id: str, content_index: int, heard_ms: int) -> bool:
        """No more than this was heard of a part. Tells whether that is news."""
        in_vain = self.ledger.cut(item_id, content_index, heard_ms)
        if in_vain is not None:
            self.measure("truncated", in_vain, item_id)
            self.updated()
        return in_vain is not None

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
            return variables.copy().run(partial(tasks.start, contained, name=name))
        except Closed:
            work.close()
            return None

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
        self.unconfirmed = [*self.unconfirmed[-MOST_UNCONFIRMED:], message]
        self.owes_a_response = True
        try:
            await self.model.send_event(message)
        except Exception as error:
            lost = isinstance(error, ConnectionError | NotConnected) and await self.lost()
            if not lost:  # Otherwise the next connection is told.
                self.unconfirmed = [sent for sent in self.unconfirmed if sent is not message]
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
        await self.up.wait()
        if not self.open:
            raise Closed("the session is closed")

    def confirm(self, words: str) -> None:
        """The model knows a message of the user: it need not be told again over the next connection."""
        for place, sent in enumerate(self.unconfirmed):
            said = sent.user_input
            if said == words or (not isinstance(said, str) and words in str(said)):
                del self.unconfirmed[place]
                return

    def link_is(self, up: bool) -> None:
        """The connection was made or has gone."""
        machine, event = self.machine, Event.CONNECTED if up else Event.LOST
        if machine.allows(event):
            machine.fire(event)
        (self.up if up else self.down).set()
        (self.down if up else self.up).clear()

    def owner_of(self, agent: RealtimeAgent[Any]) -> str:
        """A name for an agent that no other agent of this session has."""
        number, name = 1, agent.name
        while self._owners.setdefault(name, agent) is not agent:
            number += 1
            name = f"{agent.name}#{number}"
        return name

    def hook_context(self) -> AgentHookContext[Any]:
        context = self.context
        return AgentHookContext(context.context, context.usage, context.turn_input, context.approvals)

    async def _contained(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
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
