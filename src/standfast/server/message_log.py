"""The numbered messages of a call or a cell, kept for readers that join late or reconnect."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec

_MAX_BYTES = 8_000_000
"""About a minute of audio, or very much text."""


class LoggedMessage(msgspec.Struct, frozen=True):
    """An encoded message with its number."""

    number: int
    kind: str
    data: bytes

    @property
    def is_audio(self) -> bool:
        return self.kind == "audio"


class MessageLog:
    """Messages in order. The oldest audio is dropped first when there is too much."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._messages: deque[LoggedMessage] = deque()
        self._max_bytes, self._bytes, self._count = max_bytes, 0, 0
        self._changed = asyncio.Event()
        self.closed = False

    @property
    def size(self) -> int:
        """The bytes of the messages that are kept."""
        return self._bytes

    def append(self, content: dict[str, Any]) -> None:
        """Add a message; its ``number`` is added to it."""
        self._count += 1
        data = msgspec.json.encode(content | {"number": self._count})
        self._messages.append(LoggedMessage(self._count, content["type"], data))
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self._drop_oldest()
        self._wake()

    def _drop_oldest(self) -> None:
        """Drop half of the audio, or half of everything if that is not enough."""
        for droppable in (lambda message: message.is_audio, lambda message: True):
            kept: deque[LoggedMessage] = deque()
            excess = self._bytes - self._max_bytes // 2
            for message in self._messages:
                if excess > 0 and droppable(message):
                    excess -= len(message.data)
                    self._bytes -= len(message.data)
                else:
                    kept.append(message)
            self._messages = kept
            if self._bytes <= self._max_bytes:
                return

    def close(self) -> None:
        """End all iterations once they have yielded everything."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(
        self, after: int = 0, *, with_audio: bool = True, with_drops: bool = False
    ) -> AsyncIterator[LoggedMessage]:
        """Yield the kept messages with a number above ``after``, then new ones, until the log is closed.

        With ``with_drops``, a message ``dropped`` stands for those that are not kept any more, with their ``count``.
        """
        while True:
            changed = self._changed
            for message in [message for message in self._messages if message.number > after]:
                if with_drops and message.number > after + 1:
                    yield make_drop_message(after, message.number - 1)
                after = message.number
                if with_audio or not message.is_audio:
                    yield message
            if changed is self._changed:
                if self.closed:
                    return
                await changed.wait()


def make_drop_message(after: int, last: int) -> LoggedMessage:
    """Return the message for those with the numbers above ``after`` up to ``last``."""
    content = {"type": "dropped", "count": last - after, "number": last}
    return LoggedMessage(last, "dropped", msgspec.json.encode(content))
