"""The broadcast of events from a session to any number of iterators. A slow iterator delays no other.

There are two classes of events. Audio, deltas and raw model events are droppable: an iterator that is too far behind,
in number or in bytes, loses the oldest ones and gets an event with their count. All other events are reliable: they are
kept until the iterator reads them.
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
"""How many droppable events an iterator may be behind."""
MAX_DROPPABLE_BYTES = 16 * 2**20
"""How many bytes of audio and raw messages these events may carry."""
MAX_UNREAD_EVENTS = 10_000
"""How many reliable events are kept while there is no iterator."""


@dataclass(slots=True)
class DroppedEvents:
    """The number of events that an iterator has lost, and the bytes of audio and raw messages in them."""

    count: int = 0
    bytes: int = 0


class SubscriberQueue(Generic[T]):
    """The unread events of one iterator, in order.

    Droppable events are stored without a wrapper, because there are hundreds per second of speech. Each reliable event
    is stored with the number of droppable events ever put before it; ``removed_count`` is the number of droppable
    events that have left the queue. The byte count includes events that were read, until it exceeds the limit and is
    computed again.
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
        """Remove the droppable events that match. They do not count as lost."""
        kept = [not predicate(event) for event in self.droppable]
        self.droppable = deque(compress(self.droppable, kept))
        before = [0, *accumulate(kept)]
        self.reliable = deque(
            (self.removed_count + before[max(0, position - self.removed_count)], event)
            for position, event in self.reliable
        )

    def pop(self) -> T:
        if self.reliable and self.reliable[0][0] <= self.removed_count:
            return self.reliable.popleft()[1]
        self.removed_count += 1
        return self.droppable.popleft()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for an event or the end of the broadcast."""
        if self._is_waiting:
            raise RuntimeError(
                "another task is already waiting for this iterator; create a second one with aiter(session)"
            )
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
    """Distributes the events of a session.

    ``make_dropped_event`` builds the event that reports lost events; ``get_size`` returns the bytes that a droppable
    event carries.
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
        # The events before the first iterator, or the unread events of the last one.
        self._unclaimed: SubscriberQueue[T] | None = SubscriberQueue(get_size, max_droppable=max_droppable)
        self._subscribers: WeakSet[SubscriberQueue[T]] = WeakSet()
        self._targets: tuple[SubscriberQueue[T], ...]
        self.put_droppable: Callable[..., None]
        """Emit an event that a slow iterator may lose, with the number of bytes that it carries."""
        self.closed = False
        self._set_targets(self._unclaimed)
        self.error: BaseException | None = None
        self.error_was_raised = False

    def _put_droppable_to_all(self, event: T, size: int = 0) -> None:
        for queue in self._targets:
            queue.put_droppable(event, size)

    def _set_targets(self, *targets: SubscriberQueue[T]) -> None:
        self._targets = targets
        if self.closed:
            self.put_droppable = _ignore_event
        else:
            self.put_droppable = targets[0].put_droppable if len(targets) == 1 else self._put_droppable_to_all

    def put(self, event: T) -> None:
        """Emit an event that every iterator will see. Ignored after the end."""
        for queue in () if self.closed else self._targets:
            queue.put(event, max_size=MAX_UNREAD_EVENTS if queue is self._unclaimed else None)

    def discard(self, predicate: Callable[[T], bool]) -> None:
        for queue in self._targets:
            queue.discard(predicate)

    def close(self, error: BaseException | None = None) -> None:
        """End every iterator after its unread events, with the error if there is one."""
        if not self.closed:
            self.closed, self.error = True, error
            self._set_targets(*self._targets)
            for queue in self._targets:
                queue.wake()

    @property
    def unread_count(self) -> int:
        """The number of unread events of the slowest iterator."""
        return max((len(queue) for queue in self._targets), default=0)

    @property
    def dropped(self) -> DroppedEvents:
        """The events that the current iterators have lost."""
        dropped = [queue.dropped for queue in self._targets]
        return DroppedEvents(sum(lost.count for lost in dropped), sum(lost.bytes for lost in dropped))

    def subscribe(self) -> "BroadcastIterator[T]":
        queue = self._unclaimed or SubscriberQueue(self._get_size, max_droppable=self._max_droppable)
        self._unclaimed = None
        self._subscribers.add(queue)
        self._set_targets(*self._subscribers)
        return BroadcastIterator(self, queue)

    def unsubscribe(self, queue: SubscriberQueue[T]) -> None:
        """Remove an iterator. The next one gets the unread events of the last one."""
        self._subscribers.discard(queue)
        if not self._subscribers:
            self._unclaimed = queue
        self._set_targets(*(self._subscribers or (queue,)))

    async def get_next(self, queue: SubscriberQueue[T]) -> T:
        while True:
            if queue.unreported_drops is not None:
                dropped, queue.unreported_drops = queue.unreported_drops, None
                return self._make_dropped_event(dropped)
            if len(queue):
                return queue.pop()
            if self.closed:
                if self.error is not None:
                    self.error_was_raised = True
                    raise self.error
                raise StopAsyncIteration
            await queue.wait()


def _ignore_event(event: object, size: int = 0) -> None:
    """Ignore an event that is emitted after the end."""


class BroadcastIterator(Generic[T]):
    """One ``async for`` over a session."""

    def __init__(self, broadcast: EventBroadcast[T], queue: SubscriberQueue[T]) -> None:
        self._broadcast, self._queue = broadcast, queue
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        queue = self._queue
        # The fast path, taken by nearly every event.
        if queue.droppable and not queue.reliable and queue.unreported_drops is None and not self._closed:
            queue.removed_count += 1
            return queue.droppable.popleft()
        if self._closed:
            raise StopAsyncIteration
        return await self._broadcast.get_next(queue)

    async def aclose(self) -> None:
        self._unsubscribe()

    def __del__(self) -> None:
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        if not self._closed:
            self._closed = True
            self._broadcast.unsubscribe(self._queue)
