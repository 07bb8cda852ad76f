"""The server side of one realtime session, without I/O: client frames and time in, frames and wishes out."""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.base.ids import new_id
from holdfast.realtime.local.client_events import decoded, understood
from holdfast.realtime.local.conversation import Conversation, Entry
from holdfast.realtime.local.handling import HANDLERS, chosen_context
from holdfast.realtime.local.outbox import Ask, Frame, HangUp, Outbox, Refused, Wish
from holdfast.realtime.local.responses import Response
from holdfast.realtime.local.settings import ResponseSettings, SessionSettings, wire
from holdfast.realtime.local.turn_taking import TurnTaking
from holdfast.realtime.local.vad import DetectorFactory, EnergyDetector

_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_RATE_LIMITS = [
    {"name": "requests", "limit": 1000, "remaining": 999, "reset_seconds": 0.06},
    {"name": "tokens", "limit": 100_000, "remaining": 99_000, "reset_seconds": 0.6},
]


class Engine:
    """One session. Methods are told the time, none of them waits, and no frame makes one raise.

    What is to be sent or done is taken with :meth:`take` after each call. At :attr:`due` the engine wants
    :meth:`advance` to be called. What the brain answers is given to the response that :meth:`response` finds, and
    then :meth:`settle` is called.
    """

    def __init__(
        self,
        *,
        now: float,
        detector: DetectorFactory = EnergyDetector,
        pace: float | None = None,
        limit_seconds: float = 3600.0,
        expires_at: int | None = None,
        model: str = "local",
        transcribes: bool = True,
        new_id: Callable[[str], str] = new_id,
    ) -> None:
        self.id = new_id("sess")
        self.settings = SessionSettings(model=model)
        self.conversation = Conversation(new_id("conv"))
        self.outbox = Outbox()
        self.new_id = new_id
        self.turns = TurnTaking(self, detector)
        self.transcribes, self.closed = transcribes, False
        self._responses: dict[str, Response] = {}
        self._pace = pace
        self._limit, self._expires, self._shown_expiry = limit_seconds, now + limit_seconds, expires_at
        self.outbox.tell("session.created", session=self.shown())
        about = {"id": self.conversation.id, "object": "realtime.conversation"}
        self.outbox.tell("conversation.created", conversation=about)

    @property
    def due(self) -> float | None:
        """When :meth:`advance` should be called next, if nothing comes before; ``None`` once it is closed."""
        if self.closed:
            return None
        times = [self._expires, self.turns.idle_at, *(response.due for response in self._responses.values())]
        return min(time for time in times if time is not None)

    @property
    def active(self) -> Response | None:
        """The response that is being given in the conversation. There is never a second one."""
        running = (found for found in self._responses.values() if not found.over)
        return next((found for found in running if found.in_conversation), None)

    @property
    def responses(self) -> list[Response]:
        """All that are being given: the active one, and those that are no part of the conversation."""
        return list(self._responses.values())

    def response(self, response_id: str) -> Response | None:
        """A response that is still being given."""
        return self._responses.get(response_id)

    def take(self) -> list[Frame | Wish]:
        """Frames to send and wishes to fulfil, in order."""
        return self.outbox.take()

    def shown(self) -> dict[str, Any]:
        """The session as the wire shows it."""
        about = {"id": self.id, "object": "realtime.session", "expires_at": self._shown_expiry}
        return {**about, **wire(self.settings)}

    def advance(self, now: float) -> None:
        """Time has passed."""
        if self.closed:
            return
        for response in self.responses:
            response.advance(now)
        if now >= self._expires:
            self.expire()
        self.turns.advance(now)
        self.settle(now)

    def receive(self, data: str | bytes | Mapping[str, Any], now: float) -> None:
        """A frame from the client, whatever it is. A wrong one is answered with an ``error`` frame."""
        if self.closed:
            return
        event_id: Any = None
        try:
            event = dict(data) if isinstance(data, Mapping) else decoded(data)
            event_id = event.get("event_id")
            request = understood(event)
            HANDLERS[type(request)](self, request, now)
        except Refused as refused:
            self.outbox.error(refused, event_id=event_id if isinstance(event_id, str) else None)
        self.settle(now)

    def begin_response(self, now: float, wanted: ResponseSettings | None = None) -> Response:
        """Begin to answer; :class:`Refused` while the conversation has an active response."""
        wanted = wanted or ResponseSettings()
        own = wanted.conversation == "auto"
        if own and (active := self.active) is not None:
            raise Refused(
                "conversation_already_has_active_response",
                f"Conversation already has an active response in progress: {active.id}. "
                "Wait until the response is finished before creating a new one.",
            )
        response = Response(
            self.new_id("resp"),
            settings=wanted.over(self.settings),
            conversation=self.conversation if own else None,
            context=chosen_context(self.conversation, wanted.input),
            outbox=self.outbox,
            new_id=self.new_id,
            began=now,
            metadata=wanted.metadata,
            pace=self._pace,
        )
        self._responses[response.id] = response
        self.turns.idle_at = None
        response.begin()
        self.outbox.wish(Ask(response.id))
        return response

    def add_item(self, entry: Entry, *, after: str | None = None) -> None:
        """Put an item into the conversation and tell of it."""
        previous = self.conversation.add(entry, after=after)
        self.conversation.forget_old_audio()
        self.outbox.tell("conversation.item.added", previous_item_id=previous, item=entry.shown())
        self.outbox.tell("conversation.item.done", previous_item_id=previous, item=entry.shown())

    def transcribed(self, item_id: str, text: str) -> None:
        """What was said in an item. The client is told if it asked for transcripts."""
        if item_id not in self.conversation:
            return
        entry = self.conversation.find(item_id)
        entry.said = text
        if self.settings.audio.input.transcription is None:
            return
        entry.item["content"][0]["transcript"] = text
        where = {"item_id": item_id, "content_index": 0}
        for index, word in enumerate(text.split()):
            self.outbox.tell(f"{_TRANSCRIPTION}.delta", **where, delta=f" {word}" if index else word)
        usage = {"type": "duration", "seconds": entry.audio_ms / 1000}
        self.outbox.tell(f"{_TRANSCRIPTION}.completed", **where, transcript=text, usage=usage)

    def transcription_failed(self, item_id: str, message: str) -> None:
        """What was said could not be found out. The client is told if it asked for transcripts."""
        if self.settings.audio.input.transcription is not None:
            error = {"type": "transcription_error", "code": "transcription_failed", "message": message}
            self.outbox.tell(f"{_TRANSCRIPTION}.failed", item_id=item_id, content_index=0, error=error)

    def expire(self) -> None:
        """End the session as one that has reached its longest duration."""
        message = f"Your session hit the maximum duration of {self._limit / 60:g} minutes."
        self.outbox.error(Refused("session_expired", message))
        self.outbox.wish(HangUp(1001, "session expired"))
        self.closed = True

    def settle(self, now: float) -> None:
        """See to what follows when responses have ended."""
        if self.closed:
            return
        for response in [found for found in self._responses.values() if found.over]:
            del self._responses[response.id]
            self.outbox.tell("rate_limits.updated", rate_limits=_RATE_LIMITS)
            self.turns.answered(response, now)
            self.conversation.forget_old_audio()
        self.turns.settle(now)
