"""Queues of messages between the router and its readers, and the limit on the output of an execution."""

import asyncio
import codecs
import collections
import sys
from collections.abc import Callable
from typing import Literal

from standfast.workers._host.message_limits import measure_weight
from standfast.workers.wire.messages import DisplayMessage, InputMessage, Message, OutputMessage, encode

StreamName = Literal["stdout", "stderr"]
_MESSAGE_OVERHEAD = 250
_BYTES_PER_WEIGHT = 16
_REPEATED_TYPES = (OutputMessage, DisplayMessage, InputMessage)
_DROPPABLE_TYPES = (OutputMessage, DisplayMessage)
# How much a queue keeps beyond its limit while its source cannot be paused.
_MAX_EXCESS = 16 << 20


def estimate_size(message: Message) -> int:
    """Return the approximate size of a message in memory."""
    if type(message) is OutputMessage:
        return sys.getsizeof(message.data) + _MESSAGE_OVERHEAD
    payload = encode(message)
    return len(payload) + _BYTES_PER_WEIGHT * measure_weight(payload, limit=sys.maxsize) + _MESSAGE_OVERHEAD


class MessageQueue:
    """The messages of one execution, in order. ``put`` never waits; ``is_full`` tells the source to pause.

    A source that cannot pause, because the code is being stopped or a request waits for its reply, may exceed the
    limit by 16 MB. Output and displays beyond that are ``dropped``. ``get`` returns None after the last message.
    """

    buffered_bytes = 0
    last_size = 0
    """The estimated size of the message that was returned last."""
    dropped = 0
    is_ended = False
    _pausable = True
    _waiter: asyncio.Future[None] | None = None
    _discarding = False
    _expired = False

    def __init__(self, *, limit: int, on_drained: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self._on_drained, self._loop = on_drained, loop
        self._messages: collections.deque[tuple[int, Message]] = collections.deque()

    @property
    def is_full(self) -> bool:
        return self.buffered_bytes > self.limit and self._pausable and not self._expired

    def put(self, message: Message, *, last: bool = False) -> None:
        if self.is_ended or self._expired:
            return
        self.is_ended = last
        if not self._discarding:
            # The other types come only once per execution.
            size = 0 if last or type(message) not in _REPEATED_TYPES else estimate_size(message)
            if size + self.buffered_bytes > self.limit + _MAX_EXCESS and type(message) in _DROPPABLE_TYPES:
                self.dropped += 1
                return
            self.buffered_bytes += size
            self._messages.append((size, message))
        if self._waiter is not None:
            self._wake()

    def discard(self) -> None:
        """Drop all messages, now and from now on, because nothing reads them."""
        self._discarding = True
        self._messages.clear()
        self.buffered_bytes = 0
        self._on_drained()

    def get_nowait(self) -> Message | None:
        """Return the next message without waiting, or None."""
        if not self._messages:
            return None
        size, message = self._messages.popleft()
        self.last_size = size
        if size:
            was_full = self.is_full
            self.buffered_bytes -= size
            if was_full and not self.is_full:
                self._on_drained()
        return message

    def expire(self) -> None:
        """Make ``get`` raise TimeoutError after the messages that are queued now."""
        self._expired = True
        self._wake()
        self._on_drained()

    def remove_limit(self) -> None:
        """Accept messages while code is being stopped: its last one must not wait for a slow reader."""
        self._pausable = False
        self._on_drained()

    async def get(self) -> Message | None:
        while not self._messages:
            if self._expired:
                raise TimeoutError
            if self.is_ended:
                return None
            if self._waiter is None:
                self._waiter = self._loop.create_future()
            await self._waiter
        return self.get_nowait()

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None


class BoundedQueue:
    """The newest messages that belong to no call, bounded in number and bytes. Dropped ones are counted."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.dropped = 0
        self._buffered_bytes = 0
        self._messages: collections.deque[tuple[int, Message]] = collections.deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        size = estimate_size(message)
        self._messages.append((size, message))
        self._buffered_bytes += size
        while len(self._messages) > self.max_messages or (
            self._buffered_bytes > self.max_bytes and len(self._messages) > 1
        ):
            self._buffered_bytes -= self._messages.popleft()[0]
            self.dropped += 1

    def pop_oldest(self, kind: type[Message] | None) -> Message | None:
        """Remove and return the oldest message, of this type if given, or None."""
        for index, (size, message) in enumerate(self._messages):
            if kind is None or isinstance(message, kind):
                del self._messages[index]
                self._buffered_bytes -= size
                return message
        return None


class OutputLimiter:
    """Decodes one output stream and keeps only its head and its tail within a byte limit."""

    def __init__(self, limit: int | None) -> None:
        self._head_remaining = None if limit is None else limit - limit // 2
        self._tail_limit = 0 if limit is None else limit // 2
        self._tail = bytearray()
        self.dropped = 0
        self.total = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Return the text of the head in ``data``. What exceeds the head is kept for the tail."""
        self.total += len(data)
        if self._head_remaining is None:
            return self._decoder.decode(data)
        head = data[: self._head_remaining]
        self._head_remaining -= len(head)
        if len(head) < len(data):
            self._tail += data[len(head) :]
            excess = len(self._tail) - self._tail_limit
            # Cut rarely, since each cut moves the whole tail.
            if excess > self._tail_limit + 65536:
                del self._tail[:excess]
                self.dropped += excess
        return self._decoder.decode(head)

    def finish(self) -> tuple[str, int, str]:
        """Return the rest of the head, the number of bytes dropped after it, and the tail."""
        if not self._tail:
            return self._decoder.decode(b"", final=True), 0, ""
        excess = max(0, len(self._tail) - self._tail_limit)
        self.dropped += excess
        if not self.dropped:
            return self._decoder.decode(bytes(self._tail), final=True), 0, ""
        rest = self._decoder.decode(b"", final=True)
        return rest, self.dropped, bytes(self._tail[excess:]).decode("utf-8", "replace")
