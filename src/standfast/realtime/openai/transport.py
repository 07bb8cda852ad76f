"""Transports of frames: the protocol that connections use, and its implementation over a WebSocket."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed


class TransportClosed(Exception):
    """The transport is closed. ``error`` is the exception that closed it, if it is known."""

    def __init__(self, code: int | None, reason: str, error: Exception | None = None) -> None:
        super().__init__(f"the transport was closed ({code}): {reason or 'no reason given'}")
        self.code, self.reason, self.error = code, reason, error

    @property
    def is_clean(self) -> bool:
        """Whether the peer closed it with a close handshake and not because of an error."""
        return self.code in (1000, 1001)


class Transport(Protocol):
    """Carries frames in both directions, in order. At most one task sends and one receives."""

    async def send(self, frame: bytes) -> None:
        """Send a frame, waiting while the peer reads nothing. Raises :class:`TransportClosed`."""

    async def receive(self) -> bytes | str:
        """Return the next frame. Raises :class:`TransportClosed` when no more will come."""

    async def close(self) -> bool | None:
        """Close it within a bounded time, whatever the peer does.

        Returns True if the connection was aborted without a close handshake.
        """


MAX_READ_AHEAD_BYTES = 16 * 2**20
_PING_CHECKS = 4
_ABNORMAL_CLOSURE = 1006


class WebSocketTransport:
    """A transport over a WebSocket of the ``websockets`` library.

    It reads up to ``MAX_READ_AHEAD_BYTES`` ahead of ``receive()``, so that pings are answered while the receiver is
    busy. The server counts as lost when it sends nothing for ``ping_timeout`` seconds after a ping, although
    everything that it sent was read; any frame counts as a sign of life, not only a pong.
    """

    def __init__(
        self,
        socket: "ClientConnection",
        *,
        close_timeout: float,
        ping_interval: float | None = None,
        ping_timeout: float | None = None,
    ) -> None:
        from websockets.exceptions import ConnectionClosed

        self._socket, self._close_timeout = socket, close_timeout
        self._closed_exception = ConnectionClosed
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = self._activity_count = 0
        self._frame_available, self._space_available = asyncio.Event(), asyncio.Event()
        self._space_available.set()
        self._closure: TransportClosed | None = None
        self._tasks = [asyncio.create_task(self._read_ahead(), name="realtime socket")]
        if ping_interval is not None:
            keep_alive = self._keep_alive(ping_interval, ping_timeout)
            self._tasks.append(asyncio.create_task(keep_alive, name="realtime pings"))

    async def send(self, frame: bytes) -> None:
        try:
            await self._socket.send(frame, text=True)
        except self._closed_exception as error:
            raise self._closure or _to_transport_closed(error) from error

    async def receive(self) -> bytes:
        while not self._buffer:
            if self._closure is not None:
                raise self._closure
            self._frame_available.clear()
            await self._frame_available.wait()
        frame = self._buffer.popleft()
        self._buffered_bytes -= len(frame)
        if self._buffered_bytes < MAX_READ_AHEAD_BYTES:
            self._space_available.set()
        return frame

    async def close(self) -> bool:
        """Run the close handshake, and abort the connection if that takes too long or is cancelled."""
        was_open = self._socket.close_code is None
        try:
            async with asyncio.timeout(self._close_timeout):
                await self._socket.close()
        except TimeoutError:
            pass
        finally:
            self._socket.transport.abort()
            for task in self._tasks:
                task.cancel()
        await asyncio.wait(self._tasks)
        await self._socket.wait_closed()
        return was_open and self._socket.close_code == _ABNORMAL_CLOSURE

    async def _read_ahead(self) -> None:
        try:
            while True:
                frame = await self._socket.recv(decode=False)
                self._activity_count += 1
                self._buffer.append(frame)
                self._buffered_bytes += len(frame)
                self._frame_available.set()
                if self._buffered_bytes >= MAX_READ_AHEAD_BYTES:
                    self._space_available.clear()
                    await self._space_available.wait()
                    self._activity_count += 1
        except self._closed_exception as error:
            self._closure = self._closure or _to_transport_closed(error)
        finally:
            self._closure = self._closure or TransportClosed(1000, "closed by the client")
            self._frame_available.set()

    async def _keep_alive(self, interval: float, timeout: float | None) -> None:
        """Ping the server at intervals. A ping that cannot be written because the peer does not read is unanswered."""
        pause = interval
        while True:
            await asyncio.sleep(pause)
            count_before, pong = self._activity_count, asyncio.ensure_future(self._ping())
            try:
                # The timeout is split: while the event loop is blocked, time passes but nothing is read.
                for _ in range(_PING_CHECKS):
                    await asyncio.wait({pong}, timeout=None if timeout is None else timeout / _PING_CHECKS)
            finally:
                pong.cancel()
            if pong.done():
                if not pong.result():
                    return
                pause = interval
            elif self._activity_count == count_before and self._space_available.is_set():
                self._closure = TransportClosed(
                    _ABNORMAL_CLOSURE, f"the server sent nothing for {timeout:g} s after a ping", TimeoutError()
                )
                self._socket.transport.abort()
                return
            else:
                pause = 0.0

    async def _ping(self) -> bool:
        """Return True once the server has answered, False if the connection ended first."""
        try:
            await (await self._socket.ping())
        except self._closed_exception:
            return False
        return True


def _to_transport_closed(error: "ConnectionClosed") -> TransportClosed:
    frame = error.rcvd
    code, reason = (frame.code, frame.reason) if frame is not None else (_ABNORMAL_CLOSURE, str(error))
    return TransportClosed(code, reason, error)
