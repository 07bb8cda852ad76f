"""The beginning and the end of each response, as everybody hears of them."""

from holdfast.realtime.events import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeResponseFailed,
    RealtimeResponseIncomplete,
)
from holdfast.realtime.guarding import Guard
from holdfast.realtime.model_events import RealtimeModelTurnEndedEvent, RealtimeModelTurnStartedEvent
from holdfast.realtime.responses import Response
from holdfast.realtime.retelling import send_raw
from holdfast.realtime.room import Room
from holdfast.realtime.spans import response_span
from holdfast.realtime.watching import Watching
from holdfast.realtime.wire_items import words_of


class Turns:
    """Each response begins once and ends once."""

    def __init__(self, room: Room, *, guard: Guard) -> None:
        self._room, self._guard = room, guard
        self._watching = Watching(room)
        self._untold: tuple[Response, str] | None = None

    def started(self, event: RealtimeModelTurnStartedEvent) -> None:
        room, before = self._room, self._room.responses.active
        response = room.responses.begin(event.response_id, room.snapshot, now=room.now(), asked_at=room.asked_at)
        if response is None:
            return
        if before is not None:  # There is one at a time.
            self._over(before, RealtimeModelTurnEndedEvent(status="lost", reason="its end was not told"))
        response.plain, response.link = event.plain, room.links
        response.span = response_span(room.place, response.snapshot)
        self._guard.begin(response)
        room.asked_at = None
        room.owed.answering()
        self._tell_last_end()
        room.emit(RealtimeAgentStartEvent(response.snapshot.agent, room.info, response_id=event.response_id))
        self._watching.began(response)

    def ended(self, event: RealtimeModelTurnEndedEvent) -> None:
        responses = self._room.responses
        response = responses.active if event.response_id is None else responses.get(event.response_id)
        if response is None or response.ended:
            self._tell_failure(event.response_id, event)
        else:
            self._over(response, event)

    def lost(self) -> None:
        """The connection is gone, and with it the active response."""
        response = self._room.responses.active
        if response is not None:
            self._over(response, RealtimeModelTurnEndedEvent(status="lost", reason="the connection was lost"))

    def _over(self, response: Response, event: RealtimeModelTurnEndedEvent) -> None:
        room, status = self._room, event.status
        if response.span is not None and status in ("failed", "lost"):
            response.span.set_error({"message": event.reason or status, "data": None})
        room.responses.end(response)
        if status == "lost":
            for item_id, index in room.ledger.unvoiced(response.id):
                room.cut(item_id, index, 0)
        self._tell_failure(response.id, event)
        if response.interrupted_at is not None:
            room.measure("interruption", (room.now() - response.interrupted_at) * 1000, response.id)
        self._tell_last_end()
        self._untold = (response, status)
        self._guard.end(response, complete=status == "completed", then=lambda: self._settle(response, status))

    def _settle(self, response: Response, status: str) -> None:
        """What was said in it is final."""
        room = self._room
        response.lost = status == "lost"
        if response.owed:
            self._ask_again(response)
        answers = room.ledger.ended(response.id, complete=status == "completed")
        if answers:
            room.updated()
        self._tell_end(response, answers)
        room.to_write.set()

    def _ask_again(self, response: Response) -> None:
        """Nothing was heard of a response that died with its connection: if the next one is there, it is asked."""
        room = self._room
        restored = room.up.is_set() and room.links != response.link and not room.restoring
        if restored and not room.owed.answer:
            room.owed.answer = True
            room.start(send_raw(room, "response.create"), "asking again")

    def _tell_last_end(self) -> None:
        """Something comes that belongs behind an end which still waits for verdicts."""
        if self._untold is not None:
            response, _ = self._untold
            self._tell_end(response, self._room.ledger.answers(response.id))

    def _tell_end(self, response: Response, answers: list[str]) -> None:
        """Tell that it has ended, once."""
        if self._untold is None or self._untold[0] is not response:
            return
        room, status, self._untold = self._room, self._untold[1], None
        room.emit(RealtimeAgentEndEvent(response.snapshot.agent, room.info, response_id=response.id, status=status))
        self._watching.ended(response, "\n".join(words_of(room.ledger.item(name)) for name in answers))

    def _tell_failure(self, response_id: str | None, event: RealtimeModelTurnEndedEvent) -> None:
        room = self._room
        match event.status:
            case "failed" | "lost" as status:
                room.emit(RealtimeResponseFailed(response_id, status, event.reason, event.error, room.info))
            case "incomplete":
                room.emit(RealtimeResponseIncomplete(response_id, event.reason, room.info))
