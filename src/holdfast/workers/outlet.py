"""Where an execution's messages wait for their reader: ordered, bounded in bytes by pausing the source."""

import asyncio
import codecs
import collections
from collections.abc import Callable
from typing import Literal

from holdfast.workers.wire.messages import Message, OutputMessage

Stream = Literal["stdout", "stderr"]


class Outlet:
    """Messages of one execution. ``put`` never waits; ``full`` tells the source to pause.

    ``get`` returns None after the last one.
    """

    held = 0
    ended = False
    _waiter: asyncio.Future[None] | None = None
    _discarding = False
    _late = False

    def __init__(self, *, limit: int, emptied: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self._emptied, self._loop = emptied, loop
        self._messages: collections.deque[Message] = collections.deque()

    @property
    def full(self) -> bool:
        return self.held > self.limit

    def put(self, message: Message, *, last: bool = False) -> None:
        if self.ended:
            return
        self.ended = last
        if not self._discarding:
            if isinstance(message, OutputMessage):
                self.held += len(message.data)
            self._messages.append(message)
        if self._waiter is not None:
            self._wake()

    def discard(self) -> None:
        """Nobody reads any more: forget what waits and what comes."""
        self._discarding = True
        self._messages.clear()
        self.held = 0
        self._emptied()

    def take(self) -> Message | None:
        """The next message if one waits."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        if isinstance(message, OutputMessage):
            was_full = self.full
            self.held -= len(message.data)
            if was_full and not self.full:
                self._emptied()
        return message

    def expire(self) -> None:
        """The reader's time is up: ``get`` raises TimeoutError unless something waits."""
        self._late = True
        self._wake()

    async def get(self) -> Message | None:
        while not self._messages:
            if self.ended:
                return None
            if self._late:
                raise TimeoutError
            if self._waiter is None:
                self._waiter = self._loop.create_future()
            await self._waiter
        return self.take()

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None


class Clip:
    """Decodes one stream and keeps its head and its tail within a byte limit, counting what is left out."""

    def __init__(self, limit: int | None) -> None:
        self._head_left = None if limit is None else limit - limit // 2
        self._tail_limit = 0 if limit is None else limit // 2
        self._tail = bytearray()
        self.dropped = 0
        self.total = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text to pass on now."""
        self.total += len(data)
        if self._head_left is None:
            return self._decoder.decode(data)
        head = data[: self._head_left]
        self._head_left -= len(head)
        if len(head) < len(data):
            self._tail += data[len(head) :]
            excess = len(self._tail) - self._tail_limit
            # Cut rarely: each cut moves the whole tail.
            if excess > self._tail_limit + 65536:
                del self._tail[:excess]
                self.dropped += excess
        return self._decoder.decode(head)

    def finish(self) -> tuple[str, int, str]:
        """What the decoder still holds, the bytes left out after it, and the tail."""
        if not self._tail:
            return self._decoder.decode(b"", final=True), 0, ""
        excess = max(0, len(self._tail) - self._tail_limit)
        self.dropped += excess
        if not self.dropped:
            return self._decoder.decode(bytes(self._tail), final=True), 0, ""
        rest = self._decoder.decode(b"", final=True)
        return rest, self.dropped, bytes(self._tail[excess:]).decode("utf-8", "replace")
