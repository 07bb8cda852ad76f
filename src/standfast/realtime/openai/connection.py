"""One connection of a realtime model: its listeners, frames, timer, pending updates and end."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeAlias

from standfast.base.log import get_logger
from standfast.lifecycle import Deadline, Owner, Scope
from standfast.lifecycle.scope import is_cancelling
from standfast.realtime._session.playback import Playback
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import AcknowledgementTimeout, ConnectionLost, NotConnected, describe_error
from standfast.realtime.model import RealtimeModelConfig, RealtimeModelListener, RealtimeModelSendEvent
from standfast.realtime.model_events import (
    RealtimeModelConnectionStatusEvent,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelErrorEvent,
    RealtimeModelEvent,
    RealtimeModelRawServerEvent,
)
from standfast.realtime.openai._protocol.client import RealtimeClient
from standfast.realtime.openai._protocol.session_settings import PendingSessionUpdate
from standfast.realtime.openai.codec import prepend_raw_event
from standfast.realtime.openai.transport import Transport, TransportClosed

log = get_logger("standfast.realtime")


class ListenerRegistry:
    """Delivers every event to each listener, in order and one at a time.

    An exception of a listener is logged; the listener still gets the next event.
    """

    def __init__(self) -> None:
        self._listeners: tuple[RealtimeModelListener, ...] = ()
        self._pending_events: deque[RealtimeModelEvent] = deque()
        self._notifying_task: asyncio.Task[Any] | None = None

    def add(self, listener: RealtimeModelListener) -> None:
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: RealtimeModelListener) -> None:
        self._listeners = tuple(other for other in self._listeners if other != listener)

    @property
    def wants_raw_events(self) -> bool:
        """Whether any listener wants the unparsed messages of the server."""
        return True in map(_accepts_raw_events, self._listeners)

    @property
    def is_current_task_notifying(self) -> bool:
        """Whether the caller is a listener that is handling an event."""
        return self._notifying_task is not None and self._notifying_task is asyncio.current_task()

    async def notify(self, events: Iterable[RealtimeModelEvent]) -> None:
        """Deliver events to all listeners.

        If another task is delivering already, it takes these over and this returns at once.
        """
        self._pending_events.extend(events)
        if self._notifying_task is not None:
            return
        self._notifying_task = asyncio.current_task()
        try:
            while self._pending_events:
                event = self._pending_events.popleft()
                raw = isinstance(event, RealtimeModelRawServerEvent)
                for listener in self._listeners:
                    if raw and not _accepts_raw_events(listener):
                        continue
                    try:
                        await listener.on_event(event)
                    except (Exception, asyncio.CancelledError) as error:
                        if isinstance(error, asyncio.CancelledError) and is_cancelling():
                            raise
                        log.exception("a listener failed at the event %r", event.type)
        finally:
            self._notifying_task = None


def _accepts_raw_events(listener: RealtimeModelListener) -> bool:
    # Listeners are duck-typed: they need not inherit the default of RealtimeModelListener.
    return getattr(listener, "raw_server_events", True)


class FrameWriter:
    """Writes the frames of a shared queue to a transport, in order."""

    def __init__(self, frames: deque[bytes]) -> None:
        self._frames = frames
        self._wakeup = asyncio.Event()
        self._written_count = 0
        self._writing = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: Exception | None = None

    def wake(self) -> None:
        """Report that the queue has new frames."""
        self._wakeup.set()

    async def run(self, transport: Transport) -> None:
        """Write until the transport is closed, then raise :class:`TransportClosed`."""
        while True:
            while self._frames:
                self._writing = True
                try:
                    await transport.send(self._frames.popleft())
                finally:
                    self._writing = False
                self._written_count += 1
                while self._waiters and self._waiters[0][0] <= self._written_count:
                    _, written = self._waiters.popleft()
                    if not written.done():
                        written.set_result(None)
            self._wakeup.clear()
            await self._wakeup.wait()

    async def flush(self) -> None:
        """Wait until all frames queued so far are written, so that a slow peer slows down the sender."""
        if self._error is not None:
            raise self._error
        if not self._frames and not self._writing:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._written_count + self._writing + len(self._frames), written))
        await written

    def fail(self, error: Exception) -> None:
        """Make all present and future calls of :meth:`flush` raise ``error``: nothing more will be written."""
        self._error = error
        while self._waiters:
            _, written = self._waiters.popleft()
            if not written.done():
                written.set_exception(error)


TransportFactory: TypeAlias = Callable[[], Awaitable[Transport]]

_MAX_FRAMES_BEFORE_YIELD = 64
_READER_DRAIN_TIMEOUT = 0.5
"""How long, in seconds, the reader may take to reach the end of a transport that failed while writing."""


class ModelConnection:
    """One connection from opening to its end. It is used once; a reconnect makes a new one."""

    def __init__(
        self,
        open_transport: TransportFactory,
        options: RealtimeModelConfig,
        listeners: ListenerRegistry,
        *,
        acknowledge_timeout: float,
        previous_playback: Playback | None = None,
    ) -> None:
        self._open_transport, self._listeners, self._acknowledge_timeout = (
            open_transport,
            listeners,
            acknowledge_timeout,
        )
        self._loop = asyncio.get_running_loop()
        self._client = RealtimeClient(
            options, clock=self._loop.time, acknowledge_timeout=acknowledge_timeout, previous_playback=previous_playback
        )
        self._frame_writer = FrameWriter(self._client.outgoing)
        self._owner = Owner(self._lifespan, name="realtime connection")
        self._scope = Scope()
        self._reader: asyncio.Task[None] | None = None
        self._pending_updates: list[tuple[PendingSessionUpdate, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._is_open = False
        self._closure: TransportClosed | None = None
        self._last_server_error: str | None = None
        self.was_aborted = False
        """Whether it was closed without a close handshake."""

    @property
    def playback(self) -> Playback:
        """How much of the audio of this connection was played."""
        return self._client.playback

    @property
    def ended(self) -> bool:
        """Whether it no longer accepts events to send."""
        return self._closure is not None or self._owner.closing

    @property
    def closed(self) -> bool:
        """Whether all its resources are released."""
        return self._owner.closed

    async def open(self) -> None:
        """Connect and wait until the server has accepted the initial settings.

        When it raises, nothing is left open.
        """
        await self._owner.start()

    async def close(self, *, deadline: Deadline) -> None:
        """Close it, from any task. Called by a listener that is handling an event, it returns without waiting."""
        await self._owner.close(deadline=deadline)

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Send an event and return when it was written, so that a server that does not read slows down the sender."""
        self._ensure_connected()
        events = self._client.send(event)
        self._process_client_output()
        if events:
            # In a separate task: cancelling the sender must not drop events that listeners are due.
            await asyncio.wait({self._scope.start(self._listeners.notify(events))})
        await self._frame_writer.flush()

    async def update_settings(self, settings: RealtimeSessionModelSettings) -> None:
        """Change the settings and return when the server has accepted them.

        Raises :class:`SettingsRejected`, :class:`AcknowledgementTimeout` or :class:`ConnectionLost`. A listener
        blocks the reader, which could not receive the answer; called there, this returns when the settings were
        written.
        """
        self._ensure_connected()
        update = self._client.update_settings(settings)
        self._process_client_output()
        if asyncio.current_task() is self._reader:
            await self._frame_writer.flush()
        else:
            await self._wait_for_acknowledgement(update)

    def _ensure_connected(self) -> None:
        if self.ended:
            raise NotConnected("the realtime connection has ended: connect again before sending")

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        last = TransportClosed(1000, "closed by the client")
        try:
            async with self._scope as scope:
                transport = await self._open_transport()
                scope.push_callback(lambda: self._close_transport(transport), name="realtime transport")
                self._reader = scope.start(self._read(transport), name="realtime reader")
                scope.start(self._write(transport), name="realtime writer")
                update = self._client.send_initial_settings()
                self._process_client_output()
                await self._wait_for_acknowledgement(update)
                await self._listeners.notify([RealtimeModelConnectionStatusEvent("connected")])
                self._is_open = True
                if self._closure is not None:
                    raise self._make_connection_lost(self._closure)
                yield
                scope.cancel()
        except BaseException as failure:
            last = TransportClosed(
                None, f"the client failed: {failure!r}", failure if isinstance(failure, Exception) else None
            )
            if not self._is_open and self._last_server_error is not None:
                failure.add_note(f"the last error of the server was: {self._last_server_error}")
            if not self._is_open or last.error is None:
                self._mark_ended(last)
                raise
        closure = self._mark_ended(last)
        events = self._client.handle_connection_lost(self._make_connection_lost(closure))
        error = None if closure.is_clean else self._make_connection_lost(closure)
        disconnected = RealtimeModelConnectionStatusEvent("disconnected", error=error, code=closure.code)
        await self._listeners.notify([*events, disconnected, RealtimeModelEndOfStreamEvent()])

    async def _close_transport(self, transport: Transport) -> None:
        self.was_aborted = bool(await transport.close())

    async def _read(self, transport: Transport) -> None:
        """Handle frames until the transport is closed. Neither a bad frame nor a failing listener stops it."""
        client, listeners = self._client, self._listeners
        for number in count(1):
            try:
                frame = await transport.receive()
            except TransportClosed as closed:
                self._mark_ended(closed)
                if self._is_open:
                    await self._owner.close()
                return
            events = client.receive(frame)
            if not self._is_open:
                self._note_server_errors(events)
            resolved = self._process_client_output()
            if listeners.wants_raw_events:
                events = prepend_raw_event(frame, events)
            if events:
                await listeners.notify(events)
            if resolved or number % _MAX_FRAMES_BEFORE_YIELD == 0:
                # The task that waits for an acknowledgement continues before the next frame is handled. And with a
                # long backlog of frames, other tasks of the event loop still get their turn.
                await asyncio.sleep(0)

    def _note_server_errors(self, events: Iterable[RealtimeModelEvent]) -> None:
        """Remember errors that precede a failed connect: the exception of the connect names the last one."""
        for event in events:
            if isinstance(event, RealtimeModelErrorEvent):
                self._last_server_error = describe_error(event.error)

    async def _write(self, transport: Transport) -> None:
        """Write until the transport is closed. The reader notices it too, unless a listener blocks it."""
        try:
            await self._frame_writer.run(transport)
        except TransportClosed as closed:
            assert self._reader is not None  # noqa: S101
            await asyncio.wait({self._reader}, timeout=_READER_DRAIN_TIMEOUT)
            self._mark_ended(closed)
            if self._is_open:
                await self._owner.close()

    def _process_client_output(self) -> bool:
        """Act on the client's state after a call: write frames, set the timer, resolve pending updates.

        Returns True if a pending update was resolved.
        """
        client = self._client
        if client.outgoing:
            self._frame_writer.wake()
        deadline = client.deadline
        if deadline != self._timer_at:
            self._set_timer(deadline)
        return bool(self._pending_updates) and self._resolve_pending_updates()

    def _resolve_pending_updates(self) -> bool:
        resolved = False
        for update, answer in self._pending_updates:
            if update.answered and not answer.done():
                resolved = True
                if update.error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(update.error)
        return resolved

    async def _wait_for_acknowledgement(self, update: PendingSessionUpdate) -> None:
        """Wait until the server accepts or rejects a change of settings."""
        answer: asyncio.Future[None] = self._loop.create_future()
        if self._closure is not None:
            raise self._make_connection_lost(self._closure)
        self._pending_updates.append((update, answer))
        update.awaited = True
        try:
            async with asyncio.timeout(self._acknowledge_timeout):
                await answer
        except TimeoutError as late:
            raise AcknowledgementTimeout("the session settings", self._acknowledge_timeout) from late
        finally:
            update.abandoned = not update.answered
            self._pending_updates.remove((update, answer))

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer_at = self._timer = None
        if self.ended:
            return
        events = self._client.tick()
        self._process_client_output()
        if events:
            self._scope.start(self._listeners.notify(events))

    def _mark_ended(self, closure: TransportClosed) -> TransportClosed:
        """Fail everything that waits for the server. Returns the first closure that was reported."""
        if self._closure is None:
            self._closure = closure
            self._set_timer(None)
            self._frame_writer.fail(self._make_connection_lost(closure))
            for _, answer in self._pending_updates:
                if not answer.done():
                    answer.set_exception(self._make_connection_lost(closure))
        return self._closure

    def _make_connection_lost(self, closure: TransportClosed) -> ConnectionLost:
        message = f"the realtime connection ended ({closure.code}): {closure.reason or 'no reason given'}"
        error = ConnectionLost(message, close_code=closure.code, reason=closure.reason)
        error.__cause__ = closure.error
        return error
