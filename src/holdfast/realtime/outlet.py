"""From one session to any number of iterators: each sees everything, and a slow one costs only itself.

Events are of two classes. Audio, deltas and raw model events flow past: an iterator that does not keep up, in number
or in bytes, loses the oldest of them, counted, and is told. All other events are kept for it until it reads them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar
from weakref import WeakSet

T = TypeVar("T")

FLOWING = 2048
"""How many flowing events an iterator may be behind."""
FLOWING_BYTES = 16 * 2**20
"""How many bytes of audio and raw messages these may carry."""
KEPT_UNREAD = 10_000
"""How many of the other events are kept while nobody has ever iterated."""


@dataclass(slots=True)
class Lost:
    """How many events an iterator has lost, and how many bytes of audio and raw messages were in them."""

    count: int = 0
    bytes: int = 0


class Feed(Generic[T]):
    """One iterator's unread events, in the order in which they happened."""

    __slots__ = ("__weakref__", "_busy", "_waiting", "bytes", "dropped", "flowing", "gap", "kept", "limit")

    def __init__(self, *, limit: int) -> None:
        self.flowing: deque[tuple[int, T, int]] = deque()
        self.bytes = 0
        self.kept: deque[tuple[int, T]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._busy = False
        self.gap, self.dropped = Lost(), Lost()
        self.limit = limit

    def __len__(self) -> int:
        return len(self.flowing) + len(self.kept)

    def put_flowing(self, seq: int, event: T, size: int) -> None:
        flowing = self.flowing
        self.bytes += size
        while len(flowing) >= self.limit or (self.bytes > FLOWING_BYTES and flowing):
            gone = flowing.popleft()[2]
            self.bytes -= gone
            self._lose(gone)
        flowing.append((seq, event, size))
        if self._waiting is not None:
            self.wake()

    def put(self, seq: int, event: T, *, most: int | None) -> None:
        if most is not None and len(self.kept) >= most:
            self.kept.popleft()
            self._lose(0)
        self.kept.append((seq, event))
        if self._waiting is not None:
            self.wake()

    def forget(self, unwanted: Callable[[T], bool]) -> None:
        """Drop the flowing events that nobody wants any more. They do not count as lost."""
        self.flowing = deque(entry for entry in self.flowing if not unwanted(entry[1]))
        self.bytes = sum(size for _, _, size in self.flowing)

    def take(self) -> T:
        flowing, kept = self.flowing, self.kept
        if not kept or (flowing and flowing[0][0] < kept[0][0]):
            _, event, size = flowing.popleft()
            self.bytes -= size
            return event
        return kept.popleft()[1]

    def take_gap(self) -> "Lost":
        """What was lost since the last call."""
        gap, self.gap = self.gap, Lost()
        return gap

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

    def _lose(self, size: int) -> None:
        for lost in (self.gap, self.dropped):
            lost.count += 1
            lost.bytes += size


class Outlet(Generic[T]):
    """Where a session puts its events. ``lost`` makes the event that tells an iterator of its gap."""

    def __init__(self, lost: Callable[[Lost], T], *, flowing: int = FLOWING) -> None:
        self._lost = lost
        self._limit = flowing
        self._seq = 0
        # What came before anybody iterated, or what the only iterator left behind.
        self._unclaimed: Feed[T] | None = Feed(limit=flowing)
        self._never_read = True
        self._feeds: WeakSet[Feed[T]] = WeakSet()
        self._targets: tuple[Feed[T], ...] = (self._unclaimed,)
        self.closed = False
        self.error: BaseException | None = None
        self.error_was_read = False

    def flow(self, event: T, size: int = 0) -> None:
        """An event of the kind that a slow iterator may lose; ``size`` is how many bytes it carries."""
        seq = self._seq = self._seq + 1
        for feed in self._targets:
            feed.put_flowing(seq, event, size)

    def put(self, event: T) -> None:
        """An event that every iterator will see."""
        self._seq += 1
        for feed in self._targets:
            feed.put(self._seq, event, most=KEPT_UNREAD if self._never_read else None)

    def forget(self, unwanted: Callable[[T], bool]) -> None:
        for feed in self._targets:
            feed.forget(unwanted)

    def close(self, error: BaseException | None = None) -> None:
        """End every iterator after what it has yet to read, with the error if there is one."""
        if not self.closed:
            self.closed, self.error = True, error
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
        feed, self._unclaimed = self._unclaimed or Feed(limit=self._limit), None
        self._never_read = False
        self._feeds.add(feed)
        self._targets = tuple(self._feeds)
        return Iteration(self, feed)

    def leave(self, feed: Feed[T]) -> None:
        """An iterator is gone. What the last one had not read is there for the next, as with a queue."""
        self._feeds.discard(feed)
        if not self._feeds:
            self._unclaimed = feed
        self._targets = tuple(self._feeds) or (feed,)

    async def next(self, feed: Feed[T]) -> T:
        while True:
            if feed.gap.count:
                return self._lost(feed.take_gap())
            if len(feed):
                return feed.take()
            if self.closed:
                if self.error is not None:
                    self.error_was_read = True
                    raise self.error
                raise StopAsyncIteration
            await feed.wait()


class Iteration(Generic[T]):
    """One ``async for`` over a session."""

    def __init__(self, outlet: Outlet[T], feed: Feed[T]) -> None:
        self._outlet, self._feed = outlet, feed
        self._left = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._left:
            raise StopAsyncIteration
        feed = self._feed
        if feed.gap.count or not (feed.flowing or feed.kept):
            return await self._outlet.next(feed)
        return feed.take()

    async def aclose(self) -> None:
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._outlet.leave(self._feed)
