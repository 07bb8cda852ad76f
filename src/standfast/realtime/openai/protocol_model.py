"""The base of realtime models that speak OpenAI's realtime protocol, over any transport of frames."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from standfast.lifecycle import Deadline
from standfast.realtime._session.playback import Playback
from standfast.realtime.errors import AlreadyConnected, NotConnected
from standfast.realtime.model import (
    RealtimeModel,
    RealtimeModelConfig,
    RealtimeModelListener,
    RealtimeModelSendEvent,
    RealtimeModelSendInterrupt,
    RealtimeModelSendSessionUpdate,
)
from standfast.realtime.model_events import RealtimeModelConnectionStatusEvent
from standfast.realtime.openai._protocol.client import make_interrupted_event
from standfast.realtime.openai.connection import ListenerRegistry, ModelConnection
from standfast.realtime.openai.recording import Recording, RecordingTransport
from standfast.realtime.openai.transport import Transport


class RealtimeProtocolModel(RealtimeModel):
    """Connects, sends and closes; subclasses implement :meth:`open_transport`.

    ``connect`` returns when the server has accepted the initial settings, and ``send_event`` with new settings when
    it has accepted those. However a connection ends, listeners get the status ``disconnected``; after that,
    ``connect`` may be called again.
    """

    def __init__(
        self, *, acknowledge_timeout: float = 10.0, close_timeout: float = 1.0, recording: Recording | None = None
    ) -> None:
        self._acknowledge_timeout, self._close_timeout = acknowledge_timeout, close_timeout
        self._recording = recording
        self._listeners = ListenerRegistry()
        self._connection: ModelConnection | None = None
        self._closing_connections: list[ModelConnection] = []
        self._playback: Playback | None = None

    @abstractmethod
    async def open_transport(self, options: RealtimeModelConfig) -> Transport:
        """Open a transport. When it raises or is cancelled, nothing may be left open."""

    def add_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners.add(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners.remove(listener)

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect. When it raises, nothing is left open."""
        if self._active_connection is not None:
            raise AlreadyConnected("the realtime model is already connected: close it first, or use another one")
        self._closing_connections = [
            old for old in (*self._closing_connections, self._connection) if old is not None and not old.closed
        ]
        self._connection = connection = ModelConnection(
            lambda: self._open_recorded_transport(options),
            options,
            self._listeners,
            acknowledge_timeout=self._acknowledge_timeout,
            previous_playback=self._playback,
        )
        self._playback = connection.playback
        try:
            await self._listeners.notify([RealtimeModelConnectionStatusEvent("connecting")])
            await connection.open()
        except BaseException:
            if self._connection is connection:
                self._connection = None
            raise

    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        if isinstance(event, RealtimeModelSendInterrupt) and event.playback_only and self._active_connection is None:
            await self._stop_playback(event.response_id)
            return
        connection = self._require_connection()
        if isinstance(event, RealtimeModelSendSessionUpdate):
            await connection.update_settings(event.session_settings)
        else:
            await connection.send(event)

    async def send_event_if(self, event: RealtimeModelSendEvent, send_if: Callable[[], bool]) -> bool:
        """Send the event if ``send_if()`` is true; no other task runs between the check and the sending."""
        self._require_connection()
        if not send_if():
            return False
        await self.send_event(event)
        return True

    def is_listener_task(self) -> bool:
        return self._listeners.is_current_task_notifying

    async def close(self) -> None:
        """Close the connection within twice the close timeout, whatever the server does. Does nothing without one.

        Cancelling this call aborts the connection at once.
        """
        deadline = Deadline.after(self._close_timeout * 2)
        current = self._connection
        connections = [*self._closing_connections] if current is None else [*self._closing_connections, current]
        try:
            for connection in connections:
                await connection.close(deadline=deadline)
                self.was_aborted = connection.was_aborted
        except asyncio.CancelledError:
            now = Deadline.after(0.0)
            await asyncio.gather(
                *(connection.close(deadline=now) for connection in connections), return_exceptions=True
            )
            raise
        finally:
            self._closing_connections = [old for old in self._closing_connections if not old.closed]
            if current is not None and current.closed and self._connection is current:
                self._connection = None

    async def _open_recorded_transport(self, options: RealtimeModelConfig) -> Transport:
        if self._recording is None:
            return await self.open_transport(options)
        self._recording.start()
        try:
            return RecordingTransport(await self.open_transport(options), self._recording)
        except BaseException:
            self._recording.close(None, "connecting failed")
            raise

    async def _stop_playback(self, response_id: str | None) -> None:
        """Stop the audio of a former connection that still plays."""
        if self._playback is not None:
            truncations = self._playback.stop(
                asyncio.get_running_loop().time(), response_id=response_id, include_previous=True
            )
            await self._listeners.notify([make_interrupted_event(truncation) for truncation in truncations])

    @property
    def _active_connection(self) -> ModelConnection | None:
        """The connection, unless it has ended."""
        return None if self._connection is None or self._connection.ended else self._connection

    def _require_connection(self) -> ModelConnection:
        if self._active_connection is None:
            raise NotConnected("the realtime model is not connected: call connect() first")
        return self._active_connection
