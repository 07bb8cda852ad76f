"""Bounded channels that can be closed.

A channel belongs to one event loop, wakes waiters first come, first served, and needs no task of its own.
"""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, Self, TypeVar

from holdfast.base.errors import Closed, HoldfastError, InvalidInput

T = TypeVar("T")


class Full(HoldfastError):
    """There is no room now, or others are waiting for it. Nothing was sent."""

    code = "channel-full"


class _Line:
    """Tasks waiting for their turn, in the order in which they came.

    A called task does its work only when it runs again; until then its turn is counted in ``called`` and
    nobody may use it up. If it is cancelled instead, its turn is free again and the caller of ``turn`` must
    call the next. So a turn is never lost, and neither is an item: it stays where it is until it is taken.
    """

    __slots__ = ("called", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self.called = 0

    @property
    def idle(self) -> bool:
        return not self.called and not self.waiting

    def call(self) -> None:
        """Call the first in line, if it has not been cancelled meanwhile."""
        first, _ = self.waiting.popitem(last=False)
        if not first.done():
            first.set_result(None)
            self.called += 1

    async def turn(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[mine] = None
        try:
            await mine
        finally:
            self.waiting.pop(mine, None)
            if mine.done() and not mine.cancelled():
                self.called -= 1


class Channel(Generic[T]):
    """A bounded queue between tasks that can be closed from either side.

    Closing wakes everyone. Senders get ``Closed``; readers still receive what is queued and then come to
    the end. A reader that leaves early should close the channel, or the senders wait for room for ever.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInput(f"a channel needs room for one item at least, not {capacity!r}")
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._senders = _Line()
        self._readers = _Line()
        self._ended = False
        self._error: BaseException | None = None

    @property
    def queued(self) -> int:
        """How many items are waiting to be received."""
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come. Items may still be waiting."""
        return self._ended

    async def send(self, item: T) -> None:
        """Put ``item`` at the end of the queue, after waiting for room if need be.

        Raises ``Closed`` if the channel is closed or becomes so. A cancelled or refused ``send`` has sent
        nothing.
        """
        if not self._ended and (len(self._items) >= self.capacity or not self._senders.idle):
            try:
                await self._senders.turn()
            except BaseException:
                self._call_senders()
                raise
        self._refuse_if_closed()
        self._put(item)
        self._call_senders()  # Those who came while this turn was out wait even if there is room.

    def send_nowait(self, item: T) -> None:
        """Put ``item`` at the end of the queue now, or raise ``Full``. Never overtakes a waiting sender."""
        self._refuse_if_closed()
        if len(self._items) >= self.capacity or not self._senders.idle:
            raise Full(f"the channel has no room beyond its {self.capacity} items")
        self._put(item)

    async def receive(self) -> T:
        """The next item. At the end it raises the error given to ``close``, or else ``Closed``.

        A cancelled ``receive`` has taken nothing.
        """
        if await self._arrived():
            return self._take()
        raise self._error or Closed("the channel is closed and drained")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if await self._arrived():
            return self._take()
        raise self._error or StopAsyncIteration

    def close(self, error: BaseException | None = None) -> None:
        """End the channel. With an error, readers get that after the last item. The first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._call_readers()
            self._call_senders()

    async def _arrived(self) -> bool:
        """Wait until an item is the caller's to take; false at the end."""
        if not self._items and self._ended:
            return False
        if not self._items or not self._readers.idle:
            try:
                await self._readers.turn()
            except BaseException:
                self._call_readers()
                raise
        return bool(self._items)

    def _take(self) -> T:
        item = self._items.popleft()
        self._call_readers()
        self._call_senders()
        return item

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._call_readers()

    def _call_readers(self) -> None:
        while self._readers.waiting and (self._ended or self._readers.called < len(self._items)):
            self._readers.call()

    def _call_senders(self) -> None:
        while self._senders.waiting and (self._ended or self._senders.called + len(self._items) < self.capacity):
            self._senders.call()

    def _refuse_if_closed(self) -> None:
        if self._ended:
            raise Closed("the channel is closed") from self._error
