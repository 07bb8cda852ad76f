"""Who in this process follows which run: told at once of what was written, and of what a model is saying."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.models.raw import as_item
from holdfast.runs.events import RawResponsesStreamEvent, StreamEvent
from holdfast.runtime.contract import Event

_MOST_LIVE = 4096
"""Live events that a slow reader may fall behind; after that it misses some. The run never waits for a reader."""


Mark: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Written:
    """Something new is in the journal; ``upto`` is the mark of its last entry, where that is known."""

    upto: Mark | None = None


class Follower:
    """One reader: live events in order, and among them :class:`Written` wherever something came into the journal.

    One that only waits for the run to ``rest`` is told of that alone.
    """

    def __init__(self, *, until_rest: bool) -> None:
        self.until_rest = until_rest
        self.waiting: deque[Event | Written] = deque(maxlen=_MOST_LIVE)
        self._stirred = asyncio.Event()

    def put(self, news: Event | Written) -> None:
        if isinstance(news, Event) or not self.waiting or self.waiting[-1] != news:
            self.waiting.append(news)
        self._stirred.set()

    async def stirred(self, *, within: float) -> None:
        """Wait until there is something, or for so long."""
        if not self.waiting:
            self._stirred.clear()
            try:
                async with asyncio.timeout(within):
                    await self._stirred.wait()
            except TimeoutError:
                return


class Feeds:
    """The followers of all runs."""

    def __init__(self) -> None:
        self._followers: dict[str, set[Follower]] = {}

    @contextmanager
    def following(self, run_id: str, *, until_rest: bool = False) -> Iterator[Follower]:
        follower = Follower(until_rest=until_rest)
        self._followers.setdefault(run_id, set()).add(follower)
        try:
            yield follower
        finally:
            self._followers[run_id].discard(follower)
            if not self._followers[run_id]:
                del self._followers[run_id]

    def listened_to(self, run_id: str) -> bool:
        """Whether anybody wants to hear what a model is saying."""
        return any(not follower.until_rest for follower in self._followers.get(run_id, ()))

    def written(self, run_id: str, *, upto: Mark | None = None, rests: bool = False) -> None:
        """The run's journal has something new; ``rests`` when it ended or waits."""
        self._put(run_id, Written(upto), rests=rests)

    def live(self, run_id: str, kind: str, data: dict[str, Any]) -> None:
        self._put(run_id, Event(None, run_id, kind, data, time.time(), live=True))

    async def passed_on(self, run_id: str, event: StreamEvent) -> None:
        """What a model is saying, for whoever listens."""
        if isinstance(event, RawResponsesStreamEvent):
            self.live(run_id, "model.delta", as_item(event.data))

    def _put(self, run_id: str, news: Event | Written, *, rests: bool = False) -> None:
        for follower in self._followers.get(run_id, ()):
            if rests or not follower.until_rest:
                follower.put(news)
