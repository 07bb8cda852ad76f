"""The messages of a run while one runtime drives it: live events and notices of journal entries, numbered from 1.

The numbers show other processes what they have missed. The messages since the last complete response are kept, so that
a reader that joins in the middle of a response gets its beginning.
"""

from collections import deque
from typing import Any, TypeAlias

import msgspec

from standfast.runtime.types import Event

EntryMark: TypeAlias = tuple[int, int]

MAX_KEPT_BYTES = 2**20
_EVENT_OVERHEAD = 200


class StreamMessage(msgspec.Struct, frozen=True):
    """A live event, or, without ``event``, the notice that the journal has grown.

    ``mark`` is that of the last entry that the driver had written by then, ``(token, 0)`` if there was none, and
    ``base`` the number of entries that it had read before. ``settled``: the response so far is in the journal now.
    """

    number: int
    mark: EntryMark
    base: int = 0
    event: Event | None = None
    settled: bool = False
    stopped: bool = False
    at: float = 0.0
    """When this process received it, on the clock of its event loop."""


class LiveStream:
    """The messages of one driver, which is identified by its fencing token. ``source`` is its runtime if elsewhere."""

    def __init__(self, token: int, *, source: str | None = None, next_number: int = 1) -> None:
        self.token, self.source, self.next_number = token, source, next_number
        self.mark: EntryMark = (token, 0)
        self.base = 0
        self.kept: deque[StreamMessage] = deque()
        self.missed = 0
        """How many live events of the current response are no longer kept."""
        self._size = 0

    def add(self, message: StreamMessage, *, keep_settled: bool) -> None:
        """Add the next message. With ``keep_settled``, earlier responses are kept too, up to a limit."""
        self.next_number, self.mark, self.base = message.number + 1, message.mark, message.base
        if message.settled and not keep_settled:
            self.kept.clear()
            self._size = 0
        else:
            self.kept.append(message)
            self._size += estimate_size(message)
        if message.settled:
            self.missed = 0
        while self._size > MAX_KEPT_BYTES:
            dropped = self.kept.popleft()
            self._size -= estimate_size(dropped)
            self.missed += dropped.event is not None

    def list_from(self, number: int) -> list[StreamMessage]:
        return [message for message in self.kept if message.number >= number]

    def list_current(self) -> list[StreamMessage]:
        """Return the messages since the last complete response."""
        current: deque[StreamMessage] = deque()
        for message in reversed(self.kept):
            if message.settled:
                break
            current.appendleft(message)
        return list(current)


def estimate_size(message: StreamMessage) -> int:
    """Return the approximate size in bytes: of its text, not of the objects within it, which repeat the same text."""
    if message.event is None:
        return _EVENT_OVERHEAD
    return _EVENT_OVERHEAD + sum(len(value) for value in message.event.data.values() if isinstance(value, str))


def make_live_event(run_id: str, token: int, number: int, kind: str, data: dict[str, Any], at: float) -> Event:
    return Event(None, run_id, kind, data, at, live=True, position=f"{token}.{number}")


def parse_position(position: str | None) -> EntryMark:
    """Return the token and number of a live event's position; numbers below all others for ``None``."""
    if position is None:
        return (0, 0)
    token, _, number = position.partition(".")
    if not (token.isascii() and token.isdigit() and number.isascii() and number.isdigit()):
        raise ValueError(position)
    return int(token), int(number)
