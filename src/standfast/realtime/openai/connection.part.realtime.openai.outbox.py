"""Frames on their way out: written by one task, in order."""

import asyncio
from collections import deque

from holdfast.realtime.openai.link import Transport


class FrameWriter:
    """Writes what it finds in ``frames``, whoever put it there and when."""

    def __init__(self, frames: deque[bytes]) -> None:
        self._frames = frames
        self._wakeup = asyncio.Event()
        self._written_count = 0
        self._writing = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: Exception | None = None

    def wake(self) -> None:
        """There is something to write."""
        self._wakeup.set()

    async def run(self, transport: Transport) -> None:
        """Write until the link ends, and raise ``LinkClosed`` then."""
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
        """Wait until everything that is here now was written, so that a slow peer holds up who sends."""
        if self._error is not None:
            raise self._error
        if not self._frames and not self._writing:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._written_count + self._writing + len(self._frames), written))
        await written

    def fail(self, error: Exception) -> None:
        """Nothing will be written any more: whoever waits, and whoever will, is told so."""
        self._error = error
        while self._waiters:
            _, written = self._waiters.popleft()
            if not written.done():
                written.set_exception(error)
