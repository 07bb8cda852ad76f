"""A realtime model that speaks the wire protocol, over whatever carries frames."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from holdfast.lifecycle import Deadline
from holdfast.realtime.errors import AlreadyConnected, NotConnected
from holdfast.realtime.model import RealtimeModel, RealtimeModelConfig, RealtimeModelListener
from holdfast.realtime.model_events import RealtimeModelConnectionStatusEvent
from holdfast.realtime.model_inputs import (
    RealtimeModelSendEvent,
    RealtimeModelSendInterrupt,
    RealtimeModelSendSessionUpdate,
)
from holdfast.realtime.openai.audience import Audience
from holdfast.realtime.openai.client import interrupted
from holdfast.realtime.openai.connection import Connection
from holdfast.realtime.openai.link import Link
from holdfast.realtime.openai.recording import RecordedLink, Recording
from holdfast.realtime.playback import Playback


class WireModel(RealtimeModel):
    """Connects, sends and closes; a subclass says how to get a link.

    ``connect`` returns when the server has taken the initial settings, and ``send_event`` with new settings when it
    has taken those. Listeners hear ``disconnected`` however the connection ended; then ``connect`` may be called again.
    """

    def __init__(
        self, *, acknowledge_within: float = 10.0, close_within: float = 1.0, recording: Recording | None = None
    ) -> None:
        self._acknowledge_within, self._close_within = acknowledge_within, close_within
        self._recording = recording
        self._audience = Audience()
        self._connection: Connection | None = None
        self._ending: list[Connection] = []
        self._playback: Playback | None = None

    @abstractmethod
    async def dial(self, options: RealtimeModelConfig) -> Link:
        """Open a link. When it raises or is cancelled, nothing is left open."""

    def add_listener(self, listener: RealtimeModelListener) -> None:
        self._audience.add(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        self._audience.remove(listener)

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect. When it raises, nothing is left open."""
        if self._live is not None:
            raise AlreadyConnected("this realtime model is connected: close it first, or use another one")
        self._ending = [old for old in (*self._ending, self._connection) if old is not None and not old.closed]
        self._connection = made = Connection(
            lambda: self._dial(options),
            options,
            self._audience,
            acknowledge_within=self._acknowledge_within,
            before=self._playback,
        )
        self._playback = made.playback
        try:
            await self._audience.tell([RealtimeModelConnectionStatusEvent("connecting")])
            await made.open()
        except BaseException:
            if self._connection is made:
                self._connection = None
            raise

    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        if isinstance(event, RealtimeModelSendInterrupt) and event.playback_only and self._live is None:
            await self._stop_playing(event.response_id)
            return
        connection = self._connected()
        if isinstance(event, RealtimeModelSendSessionUpdate):
            await connection.update(event.session_settings)
        else:
            await connection.send(event)

    async def send_event_if(self, event: RealtimeModelSendEvent, send_if: Callable[[], bool]) -> bool:
        """Send if ``send_if()`` holds. Nothing happens between the question and the sending."""
        self._connected()
        if not send_if():
            return False
        await self.send_event(event)
        return True

    def telling(self) -> bool:
        return self._audience.told_here

    async def close(self) -> None:
        """End the connection, within the time that was set whatever the server does. Harmless if there is none.

        Cancelling it cuts the connection at once.
        """
        deadline = Deadline.after(self._close_within * 2)
        current = self._connection
        connections = [*self._ending] if current is None else [*self._ending, current]
        try:
            for connection in connections:
                await connection.close(deadline=deadline)
                self.cut_off = connection.cut_off
        except asyncio.CancelledError:
            now = Deadline.after(0.0)
            await asyncio.gather(
                *(connection.close(deadline=now) for connection in connections), return_exceptions=True
            )
            raise
        finally:
            self._ending = [old for old in self._ending if not old.closed]
            if current is not None and current.closed and self._connection is current:
                self._connection = None

    async def _dial(self, options: RealtimeModelConfig) -> Link:
        if self._recording is None:
            return await self.dial(options)
        self._recording.start()
        try:
            return RecordedLink(await self.dial(options), self._recording)
        except BaseException:
            self._recording.close(None, "no connection came about")
            raise

    async def _stop_playing(self, response_id: str | None) -> None:
        """Cut what still plays of a connection that is gone."""
        if self._playback is not None:
            cuts = self._playback.cut(asyncio.get_running_loop().time(), response_id=response_id, untold=True)
            await self._audience.tell([interrupted(cut) for cut in cuts])

    @property
    def _live(self) -> Connection | None:
        """The connection, as long as anything can be sent over it."""
        return None if self._connection is None or self._connection.ended else self._connection

    def _connected(self) -> Connection:
        if self._live is None:
            raise NotConnected("this realtime model is not connected: call connect() first")
        return self._live
