"""The open event streams of a server.

One timer looks after all of them: it sends comments on silent ones, notices clients that went away, and ends streams
whose client has no access any more. A stream that lasts for a moment costs no task and no timer of its own.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Send

from standfast.server.problems import TooManyStreams

if TYPE_CHECKING:
    from standfast.server.exchange import Exchange

MAX_TICK = 0.25
"""Seconds between two looks at all streams."""
RETRY = b"retry: 1000\n\n"
"""Tells browsers to reconnect after a second to a server that went away."""
_STOPPING = b": the server is stopping, reconnect\n" + RETRY
_NO_ACCESS = b": the access to this stream has ended\n\n"
_ALIVE = b": alive\n\n"


class OpenStream:
    """One event stream while it is open."""

    def __init__(self, exchange: "Exchange", receive: Receive, send: Send, running: asyncio.Timeout) -> None:
        self._exchange, self._receive, self._send, self._running = exchange, receive, send, running
        self._loop = asyncio.get_running_loop()
        self._send_lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._last_sent = self._loop.time()
        self._check_at = self._last_sent + exchange.access_interval
        self._is_watched = self._is_ended = False
        self.last_part = b""
        """What is sent when the stream is ended from outside."""

    async def send_part(self, part: bytes) -> None:
        async with self._send_lock:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        self._last_sent = self._loop.time()

    def end(self, last_part: bytes = b"") -> None:
        """End the stream from outside: its iteration is cancelled."""
        if not self._is_ended:
            self._is_ended, self.last_part = True, last_part
            self._running.reschedule(self._loop.time())

    def look_after(self, now: float, heartbeat: float) -> None:
        """Start what is due: watching the connection, a comment, or a check of the access."""
        if not self._is_watched:
            self._is_watched = True
            self._start(self._watch_connection())
        if now >= self._last_sent + heartbeat:
            self._last_sent = now
            self._start(self.send_part(_ALIVE))
        if now >= self._check_at:
            self._check_at = now + self._exchange.access_interval
            self._start(self._check_access())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self._loop.create_task(work))

    async def _watch_connection(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end()

    async def _check_access(self) -> None:
        if not await self._exchange.keeps_access():
            self.end(_NO_ACCESS)

    async def close(self) -> None:
        """End what :meth:`look_after` has started."""
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


class StreamRegister:
    """The open streams of one process, at most ``limit`` for each owner."""

    def __init__(self, *, heartbeat: float, limit: int) -> None:
        self._heartbeat, self._limit = heartbeat, limit
        self._streams: set[OpenStream] = set()
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.is_stopping = False

    def check_limit(self, owner: str) -> None:
        """Raise :class:`TooManyStreams` if the owner may not open another stream."""
        if self._counts[owner] >= self._limit:
            raise TooManyStreams(f"{owner!r} has {self._limit} open event streams: close one of them first")

    @contextmanager
    def register(self, stream: OpenStream, owner: str) -> Iterator[None]:
        """Look after a stream while the block runs."""
        self._streams.add(stream)
        self._counts[owner] += 1
        if self.is_stopping:
            stream.end(_STOPPING)
        if self._timer is None:
            self._start_timer()
        try:
            yield
        finally:
            self._streams.discard(stream)
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
            if not self._streams and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(MAX_TICK, self._heartbeat / 4), self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        for stream in self._streams:
            stream.look_after(now, self._heartbeat)
        self._start_timer()

    def stop(self) -> None:
        """End all streams with a hint to reconnect, and those that are opened from now on."""
        self.is_stopping = True
        for stream in self._streams:
            stream.end(_STOPPING)
