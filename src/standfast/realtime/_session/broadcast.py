"""From one session to any number of iterators: each sees everything, and a slow one costs only itself.

Events are of two classes. Audio, deltas and raw model events flow past: an iterator that does not keep up, in number
or in bytes, loses the oldest of them, counted, and is told. All other events are kept for it until it reads them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Generic, Self, TypeVar
from weakref import WeakSet

T = TypeVar("T")

MAX_DROPPABLE_EVENTS = 2048
"""How many flowing events an iterator may be behind."""
MAX_DROPPABLE_BYTES = 16 * 2**20
"""How many bytes of audio and raw messages these may carry."""
MAX_UNREAD_EVENTS = 10_000
"""How many of the other events are kept while nobody iterates."""


@dataclass(slots=True)
class DroppedEvents:
    """How many events an iterator has lost, and how many bytes of audio and raw messages were in them."""

    count: int = 0
    bytes: int = 0


class SubscriberQueue(Generic[T]):
    """One iterator's unread events, in the order in which they happened. ``gap`` is what it has lost and not heard of.

    A flowing event is its place in a deque and no object more: there are hundreds in a second of speech. Each kept one
    knows how many flowing ones go before it, of all that there ever were; ``gone`` counts those no longer here. Their
    bytes are counted when these may have become too many; until then, what was read meanwhile counts as well.
    """

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_get_size",
        "_is_waiting",
        "_waiter",
        "droppable",
        "dropped",
        "max_droppable",
        "reliable",
        "removed_count",
        "unreported_drops",
    )  # fmt: skip

    def __init__(self, get_size: Callable[[T], int], *, max_droppable: int) -> None:
        self._get_size = get_size
        self.droppable: deque[T] = deque()
        self._bytes = self.removed_count = 0
        self.reliable: deque[tuple[int, T]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_waiting = False
        self.unreported_drops: DroppedEvents | None = None
        self.dropped = DroppedEvents()
        self.max_droppable = max_droppable

    def __len__(self) -> int:
        return len(self.droppable) + len(self.reliable)

    def put_droppable(self, event: T, size: int = 0) -> None:
        self.droppable.append(event)
        self._bytes += size
        if len(self.droppable) > self.max_droppable:
            self._drop_oldest()
        if self._bytes > MAX_DROPPABLE_BYTES:
            self._bytes = sum(map(self._get_size, self.droppable))
            while self._bytes > MAX_DROPPABLE_BYTES and len(self.droppable) > 1:
                self._drop_oldest()
        if self._waiter is not None:
            self.wake()

    def put(self, event: T, *, max_size: int | None) -> None:
        if max_size is not None and len(self.reliable) >= max_size:
            self.reliable.popleft()
            self._count_dropped(0)
        self.reliable.append((self.removed_count + len(self.droppable), event))
        if self._waiter is not None:
            self.wake()

    def discard(self, predicate: Callable[[T], bool]) -> None:
        """Drop the flowing events that nobody wants any more. They do not count as lost."""
        wanted = [not predicate(event) for event in self.droppable]
        self.droppable = deque(compress(self.droppable, wanted))
        before = [0, *accumulate(wanted)]
        self.reliable = deque(
            (self.removed_count + before[max(0, place - self.removed_count)], event) for place, event in self.reliable
        )

    def pop(self) -> T:
        if self.reliable and self.reliable[0][0] <= self.removed_count:
            return self.reliable.popleft()[1]
        self.removed_count += 1
        return self.droppable.popleft()

    def wake(self) -> None:
        waiting, self._waiter = self._waiter, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self) -> None:
        """Until something is there or has ended."""
        if self._is_waiting:
            raise RuntimeError("this iterator is already being waited for; start another one")
        self._waiter, self._is_waiting = asyncio.get_running_loop().create_future(), True
        try:
            await self._waiter
        finally:
            self._waiter, self._is_waiting = None, False

    def _drop_oldest(self) -> None:
        self.removed_count += 1
        size = self._get_size(self.droppable.popleft())
        self._bytes -= size
        self._count_dropped(size)

    def _count_dropped(self, size: int) -> None:
        self.unreported_drops = self.unreported_drops or DroppedEvents()
        for lost in (self.unreported_drops, self.dropped):
            lost.count += 1
            lost.bytes += size


class EventBroadcast(Generic[T]):
    """Where a session puts its events. ``lost`` makes the event that tells an iterator of its gap.

    ``size_of`` tells how many bytes a flowing event carries.
    """

    def __init__(
        self,
        make_dropped_event: Callable[[DroppedEvents], T],
        get_size: Callable[[T], int],
        *,
        max_droppable: int = MAX_DROPPABLE_EVENTS,
    ) -> None:
        self._make_dropped_event, self._get_size = make_dropped_event, get_size
        self._max_droppable = max_droppable
        # What came before anybody iterated, or what the only iterator left behind.
        self._unclaimed: SubscriberQueue[T] | None = SubscriberQueue(get_size, max_droppable=max_droppable)
        self._subscribers: WeakSet[SubscriberQueue[T]] = WeakSet()
        self._targets: tuple[SubscriberQueue[T], ...]
        self.put_droppable: Callable[..., None]
        """Takes an event of the kind that a slow iterator may lose, and how many bytes it carries."""
        self.closed = False
        self._set_targets(self._unclaimed)
        self.error: BaseException | None = None
        self.error_was_raised = False

    def _put_droppable_to_all(self, event: T, size: int = 0) -> None:
        for feed in self._targets:
            feed.put_droppable(event, size)

    def _set_targets(self, *targets: SubscriberQueue[T]) -> None:
        self._targets = targets
        if self.closed:
            self.put_droppable = _ignore_event
        else:
            self.put_droppable = targets[0].put_droppable if len(targets) == 1 else self._put_droppable_to_all

    def put(self, event: T) -> None:
        """An event that every iterator will see, unless all is over."""
        for feed in () if self.closed else self._targets:
            feed.put(event, max_size=MAX_UNREAD_EVENTS if feed is self._unclaimed else None)

    def discard(self, predicate: Callable[[T], bool]) -> None:
        for feed in self._targets:
            feed.discard(predicate)

    def close(self, error: BaseException | None = None) -> None:
        """End every iterator after what it has yet to read, with the error if there is one."""
        if not self.closed:
            self.closed, self.error = True, error
            self._set_targets(*self._targets)
            for feed in self._targets:
                feed.wake()

    @property
    def unread_count(self) -> int:
        """How many events wait, in the iterator that is most behind."""
        return max((len(feed) for feed in self._targets), default=0)

    @property
    def dropped(self) -> DroppedEvents:
        """What the present iterators have lost."""
        dropped = [feed.dropped for feed in self._targets]
        return DroppedEvents(sum(lost.count for lost in dropped), sum(lost.bytes for lost in dropped))

    def subscribe(self) -> "BroadcastIterator[T]":
        feed, self._unclaimed = (
            self._unclaimed or SubscriberQueue(self._get_size, max_droppable=self._max_droppable),
            None,
        )
        self._subscribers.add(feed)
        self._set_targets(*self._subscribers)
        return BroadcastIterator(self, feed)

    def unsubscribe(self, queue: SubscriberQueue[T]) -> None:
        """An iterator is gone. What the last one had not read is there for the next, as with a queue."""
        self._subscribers.discard(queue)
        if not self._subscribers:
            self._unclaimed = queue
        self._set_targets(*(self._subscribers or (queue,)))

    async def get_next(self, queue: SubscriberQueue[T]) -> T:
        while True:
            if queue.unreported_drops is not None:
                gap, queue.unreported_drops = queue.unreported_drops, None
                return self._make_dropped_event(gap)
            if len(queue):
                return queue.pop()
            if self.closed:
                if self.error is not None:
                    self.error_was_raised = True
                    raise self.error
                raise StopAsyncIteration
            await queue.wait()


def _ignore_event(event: object, size: int = 0) -> None:
    """What is told after the end."""


class BroadcastIterator(Generic[T]):
    """One ``async for`` over a session."""

    def __init__(self, broadcast: EventBroadcast[T], queue: SubscriberQueue[T]) -> None:
        self._broadcast, self._queue = broadcast, queue
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        feed = self._queue
        if (
            feed.droppable and not feed.reliable and feed.unreported_drops is None and not self._closed
        ):  # as it is nearly always
            feed.removed_count += 1
            return feed.droppable.popleft()
        if self._closed:
            raise StopAsyncIteration
        return await self._broadcast.get_next(feed)

    async def aclose(self) -> None:
        self._unsubscribe()

    def __del__(self) -> None:
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        if not self._closed:
            self._closed = True
            self._broadcast.unsubscribe(self._queue)
