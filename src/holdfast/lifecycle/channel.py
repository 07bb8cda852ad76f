"""Bounded channels that can be closed.

A ``Channel`` carries each item to one reader; a ``Broadcast`` carries each item to all of them. Both belong
to one event loop, wake waiters first come, first served, and need no task of their own.
"""

import asyncio
from collections import OrderedDict, deque
from enum import Enum
from types import TracebackType
from typing import Generic, Self, TypeVar
from weakref import WeakSet

from holdfast.base.errors import Closed, HoldfastError, InvalidInput

T = TypeVar("T")


class Full(HoldfastError):
    """There is no room now, or others are waiting for it. Nothing was sent."""

    code = "channel-full"


class Overflow(Enum):
    """What a lane does with an item for which it has no room."""

    DROP_OLDEST = "drop oldest"
    BACKPRESSURE = "backpressure"


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


class _Inbox(Generic[T]):
    """The receiving side that a channel and a lane have in common."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInput(f"a channel needs room for one item at least, not {capacity!r}")
        self.capacity = capacity
        self._items: deque[T] = deque()
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
        return item

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._call_readers()

    def _end(self, error: BaseException | None) -> None:
        self._ended, self._error = True, error
        self._call_readers()

    def _call_readers(self) -> None:
        while self._readers.waiting and (self._ended or self._readers.called < len(self._items)):
            self._readers.call()


class Channel(_Inbox[T]):
    """A bounded queue between tasks that can be closed from either side.

    Closing wakes everyone. Senders get ``Closed``; readers still receive what is queued and then come to
    the end. A reader that leaves early should close the channel, or the senders wait for room for ever.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._senders = _Line()

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

    def close(self, error: BaseException | None = None) -> None:
        """End the channel. With an error, readers get that after the last item. The first call counts."""
        if not self._ended:
            self._end(error)
            self._call_senders()

    def _take(self) -> T:
        item = super()._take()
        self._call_senders()
        return item

    def _call_senders(self) -> None:
        while self._senders.waiting and (self._ended or self._senders.called + len(self._items) < self.capacity):
            self._senders.call()

    def _refuse_if_closed(self) -> None:
        if self._ended:
            raise Closed("the channel is closed") from self._error


class Lane(_Inbox[T]):
    """One reader's view of a broadcast: an iterator with a buffer of its own.

    Close it, or leave its ``with`` block, to stop listening; what is buffered is then dropped. A lane that
    nobody refers to any more closes itself, so that breaking out of a loop holds nobody back.
    """

    _listening = False

    def __init__(self, broadcast: "Broadcast[T]", *, capacity: int, overflow: Overflow) -> None:
        super().__init__(capacity)
        self._broadcast = broadcast
        self.overflow = overflow
        self.dropped = 0
        """How many items this lane has dropped because its reader was slow."""

    def close(self) -> None:
        if self._listening:
            self._broadcast._forget(self)
        self._items.clear()
        self._end(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._listening:
            self.close()

    @property
    def _holds_back(self) -> bool:
        return self.overflow is Overflow.BACKPRESSURE and len(self._items) >= self.capacity

    def _put(self, item: T) -> None:
        if len(self._items) >= self.capacity:
            self._items.popleft()
            self.dropped += 1
        super()._put(item)

    def _take(self) -> T:
        held_back = self._holds_back
        item = super()._take()
        if held_back:
            self._broadcast._found_room()
        return item


class Broadcast(Generic[T]):
    """Sends every item to every lane. A lane sees what is sent after it was subscribed.

    An item arrives in all lanes or in none, and in the same order in all of them, however many send. The
    slowest lane with backpressure sets the pace; lanes that drop do not count.
    """

    def __init__(self) -> None:
        self._lanes: WeakSet[Lane[T]] = WeakSet()
        self._full = 0  # Lanes with backpressure that have no room.
        self._senders = _Line()
        self._ended = False
        self._error: BaseException | None = None

    @property
    def closed(self) -> bool:
        return self._ended

    def subscribe(self, *, capacity: int, overflow: Overflow = Overflow.DROP_OLDEST) -> Lane[T]:
        """A new lane. After the end, one that is at its end already."""
        lane = Lane(self, capacity=capacity, overflow=overflow)
        if self._ended:
            lane._end(self._error)
        else:
            lane._listening = True
            self._lanes.add(lane)
        return lane

    async def send(self, item: T) -> None:
        """Send ``item`` as soon as every lane with backpressure has room.

        Raises ``Closed`` if the broadcast is closed or becomes so. A cancelled ``send`` reached no lane.
        """
        if not self._ended and (self._full or not self._senders.idle):
            try:
                await self._senders.turn()
            except BaseException:
                self._call_senders()
                raise
        self._publish(item)

    def send_nowait(self, item: T) -> None:
        """Send ``item`` now, or raise ``Full`` if a lane holds it back or others are waiting to send."""
        if not self._ended and (self._full or not self._senders.idle):
            raise Full(f"the broadcast is held back by {self._full} of its lanes")
        self._publish(item)

    def close(self, error: BaseException | None = None) -> None:
        """End every lane after what it has buffered, with the error if any. The first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            for lane in self._lanes:
                lane._listening = False
                lane._end(error)
            self._lanes.clear()
            self._call_senders()

    def _publish(self, item: T) -> None:
        if self._ended:
            raise Closed("the broadcast is closed") from self._error
        for lane in self._lanes:
            lane._put(item)
            self._full += lane._holds_back
        self._call_senders()

    def _found_room(self) -> None:
        self._full -= 1
        self._call_senders()

    def _forget(self, lane: Lane[T]) -> None:
        lane._listening = False
        self._lanes.discard(lane)
        self._full -= lane._holds_back
        self._call_senders()

    def _call_senders(self) -> None:
        # One at a time: what the first one sends may fill a lane.
        while self._senders.waiting and (self._ended or not (self._full or self._senders.called)):
            self._senders.call()
