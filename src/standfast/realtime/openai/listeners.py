"""The listeners of a realtime model."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from standfast.lifecycle.cancellation import is_cancelling
from standfast.realtime.model import RealtimeModelListener
from standfast.realtime.model_events import RealtimeModelEvent, RealtimeModelRawServerEvent

log = logging.getLogger("standfast.realtime")


class ListenerRegistry:
    """Delivers every event to each listener, in order and one at a time.

    An exception of a listener is logged; the listener still gets the next event.
    """

    def __init__(self) -> None:
        self._listeners: tuple[RealtimeModelListener, ...] = ()
        self._pending_events: deque[RealtimeModelEvent] = deque()
        self._notifying_task: asyncio.Task[Any] | None = None

    def add(self, listener: RealtimeModelListener) -> None:
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: RealtimeModelListener) -> None:
        self._listeners = tuple(other for other in self._listeners if other != listener)

    @property
    def wants_raw_events(self) -> bool:
        """Whether any listener wants the unparsed messages of the server."""
        return True in map(_accepts_raw_events, self._listeners)

    @property
    def is_current_task_notifying(self) -> bool:
        """Whether the caller is a listener that is handling an event."""
        return self._notifying_task is not None and self._notifying_task is asyncio.current_task()

    async def notify(self, events: Iterable[RealtimeModelEvent]) -> None:
        """Deliver events to all listeners.

        If another task is delivering already, it takes these over and this returns at once.
        """
        self._pending_events.extend(events)
        if self._notifying_task is not None:
            return
        self._notifying_task = asyncio.current_task()
        try:
            while self._pending_events:
                event = self._pending_events.popleft()
                raw = isinstance(event, RealtimeModelRawServerEvent)
                for listener in self._listeners:
                    if raw and not _accepts_raw_events(listener):
                        continue
                    try:
                        await listener.on_event(event)
                    except (Exception, asyncio.CancelledError) as error:
                        if isinstance(error, asyncio.CancelledError) and is_cancelling():
                            raise
                        log.exception("a listener failed at the event %r", event.type)
        finally:
            self._notifying_task = None


def _accepts_raw_events(listener: RealtimeModelListener) -> bool:
    # Listeners are duck-typed: they need not inherit the default of RealtimeModelListener.
    return getattr(listener, "raw_server_events", True)
