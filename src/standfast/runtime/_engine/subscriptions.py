"""Subscriptions to runs inside this process: notifications of new journal entries, and live model events."""

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
"""How many live events a slow reader may be behind before it misses some. A run never waits for a reader."""


EntryMark: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class JournalUpdate:
    """The journal has new entries; ``upto`` is the mark of the last one, if known."""

    upto: EntryMark | None = None


class RunSubscription:
    """One reader: live events in order, and among them a :class:`JournalUpdate` wherever the journal has grown.

    With ``until_stopped`` it is notified only when the run ends or waits.
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
        """Wait until something is pending, at most ``timeout`` seconds."""
        if not self.pending:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return


class RunSubscriptions:
    """The subscriptions to all runs."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[RunSubscription]] = {}

    @contextmanager
    def subscribe(self, run_id: str, *, until_stopped: bool = False) -> Iterator[RunSubscription]:
        subscription = RunSubscription(until_stopped=until_stopped)
        self._subscriptions.setdefault(run_id, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[run_id].discard(subscription)
            if not self._subscriptions[run_id]:
                del self._subscriptions[run_id]

    def has_live_subscribers(self, run_id: str) -> bool:
        """Return whether any subscription of the run receives live events."""
        return any(not subscription.until_stopped for subscription in self._subscriptions.get(run_id, ()))

    def notify_written(self, run_id: str, *, upto: EntryMark | None = None, stopped: bool = False) -> None:
        """Notify the subscriptions of new journal entries; ``stopped`` when the run has ended or waits."""
        self._publish(run_id, JournalUpdate(upto), stopped=stopped)

    def publish_live(self, run_id: str, kind: str, data: dict[str, Any]) -> None:
        self._publish(run_id, Event(None, run_id, kind, data, time.time(), live=True))

    async def publish_model_event(self, run_id: str, event: StreamEvent) -> None:
        """Publish an event of the model to the live subscriptions."""
        if isinstance(event, RawResponsesStreamEvent):
            self.publish_live(run_id, "model.delta", as_item(event.data))

    def _publish(self, run_id: str, message: Event | JournalUpdate, *, stopped: bool = False) -> None:
        for subscription in self._subscriptions.get(run_id, ()):
            if stopped or not subscription.until_stopped:
                subscription.put(message)
