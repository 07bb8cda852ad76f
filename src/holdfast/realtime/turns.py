"""The beginning and the end of each response, as everybody hears of them."""

from collections.abc import Callable
from typing import Any, cast

from holdfast.realtime.events import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeResponseFailed,
    RealtimeResponseIncomplete,
)
from holdfast.realtime.guarding import Guard
from holdfast.realtime.model_events import RealtimeModelTurnEndedEvent, RealtimeModelTurnStartedEvent
from holdfast.realtime.responses import Response
from holdfast.realtime.room import Room
from holdfast.realtime.spans import response_span
from holdfast.realtime.watching import Watching
from holdfast.realtime.wire_items import words_of


class Turns:
    """Each response begins once and ends once. ``said`` is called when what was said may have become final."""

    def __init__(self, room: Room, *, guard: Guard, said: Callable[[], None]) -> None:
        self._room, self._guard, self._said = room, guard, said
        self._watching = Watching(room)

    def started(self, event: RealtimeModelTurnStartedEvent) -> None:
        room = self._room
        response = room.responses.begin(event.response_id, room.snapshot, now=room.now(), asked_at=room.asked_at)
        if response is None:
            return
        response.span = response_span(room.place, response.snapshot)
        room.asked_at, room.owes_a_response = None, False
        room.unconfirmed.clear()
        room.emit(RealtimeAgentStartEvent(response.snapshot.agent, room.info, response_id=event.response_id))
        self._watching.began(response)

    def ended(self, event: RealtimeModelTurnEndedEvent) -> None:
        responses = self._room.responses
        response = responses.active if event.response_id is None else responses.get(event.response_id)
        if response is None or response.ended:
            self._tell_failure(event.response_id, event.status, event.reason, event.error)
        else:
            self._over(response, event.status, event.reason, event.error)

    def lost(self) -> None:
        """The connection is gone, and with it the active response."""
        response = self._room.responses.active
        if response is not None:
            self._over(response, "lost", "the connection was lost", None)

    def _over(self, response: Response, status: str, reason: str | None, error: Any) -> None:
        room = self._room
        if response.span is not None and status in ("failed", "lost"):
            response.span.set_error({"message": reason or status, "data": None})
        room.responses.end(response.id)
        room.owes_a_response = room.owes_a_response or (status == "lost" and not response.spoke)
        self._tell_failure(response.id, status, reason, error)
        if response.interrupted_at is not None:
            room.measure("interruption", (room.now() - response.interrupted_at) * 1000, response.id)
        self._guard.end(response, then=lambda: self._tell_end(response, status))

    def _tell_end(self, response: Response, status: str) -> None:
        room = self._room
        answers = room.ledger.ended(response.id, complete=status == "completed")
        if answers:
            room.updated()
        room.emit(RealtimeAgentEndEvent(response.snapshot.agent, room.info, response_id=response.id, status=status))
        self._watching.ended(response, "\n".join(words_of(room.ledger.item(name)) for name in answers))
        self._said()

    def _tell_failure(self, response_id: str | None, status: str, reason: str | None, error: Any) -> None:
        info = self._room.info
        if status in ("failed", "lost"):
            self._room.emit(RealtimeResponseFailed(response_id, cast(Any, status), reason, error, info))
        elif status == "incomplete":
            self._room.emit(RealtimeResponseIncomplete(response_id, reason, info))
