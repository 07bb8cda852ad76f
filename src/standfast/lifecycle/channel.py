"""Bounded channels that can be closed.

A channel belongs to one event loop, wakes waiters first come, first served, and needs no task of its own.
"""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, Self, TypeVar

from standfast.base.errors import Closed, InvalidInput, StandfastError

T = TypeVar("T")


class ChannelFull(StandfastError):
    """There is no room now, or others are waiting for it. Nothing was sent."""

    code = "channel-full"


class _WaitQueue:
    """Tasks waiting for their turn, in the order in which they came.

    A called task does its work only when it runs again; until then its turn is counted in ``called`` and
    nobody may use it up. If it is cancelled instead, its turn is free again and the caller of ``turn`` must
    call the next. So a turn is never lost, and neither is an item: it stays where it is until it is taken.
    """

    __slots__ = ("granted", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self.granted = 0

    @property
    def is_idle(self) -> bool:
        return not self.granted and not self.waiters

    def wake_next(self) -> None:
        """Call the first in line, if it has not been cancelled meanwhile."""
        first, _ = self.waiters.popitem(last=False)
        if not first.done():
            first.set_result(None)
            self.granted += 1

    async def wait_turn(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters[mine] = None
        try:
            await mine
        finally:
            self.waiters.pop(mine, None)
            if mine.done() and not mine.cancelled():
                self.granted -= 1


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
        self._senders = _WaitQueue()
        self._readers = _WaitQueue()
        self._closed = False
        self._error: BaseException | None = None

    @property
    def size(self) -> int:
        """How many items are waiting to be received."""
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come. Items may still be waiting."""
        return self._closed

    async def send(self, item: T) -> None:
        """Put ``item`` at the end of the queue, after waiting for room if need be.

        Raises ``Closed`` if the channel is closed or becomes so. A cancelled or refused ``send`` has sent
        nothing.
        """
        if not self._closed and (len(self._items) >= self.capacity or not self._senders.is_idle):
            try:
                await self._senders.wait_turn()
            except BaseException:
                self._wake_senders()
                raise
        self._raise_if_closed()
        self._put(item)
        self._wake_senders()  # Those who came while this turn was out wait even if there is room.

    def send_nowait(self, item: T) -> None:
        """Put ``item`` at the end of the queue now, or raise ``Full``. Never overtakes a waiting sender."""
        self._raise_if_closed()
        if len(self._items) >= self.capacity or not self._senders.is_idle:
            raise ChannelFull(f"the channel has no room beyond its {self.capacity} items")
        self._put(item)

    async def receive(self) -> T:
        """The next item. At the end it raises the error given to ``close``, or else ``Closed``.

        A cancelled ``receive`` has taken nothing.
        """
        if await self._wait_for_item():
            return self._take()
        raise self._error or Closed("the channel is closed and drained")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if await self._wait_for_item():
            return self._take()
        raise self._error or StopAsyncIteration

    def close(self, error: BaseException | None = None) -> None:
        """End the channel. With an error, readers get that after the last item. The first call counts."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake_readers()
            self._wake_senders()

    async def _wait_for_item(self) -> bool:
        """Wait until an item is the caller's to take; false at the end."""
        if not self._items and self._closed:
            return False
        if not self._items or not self._readers.is_idle:
            try:
                await self._readers.wait_turn()
            except BaseException:
                self._wake_readers()
                raise
        return bool(self._items)

    def _take(self) -> T:
        item = self._items.popleft()
        self._wake_readers()
        self._wake_senders()
        return item

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._wake_readers()

    def _wake_readers(self) -> None:
        while self._readers.waiters and (self._closed or self._readers.granted < len(self._items)):
            self._readers.wake_next()

    def _wake_senders(self) -> None:
        while self._senders.waiters and (self._closed or self._senders.granted + len(self._items) < self.capacity):
            self._senders.wake_next()

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise Closed("the channel is closed") from self._error
