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

FLOWING = 2048
"""How many flowing events an iterator may be behind."""
FLOWING_BYTES = 16 * 2**20
"""How many bytes of audio and raw messages these may carry."""
KEPT_UNREAD = 10_000
"""How many of the other events are kept while nobody iterates."""


@dataclass(slots=True)
class Lost:
    """How many events an iterator has lost, and how many bytes of audio and raw messages were in them."""

    count: int = 0
    bytes: int = 0


class Feed(Generic[T]):
    """One iterator's unread events, in the order in which they happened. ``gap`` is what it has lost and not heard of.

    A flowing event is its place in a deque and no object more: there are hundreds in a second of speech. Each kept one
    knows how many flowing ones go before it, of all that there ever were; ``gone`` counts those no longer here. Their
    bytes are counted when these may have become too many; until then, what was read meanwhile counts as well.
    """

    __slots__ = (
        "__weakref__", "_busy", "_bytes", "_size_of", "_waiting", "dropped", "flowing", "gap", "gone", "kept", "limit",
    )  # fmt: skip

    def __init__(self, size_of: Callable[[T], int], *, limit: int) -> None:
        self._size_of = size_of
        self.flowing: deque[T] = deque()
        self._bytes = self.gone = 0
        self.kept: deque[tuple[int, T]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._busy = False
        self.gap: Lost | None = None
        self.dropped = Lost()
        self.limit = limit

    def __len__(self) -> int:
        return len(self.flowing) + len(self.kept)

    def put_flowing(self, event: T, size: int = 0) -> None:
        self.flowing.append(event)
        self._bytes += size
        if len(self.flowing) > self.limit:
            self._lose_oldest()
        if self._bytes > FLOWING_BYTES:
            self._bytes = sum(map(self._size_of, self.flowing))
            while self._bytes > FLOWING_BYTES and len(self.flowing) > 1:
                self._lose_oldest()
        if self._waiting is not None:
            self.wake()

    def put(self, event: T, *, most: int | None) -> None:
        if most is not None and len(self.kept) >= most:
            self.kept.popleft()
            self._lose(0)
        self.kept.append((self.gone + len(self.flowing), event))
        if self._waiting is not None:
            self.wake()

    def forget(self, unwanted: Callable[[T], bool]) -> None:
        """Drop the flowing events that nobody wants any more. They do not count as lost."""
        wanted = [not unwanted(event) for event in self.flowing]
        self.flowing = deque(compress(self.flowing, wanted))
        before = [0, *accumulate(wanted)]
        self.kept = deque((self.gone + before[max(0, place - self.gone)], event) for place, event in self.kept)

    def take(self) -> T:
        if self.kept and self.kept[0][0] <= self.gone:
            return self.kept.popleft()[1]
        self.gone += 1
        return self.flowing.popleft()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self) -> None:
        """Until something is there or has ended."""
        if self._busy:
            raise RuntimeError("this iterator is already being waited for; start another one")
        self._waiting, self._busy = asyncio.get_running_loop().create_future(), True
        try:
            await self._waiting
        finally:
            self._waiting, self._busy = None, False

    def _lose_oldest(self) -> None:
        self.gone += 1
        size = self._size_of(self.flowing.popleft())
        self._bytes -= size
        self._lose(size)

    def _lose(self, size: int) -> None:
        self.gap = self.gap or Lost()
        for lost in (self.gap, self.dropped):
            lost.count += 1
            lost.bytes += size


class Outlet(Generic[T]):
    """Where a session puts its events. ``lost`` makes the event that tells an iterator of its gap.

    ``size_of`` tells how many bytes a flowing event carries.
    """

    def __init__(self, lost: Callable[[Lost], T], size_of: Callable[[T], int], *, flowing: int = FLOWING) -> None:
        self._lost, self._size_of = lost, size_of
        self._limit = flowing
        # What came before anybody iterated, or what the only iterator left behind.
        self._unclaimed: Feed[T] | None = Feed(size_of, limit=flowing)
        self._feeds: WeakSet[Feed[T]] = WeakSet()
        self._targets: tuple[Feed[T], ...]
        self.flow: Callable[..., None]
        """Takes an event of the kind that a slow iterator may lose, and how many bytes it carries."""
        self.closed = False
        self._aim(self._unclaimed)
        self.error: BaseException | None = None
        self.error_was_read = False

    def _flow_to_all(self, event: T, size: int = 0) -> None:
        for feed in self._targets:
            feed.put_flowing(event, size)

    def _aim(self, *targets: Feed[T]) -> None:
        self._targets = targets
        if self.closed:
            self.flow = _nowhere
        else:
            self.flow = targets[0].put_flowing if len(targets) == 1 else self._flow_to_all

    def put(self, event: T) -> None:
        """An event that every iterator will see, unless all is over."""
        for feed in () if self.closed else self._targets:
            feed.put(event, most=KEPT_UNREAD if feed is self._unclaimed else None)

    def forget(self, unwanted: Callable[[T], bool]) -> None:
        for feed in self._targets:
            feed.forget(unwanted)

    def close(self, error: BaseException | None = None) -> None:
        """End every iterator after what it has yet to read, with the error if there is one."""
        if not self.closed:
            self.closed, self.error = True, error
            self._aim(*self._targets)
            for feed in self._targets:
                feed.wake()

    @property
    def unread(self) -> int:
        """How many events wait, in the iterator that is most behind."""
        return max((len(feed) for feed in self._targets), default=0)

    @property
    def lost(self) -> Lost:
        """What the present iterators have lost."""
        dropped = [feed.dropped for feed in self._targets]
        return Lost(sum(lost.count for lost in dropped), sum(lost.bytes for lost in dropped))

    def iterate(self) -> "Iteration[T]":
        feed, self._unclaimed = self._unclaimed or Feed(self._size_of, limit=self._limit), None
        self._feeds.add(feed)
        self._aim(*self._feeds)
        return Iteration(self, feed)

    def leave(self, feed: Feed[T]) -> None:
        """An iterator is gone. What the last one had not read is there for the next, as with a queue."""
        self._feeds.discard(feed)
        if not self._feeds:
            self._unclaimed = feed
        self._aim(*(self._feeds or (feed,)))

    async def next(self, feed: Feed[T]) -> T:
        while True:
            if feed.gap is not None:
                gap, feed.gap = feed.gap, None
                return self._lost(gap)
            if len(feed):
                return feed.take()
            if self.closed:
                if self.error is not None:
                    self.error_was_read = True
                    raise self.error
                raise StopAsyncIteration
            await feed.wait()


def _nowhere(event: object, size: int = 0) -> None:
    """What is told after the end."""


class Iteration(Generic[T]):
    """One ``async for`` over a session."""

    def __init__(self, outlet: Outlet[T], feed: Feed[T]) -> None:
        self._outlet, self._feed = outlet, feed
        self._left = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        feed = self._feed
        if feed.flowing and not feed.kept and feed.gap is None and not self._left:  # as it is nearly always
            feed.gone += 1
            return feed.flowing.popleft()
        if self._left:
            raise StopAsyncIteration
        return await self._outlet.next(feed)

    async def aclose(self) -> None:
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._outlet.leave(self._feed)
