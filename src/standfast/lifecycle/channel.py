"""Bounded channels between tasks that can be closed.

A channel belongs to one event loop, wakes its waiters in order of arrival and needs no background task.
"""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, Self, TypeVar

from standfast.base.errors import Closed, StandfastError
from standfast.base.validation import validate_integer

T = TypeVar("T")


class ChannelFull(StandfastError):
    """The channel is full, or other senders are waiting. Nothing was sent."""

    code = "channel-full"


class _WaitQueue:
    """Tasks waiting for their turn, in order of arrival.

    A task that was woken acts only when it runs again; until then its turn is counted in ``granted`` and is
    reserved for it. If it is cancelled instead, the turn is free again and the caller of ``wait_turn`` must
    wake the next task. So no turn is ever lost, and no item either: it stays queued until it is taken.
    """

    __slots__ = ("granted", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self.granted = 0

    @property
    def is_idle(self) -> bool:
        return not self.granted and not self.waiters

    def wake_next(self) -> None:
        """Wake the first waiter, unless it was cancelled in the meantime."""
        first, _ = self.waiters.popitem(last=False)
        if not first.done():
            first.set_result(None)
            self.granted += 1

    async def wait_turn(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters[waiter] = None
        try:
            await waiter
        finally:
            self.waiters.pop(waiter, None)
            if waiter.done() and not waiter.cancelled():
                self.granted -= 1


class Channel(Generic[T]):
    """A bounded queue between tasks that can be closed from either side.

    Closing wakes all waiters. Senders get :class:`Closed`; readers still receive the queued items and then reach
    the end. A reader that stops early should close the channel, or senders wait forever for free space.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = validate_integer("capacity", capacity, minimum=1)
        self._items: deque[T] = deque()
        self._senders = _WaitQueue()
        self._readers = _WaitQueue()
        self._closed = False
        self._error: BaseException | None = None

    @property
    def size(self) -> int:
        """The number of queued items."""
        return len(self._items)

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called. Items may still be queued."""
        return self._closed

    async def send(self, item: T) -> None:
        """Append ``item`` to the queue, waiting for free space if necessary.

        Raises :class:`Closed` if the channel is closed before that. A ``send`` that raises or is cancelled has sent
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
        self._wake_senders()  # Senders that arrived during this turn wait even if there is space.

    def send_nowait(self, item: T) -> None:
        """Append ``item`` without waiting, or raise :class:`ChannelFull`. It never overtakes a waiting sender."""
        self._raise_if_closed()
        if len(self._items) >= self.capacity or not self._senders.is_idle:
            raise ChannelFull(f"the channel is full: it holds at most {self.capacity} items")
        self._put(item)

    async def receive(self) -> T:
        """Remove and return the next item, waiting for one if necessary.

        At the end it raises the error given to :meth:`close`, or :class:`Closed`. A ``receive`` that is cancelled has
        removed nothing.
        """
        if await self._wait_for_item():
            return self._take()
        raise self._error or Closed("the channel is closed and empty")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if await self._wait_for_item():
            return self._take()
        raise self._error or StopAsyncIteration

    def close(self, error: BaseException | None = None) -> None:
        """Close the channel. Readers get ``error``, if given, after the last item. Further calls have no effect."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake_readers()
            self._wake_senders()

    def discard_items(self) -> None:
        """Remove all queued items."""
        self._items.clear()
        self._wake_senders()

    async def _wait_for_item(self) -> bool:
        """Wait until the caller may take an item. Return False at the end of the channel."""
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
