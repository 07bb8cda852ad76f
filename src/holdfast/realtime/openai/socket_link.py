"""Frames over a WebSocket."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from holdfast.realtime.openai.link import LinkClosed

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed

MOST_AHEAD = 16 * 2**20
_LOOKS = 4
_NO_GOODBYE = 1006


class SocketLink:
    """Reads ahead of whoever receives, up to ``MOST_AHEAD`` bytes, so that pings are answered also by a busy one.

    A server is gone when it was asked for a sign of life and gave none for ``ping_timeout`` seconds, although
    everything that it sent was read. Whatever it sends is such a sign.
    """

    def __init__(
        self,
        socket: "ClientConnection",
        *,
        close_within: float,
        ping_interval: float | None = None,
        ping_timeout: float | None = None,
    ) -> None:
        from websockets.exceptions import ConnectionClosed

        self._socket, self._close_within = socket, close_within
        self._closed_error = ConnectionClosed
        self._ahead: deque[bytes] = deque()
        self._size = self._signs = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._end: LinkClosed | None = None
        self._tasks = [asyncio.create_task(self._read_ahead(), name="realtime socket")]
        if ping_interval is not None:
            asking = self._keep_alive(ping_interval, ping_timeout)
            self._tasks.append(asyncio.create_task(asking, name="realtime pings"))

    async def send(self, frame: bytes) -> None:
        try:
            await self._socket.send(frame, text=True)
        except self._closed_error as error:
            raise self._end or _closed(error) from error

    async def receive(self) -> bytes:
        while not self._ahead:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        frame = self._ahead.popleft()
        self._size -= len(frame)
        if self._size < MOST_AHEAD:
            self._room.set()
        return frame

    async def close(self) -> bool:
        """Say goodbye, and cut the connection if that takes too long or is interrupted."""
        was_up = self._socket.close_code is None
        try:
            async with asyncio.timeout(self._close_within):
                await self._socket.close()
        except TimeoutError:
            pass
        finally:
            self._socket.transport.abort()
            for task in self._tasks:
                task.cancel()
        await asyncio.wait(self._tasks)
        await self._socket.wait_closed()
        return was_up and self._socket.close_code == _NO_GOODBYE

    async def _read_ahead(self) -> None:
        try:
            while True:
                frame = await self._socket.recv(decode=False)
                self._signs += 1
                self._ahead.append(frame)
                self._size += len(frame)
                self._news.set()
                if self._size >= MOST_AHEAD:
                    self._room.clear()
                    await self._room.wait()
                    self._signs += 1
        except self._closed_error as error:
            self._end = self._end or _closed(error)
        finally:
            self._end = self._end or LinkClosed(1000, "closed here")
            self._news.set()

    async def _keep_alive(self, interval: float, patience: float | None) -> None:
        """Ask now and then. A question that cannot even be written, because nobody takes it, has no answer either."""
        pause = interval
        while True:
            await asyncio.sleep(pause)
            signs, answer = self._signs, asyncio.ensure_future(self._asked())
            try:
                # In several looks: a loop that is held up sees time pass, but neither asks nor reads meanwhile.
                for _ in range(_LOOKS):
                    await asyncio.wait({answer}, timeout=None if patience is None else patience / _LOOKS)
            finally:
                answer.cancel()
            if answer.done():
                if not answer.result():
                    return
                pause = interval
            elif self._signs == signs and self._room.is_set():
                self._end = LinkClosed(
                    _NO_GOODBYE, f"the server gave no sign of life for {patience:g} s", TimeoutError()
                )
                self._socket.transport.abort()
                return
            else:
                pause = 0.0

    async def _asked(self) -> bool:
        """Whether the server has answered; if not, the connection has ended."""
        try:
            await (await self._socket.ping())
        except self._closed_error:
            return False
        return True


def _closed(error: "ConnectionClosed") -> LinkClosed:
    frame = error.rcvd
    code, reason = (frame.code, frame.reason) if frame is not None else (_NO_GOODBYE, str(error))
    return LinkClosed(code, reason, error)
