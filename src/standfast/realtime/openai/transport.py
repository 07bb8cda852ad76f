"""Frames over a WebSocket."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed


class TransportClosed(Exception):
    """The other side is gone. ``error`` is what happened to the link, if that is known."""

    def __init__(self, code: int | None, reason: str, error: Exception | None = None) -> None:
        super().__init__(f"the link was closed ({code}): {reason or 'no reason given'}")
        self.code, self.reason, self.error = code, reason, error

    @property
    def is_clean(self) -> bool:
        """Whether it said goodbye, and not because something went wrong."""
        return self.code in (1000, 1001)


class Transport(Protocol):
    """Frames both ways, in order. One task sends and one receives."""

    async def send(self, frame: bytes) -> None:
        """Hand over a frame, waiting while the other side takes none. Raises ``LinkClosed``."""

    async def receive(self) -> bytes | str:
        """The next frame. Raises ``LinkClosed`` when there will be none."""

    async def close(self) -> bool | None:
        """End the link, soon and whatever the other side does. True if that took no leave: it was cut."""


MAX_READ_AHEAD_BYTES = 16 * 2**20
_PING_CHECKS = 4
_ABNORMAL_CLOSURE = 1006


class WebSocketTransport:
    """Reads ahead of whoever receives, up to ``MOST_AHEAD`` bytes, so that pings are answered also by a busy one.

    A server is gone when it was asked for a sign of life and gave none for ``ping_timeout`` seconds, although
    everything that it sent was read. Whatever it sends is such a sign.
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
            asking = self._keep_alive(ping_interval, ping_timeout)
            self._tasks.append(asyncio.create_task(asking, name="realtime pings"))

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
        """Say goodbye, and cut the connection if that takes too long or is interrupted."""
        was_up = self._socket.close_code is None
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
        return was_up and self._socket.close_code == _ABNORMAL_CLOSURE

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
            self._closure = self._closure or TransportClosed(1000, "closed here")
            self._frame_available.set()

    async def _keep_alive(self, interval: float, timeout: float | None) -> None:
        """Ask now and then. A question that cannot even be written, because nobody takes it, has no answer either."""
        pause = interval
        while True:
            await asyncio.sleep(pause)
            signs, answer = self._activity_count, asyncio.ensure_future(self._ping())
            try:
                # In several looks: a loop that is held up sees time pass, but neither asks nor reads meanwhile.
                for _ in range(_PING_CHECKS):
                    await asyncio.wait({answer}, timeout=None if timeout is None else timeout / _PING_CHECKS)
            finally:
                answer.cancel()
            if answer.done():
                if not answer.result():
                    return
                pause = interval
            elif self._activity_count == signs and self._space_available.is_set():
                self._closure = TransportClosed(
                    _ABNORMAL_CLOSURE, f"the server gave no sign of life for {timeout:g} s", TimeoutError()
                )
                self._socket.transport.abort()
                return
            else:
                pause = 0.0

    async def _ping(self) -> bool:
        """Whether the server has answered; if not, the connection has ended."""
        try:
            await (await self._socket.ping())
        except self._closed_exception:
            return False
        return True


def _to_transport_closed(error: "ConnectionClosed") -> TransportClosed:
    frame = error.rcvd
    code, reason = (frame.code, frame.reason) if frame is not None else (_ABNORMAL_CLOSURE, str(error))
    return TransportClosed(code, reason, error)
