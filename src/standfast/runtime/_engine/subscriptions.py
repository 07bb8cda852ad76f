"""Who in this process follows which run: told at once of what was written, and of what a model is saying."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.models.attribute_items import as_item
from standfast.runs.stream_events import RawResponsesStreamEvent, StreamEvent
from standfast.runtime.types import Event

_MAX_PENDING = 4096
"""Live events that a slow reader may fall behind; after that it misses some. The run never waits for a reader."""


EntryMark: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class JournalUpdate:
    """Something new is in the journal; ``upto`` is the mark of its last entry, where that is known."""

    upto: EntryMark | None = None


class RunSubscription:
    """One reader: live events in order, and among them :class:`Written` wherever something came into the journal.

    One that only waits for the run to ``rest`` is told of that alone.
    """

    def __init__(self, *, until_stopped: bool) -> None:
        self.until_stopped = until_stopped
        self.pending: deque[Event | JournalUpdate] = deque(maxlen=_MAX_PENDING)
        self._changed = asyncio.Event()

    def put(self, message: Event | JournalUpdate) -> None:
        if isinstance(message, Event) or not self.pending or self.pending[-1] != message:
            self.pending.append(message)
        self._changed.set()

    async def wait(self, *, timeout: float) -> None:
        """Wait until there is something, or for so long."""
        if not self.pending:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return


class RunSubscriptions:
    """The followers of all runs."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[RunSubscription]] = {}

    @contextmanager
    def subscribe(self, run_id: str, *, until_stopped: bool = False) -> Iterator[RunSubscription]:
        follower = RunSubscription(until_stopped=until_stopped)
        self._subscriptions.setdefault(run_id, set()).add(follower)
        try:
            yield follower
        finally:
            self._subscriptions[run_id].discard(follower)
            if not self._subscriptions[run_id]:
                del self._subscriptions[run_id]

    def has_live_subscribers(self, run_id: str) -> bool:
        """Whether anybody wants to hear what a model is saying."""
        return any(not follower.until_stopped for follower in self._subscriptions.get(run_id, ()))

    def notify_written(self, run_id: str, *, upto: EntryMark | None = None, stopped: bool = False) -> None:
        """The run's journal has something new; ``rests`` when it ended or waits."""
        self._publish(run_id, JournalUpdate(upto), stopped=stopped)

    def publish_live(self, run_id: str, kind: str, data: dict[str, Any]) -> None:
        self._publish(run_id, Event(None, run_id, kind, data, time.time(), live=True))

    async def publish_model_event(self, run_id: str, event: StreamEvent) -> None:
        """What a model is saying, for whoever listens."""
        if isinstance(event, RawResponsesStreamEvent):
            self.publish_live(run_id, "model.delta", as_item(event.data))

    def _publish(self, run_id: str, message: Event | JournalUpdate, *, stopped: bool = False) -> None:
        for follower in self._subscriptions.get(run_id, ()):
            if stopped or not follower.until_stopped:
                follower.put(message)
