"""A link with the protocol's client around it: who reads, who writes, who waits, and how it ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeAlias

from holdfast.lifecycle import Deadline, Owner, Scope
from holdfast.realtime.config import RealtimeSessionModelSettings
from holdfast.realtime.errors import ConnectionLost, NotConnected, Unacknowledged, words_of_error
from holdfast.realtime.model import RealtimeModelConfig
from holdfast.realtime.model_events import (
    RealtimeModelConnectionStatusEvent,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelErrorEvent,
    RealtimeModelEvent,
)
from holdfast.realtime.model_inputs import RealtimeModelSendEvent
from holdfast.realtime.openai.audience import Audience
from holdfast.realtime.openai.client import RealtimeClient
from holdfast.realtime.openai.link import Link, LinkClosed
from holdfast.realtime.openai.outbox import Outbox
from holdfast.realtime.openai.raw import with_raw
from holdfast.realtime.openai.updates import Update
from holdfast.realtime.playback import Playback

Dial: TypeAlias = Callable[[], Awaitable[Link]]

_IN_A_ROW = 64
_NOTICED_WITHIN = 0.5
"""How long the reader of a link that has ended may take to come to the end of it."""


class Connection:
    """One connection, from dialling to its end. It serves once."""

    def __init__(
        self,
        dial: Dial,
        options: RealtimeModelConfig,
        audience: Audience,
        *,
        acknowledge_within: float,
        before: Playback | None = None,
    ) -> None:
        self._dial, self._audience, self._patience = dial, audience, acknowledge_within
        self._loop = asyncio.get_running_loop()
        self._client = RealtimeClient(
            options, clock=self._loop.time, acknowledge_within=acknowledge_within, before=before
        )
        self._outbox = Outbox(self._client.outgoing)
        self._owner = Owner(self._held, name="realtime connection")
        self._scope = Scope()
        self._reader: asyncio.Task[None] | None = None
        self._answers: list[tuple[Update, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._open = False
        self._end: LinkClosed | None = None
        self._complaint: str | None = None
        self.cut_off = False
        """Whether it was ended although the server took no leave."""

    @property
    def playback(self) -> Playback:
        """What was heard of what came over this connection."""
        return self._client.playback

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._end is not None or self._owner.closing

    @property
    def closed(self) -> bool:
        """Whether everything is released."""
        return self._owner.closed

    async def open(self) -> None:
        """Connect and agree on the settings. When it raises, nothing is left open."""
        await self._owner.start()

    async def close(self, *, deadline: Deadline) -> None:
        """End it, from any task. A listener that asks while it is being told something does not wait."""
        await self._owner.close(deadline=deadline)

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Returns when it was written, so that a server that takes nothing holds up the sender."""
        self._check()
        told = self._client.send(event)
        self._look_after_client()
        if told:
            # In a task of its own: a sender that is cancelled must not take away what listeners are due.
            await asyncio.wait({self._scope.start(self._audience.tell(told))})
        await self._outbox.flush()

    async def update(self, settings: RealtimeSessionModelSettings) -> None:
        """Change the settings. Returns when the server has taken them.

        Raises ``SettingsRejected``, ``Unacknowledged`` or ``ConnectionLost``. Inside a listener nobody would
        read the answer, so there it returns when the settings were written.
        """
        self._check()
        update = self._client.update(settings)
        self._look_after_client()
        if asyncio.current_task() is self._reader:
            await self._outbox.flush()
        else:
            await self._answered(update)

    def _check(self) -> None:
        if self.ended:
            raise NotConnected("the realtime connection has ended: connect again before sending")

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        last = LinkClosed(1000, "closed here")
        try:
            async with self._scope as scope:
                link = await self._dial()
                scope.push(lambda: self._leave(link), name="realtime link")
                self._reader = scope.start(self._read(link), name="realtime reader")
                scope.start(self._write(link), name="realtime writer")
                update = self._client.open()
                self._look_after_client()
                await self._answered(update)
                await self._audience.tell([RealtimeModelConnectionStatusEvent("connected")])
                self._open = True
                if self._end is not None:
                    raise self._lost(self._end)
                yield
                scope.cancel()
        except BaseException as failure:
            last = LinkClosed(None, f"it failed here: {failure!r}", failure if isinstance(failure, Exception) else None)
            if not self._open and self._complaint is not None:
                failure.add_note(f"the server had said: {self._complaint}")
            if not self._open or last.error is None:
                self._finish(last)
                raise
        end = self._finish(last)
        lost = self._client.lose(self._lost(end))
        error = None if end.proper else self._lost(end)
        gone = RealtimeModelConnectionStatusEvent("disconnected", error=error, code=end.code)
        await self._audience.tell([*lost, gone, RealtimeModelEndOfStreamEvent()])

    async def _leave(self, link: Link) -> None:
        self.cut_off = bool(await link.close())

    async def _read(self, link: Link) -> None:
        """Understand frames until the link ends. Nothing that a frame or a listener does ends it."""
        client, audience = self._client, self._audience
        for number in count(1):
            try:
                frame = await link.receive()
            except LinkClosed as closed:
                self._finish(closed)
                if self._open:
                    await self._owner.close()
                return
            told = client.receive(frame)
            if not self._open:
                self._note_complaints(told)
            answered = self._look_after_client()
            if audience.wants_raw:
                told = with_raw(frame, told)
            if told:
                await audience.tell(told)
            if answered or number % _IN_A_ROW == 0:
                # Whoever waited for it acts on it before the next frame means anything. And where many frames wait,
                # because the reader was held up, the others in the loop have their turn all the same.
                await asyncio.sleep(0)

    def _note_complaints(self, told: Iterable[RealtimeModelEvent]) -> None:
        """Whoever connects hears of nothing but the failure; the reason may have come before it."""
        for event in told:
            if isinstance(event, RealtimeModelErrorEvent):
                self._complaint = words_of_error(event.error)

    async def _write(self, link: Link) -> None:
        """Write until the link ends. The reader finds that out, too, unless a listener that it tells holds it up."""
        try:
            await self._outbox.run(link)
        except LinkClosed as closed:
            assert self._reader is not None  # noqa: S101
            await asyncio.wait({self._reader}, timeout=_NOTICED_WITHIN)
            self._finish(closed)
            if self._open:
                await self._owner.close()

    def _look_after_client(self) -> bool:
        """See to what the client has left behind: frames to write, answers that came, a new deadline.

        Tells whether there was an answer that somebody waits for.
        """
        client = self._client
        if client.outgoing:
            self._outbox.stir()
        deadline = client.deadline
        if deadline != self._timer_at:
            self._set_timer(deadline)
        return bool(self._answers) and self._pass_on_answers()

    def _pass_on_answers(self) -> bool:
        passed = False
        for update, answer in self._answers:
            if update.answered and not answer.done():
                passed = True
                if update.error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(update.error)
        return passed

    async def _answered(self, update: Update) -> None:
        """Wait for the server's word on a change of settings."""
        answer: asyncio.Future[None] = self._loop.create_future()
        if self._end is not None:
            raise self._lost(self._end)
        self._answers.append((update, answer))
        update.awaited = True
        try:
            async with asyncio.timeout(self._patience):
                await answer
        except TimeoutError as late:
            raise Unacknowledged("the session settings", self._patience) from late
        finally:
            update.abandoned = not update.answered
            self._answers.remove((update, answer))

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer_at = self._timer = None
        if self.ended:
            return
        told = self._client.tick()
        self._look_after_client()
        if told:
            self._scope.start(self._audience.tell(told))

    def _finish(self, end: LinkClosed) -> LinkClosed:
        """Nothing can be sent or answered any more. Gives how it ended, which is the first that was heard."""
        if self._end is None:
            self._end = end
            self._set_timer(None)
            self._outbox.fail(self._lost(end))
            for _, answer in self._answers:
                if not answer.done():
                    answer.set_exception(self._lost(end))
        return self._end

    def _lost(self, end: LinkClosed) -> ConnectionLost:
        told = f"the realtime connection ended ({end.code}): {end.reason or 'no reason given'}"
        error = ConnectionLost(told, close_code=end.code, reason=end.reason)
        error.__cause__ = end.error
        return error
