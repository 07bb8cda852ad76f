"""Frames on their way out: written by one task, in order."""

import asyncio
from collections import deque

from holdfast.realtime.openai.link import Link


class Outbox:
    """Writes what it finds in ``frames``, whoever put it there and when."""

    def __init__(self, frames: deque[bytes]) -> None:
        self._frames = frames
        self._stirred = asyncio.Event()
        self._written = 0
        self._writing = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: Exception | None = None

    def stir(self) -> None:
        """There is something to write."""
        self._stirred.set()

    async def run(self, link: Link) -> None:
        """Write until the link ends, and raise ``LinkClosed`` then."""
        while True:
            while self._frames:
                self._writing = True
                try:
                    await link.send(self._frames.popleft())
                finally:
                    self._writing = False
                self._written += 1
                while self._waiting and self._waiting[0][0] <= self._written:
                    _, written = self._waiting.popleft()
                    if not written.done():
                        written.set_result(None)
            self._stirred.clear()
            await self._stirred.wait()

    async def flush(self) -> None:
        """Wait until everything that is here now was written, so that a slow peer holds up who sends."""
        if self._error is not None:
            raise self._error
        if not self._frames and not self._writing:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._written + self._writing + len(self._frames), written))
        await written

    def fail(self, error: Exception) -> None:
        """Nothing will be written any more: whoever waits, and whoever will, is told so."""
        self._error = error
        while self._waiting:
            _, written = self._waiting.popleft()
            if not written.done():
                written.set_exception(error)
