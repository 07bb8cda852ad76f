"""Telling listeners, one event after the other."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from holdfast.lifecycle.finishing import told_to_stop
from holdfast.realtime.model import RealtimeModelListener
from holdfast.realtime.model_events import RealtimeModelEvent, RealtimeModelRawServerEvent

log = logging.getLogger("holdfast.realtime")


class Audience:
    """The listeners of a model. Each is told every event in order, and never two at a time.

    A listener that raises is reported in the log and told the next event all the same.
    """

    def __init__(self) -> None:
        self._listeners: tuple[RealtimeModelListener, ...] = ()
        self._to_tell: deque[RealtimeModelEvent] = deque()
        self._teller: asyncio.Task[Any] | None = None

    def add(self, listener: RealtimeModelListener) -> None:
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: RealtimeModelListener) -> None:
        self._listeners = tuple(known for known in self._listeners if known != listener)

    @property
    def wants_raw(self) -> bool:
        """Whether anybody wants the messages of the server as they came."""
        return True in map(_wants_raw, self._listeners)

    @property
    def told_here(self) -> bool:
        """Whether the current task is telling: then it is a listener that asks."""
        return self._teller is not None and self._teller is asyncio.current_task()

    async def tell(self, events: Iterable[RealtimeModelEvent]) -> None:
        """Tell everybody. If some task is telling already, it tells these too, and this returns at once."""
        self._to_tell.extend(events)
        if self._teller is not None:
            return
        self._teller = asyncio.current_task()
        try:
            while self._to_tell:
                event = self._to_tell.popleft()
                raw = isinstance(event, RealtimeModelRawServerEvent)
                for listener in self._listeners:
                    if raw and not _wants_raw(listener):
                        continue
                    try:
                        await listener.on_event(event)
                    except (Exception, asyncio.CancelledError) as error:
                        if isinstance(error, asyncio.CancelledError) and told_to_stop():
                            raise
                        log.exception("a listener failed at the event %r", event.type)
        finally:
            self._teller = None


def _wants_raw(listener: RealtimeModelListener) -> bool:
    # A listener need not inherit from the class that says so.
    return getattr(listener, "raw_server_events", True)
