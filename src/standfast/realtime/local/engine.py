"""The server side of one realtime session, sans I/O: client frames and time in, frames and actions out."""

from collections.abc import Callable, Mapping
from typing import Any

from standfast.base.ids import new_id
from standfast.realtime.local.actions import Action, CloseConnection, Frame, GenerateResponse, InvalidRequest, Outbox
from standfast.realtime.local.conversation import ConversationEntry, EngineConversation
from standfast.realtime.local.handlers import (
    CLIENT_EVENT_HANDLERS,
    decode_client_frame,
    parse_client_event,
    select_context,
)
from standfast.realtime.local.responses import EngineResponse
from standfast.realtime.local.settings import EngineSessionSettings, ResponseSettings, settings_to_wire
from standfast.realtime.local.turn_detection import DetectorFactory, EnergyDetector, SpeechTurns

_TRANSCRIPTION_EVENT = "conversation.item.input_audio_transcription"
_RATE_LIMITS = [
    {"name": "requests", "limit": 1000, "remaining": 999, "reset_seconds": 0.06},
    {"name": "tokens", "limit": 100_000, "remaining": 99_000, "reset_seconds": 0.6},
]


class Engine:
    """One session. Methods take the time as an argument, never wait, and do not raise for any frame of the client.

    After each call, the caller takes the frames to send and the actions to execute with :meth:`drain_outbox`. It
    calls :meth:`advance` at :attr:`deadline`. It adds the output of the responder to the response that
    :meth:`get_response` returns, and then calls :meth:`process_ended_responses`.
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
        has_transcriber: bool = True,
        new_id: Callable[[str], str] = new_id,
    ) -> None:
        self.id = new_id("sess")
        self.settings = EngineSessionSettings(model=model)
        self.conversation = EngineConversation(new_id("conv"))
        self.outbox = Outbox()
        self.new_id = new_id
        self.turns = SpeechTurns(self, detector)
        self.has_transcriber, self.closed = has_transcriber, False
        self._responses: dict[str, EngineResponse] = {}
        self._pace = pace
        self._limit_seconds, self._session_deadline, self._expires_at = limit_seconds, now + limit_seconds, expires_at
        self.outbox.emit("session.created", session=self.to_wire())
        conversation = {"id": self.conversation.id, "object": "realtime.conversation"}
        self.outbox.emit("conversation.created", conversation=conversation)

    @property
    def deadline(self) -> float | None:
        """When :meth:`advance` must be called next; ``None`` once the session is closed."""
        if self.closed:
            return None
        times = [
            self._session_deadline,
            self.turns.idle_at,
            *(response.deadline for response in self._responses.values()),
        ]
        return min(time for time in times if time is not None)

    @property
    def active_response(self) -> EngineResponse | None:
        """The active response of the conversation; there is at most one."""
        running = (response for response in self._responses.values() if not response.ended)
        return next((response for response in running if response.in_conversation), None)

    @property
    def responses(self) -> list[EngineResponse]:
        """All responses in progress: the active one and those out of band."""
        return list(self._responses.values())

    def get_response(self, response_id: str) -> EngineResponse | None:
        """Return a response in progress, or ``None``."""
        return self._responses.get(response_id)

    def drain_outbox(self) -> list[Frame | Action]:
        """Return the frames to send and the actions to execute, in order."""
        return self.outbox.drain()

    def to_wire(self) -> dict[str, Any]:
        """Return the ``session`` object of the protocol."""
        identity = {"id": self.id, "object": "realtime.session", "expires_at": self._expires_at}
        return {**identity, **settings_to_wire(self.settings)}

    def advance(self, now: float) -> None:
        """Send the output that is due and act on timeouts."""
        if self.closed:
            return
        for response in self.responses:
            response.advance(now)
        if now >= self._session_deadline:
            self.expire()
        self.turns.advance(now)
        self.process_ended_responses(now)

    def receive(self, data: str | bytes | Mapping[str, Any], now: float) -> None:
        """Handle a frame of the client. An invalid one is answered with an ``error`` frame."""
        if self.closed:
            return
        event_id: Any = None
        try:
            event = dict(data) if isinstance(data, Mapping) else decode_client_frame(data)
            event_id = event.get("event_id")
            request = parse_client_event(event)
            CLIENT_EVENT_HANDLERS[type(request)](self, request, now)
        except InvalidRequest as error:
            self.outbox.emit_error(error, event_id=event_id if isinstance(event_id, str) else None)
        self.process_ended_responses(now)

    def start_response(self, now: float, overrides: ResponseSettings | None = None) -> EngineResponse:
        """Start a response. Raises :class:`InvalidRequest` while the conversation has an active one."""
        overrides = overrides or ResponseSettings()
        in_conversation = overrides.conversation == "auto"
        if in_conversation and (active := self.active_response) is not None:
            raise InvalidRequest(
                "conversation_already_has_active_response",
                f"Conversation already has an active response in progress: {active.id}. "
                "Wait until the response is finished before creating a new one.",
            )
        response = EngineResponse(
            self.new_id("resp"),
            settings=overrides.apply_to(self.settings),
            conversation=self.conversation if in_conversation else None,
            context=select_context(self.conversation, overrides.input),
            outbox=self.outbox,
            new_id=self.new_id,
            started_at=now,
            metadata=overrides.metadata,
            pace=self._pace,
        )
        self._responses[response.id] = response
        self.turns.idle_at = None
        response.start()
        self.outbox.add_action(GenerateResponse(response.id))
        return response

    def add_item(self, entry: ConversationEntry, *, after: str | None = None) -> None:
        """Add an item to the conversation and emit its events."""
        previous = self.conversation.add(entry, after=after)
        self.conversation.discard_old_audio()
        self.outbox.emit("conversation.item.added", previous_item_id=previous, item=entry.to_wire())
        self.outbox.emit("conversation.item.done", previous_item_id=previous, item=entry.to_wire())

    def add_transcript(self, item_id: str, text: str) -> None:
        """Add the transcript of an item; it is sent to the client if the session has transcription."""
        if item_id not in self.conversation:
            return
        entry = self.conversation.get_entry(item_id)
        entry.transcript = text
        if self.settings.audio.input.transcription is None:
            return
        entry.item["content"][0]["transcript"] = text
        location = {"item_id": item_id, "content_index": 0}
        for index, word in enumerate(text.split()):
            self.outbox.emit(f"{_TRANSCRIPTION_EVENT}.delta", **location, delta=f" {word}" if index else word)
        usage = {"type": "duration", "seconds": entry.audio_ms / 1000}
        self.outbox.emit(f"{_TRANSCRIPTION_EVENT}.completed", **location, transcript=text, usage=usage)

    def report_transcription_failure(self, item_id: str, message: str) -> None:
        """Report a failed transcription to the client if the session has transcription."""
        if self.settings.audio.input.transcription is not None:
            error = {"type": "transcription_error", "code": "transcription_failed", "message": message}
            self.outbox.emit(f"{_TRANSCRIPTION_EVENT}.failed", item_id=item_id, content_index=0, error=error)

    def expire(self) -> None:
        """Close the session because it has reached its maximum duration."""
        message = f"Your session hit the maximum duration of {self._limit_seconds / 60:g} minutes."
        self.outbox.emit_error(InvalidRequest("session_expired", message))
        self.outbox.add_action(CloseConnection(1001, "session expired"))
        self.closed = True

    def process_ended_responses(self, now: float) -> None:
        """Remove ended responses and start a pending one."""
        if self.closed:
            return
        for response in [each for each in self._responses.values() if each.ended]:
            del self._responses[response.id]
            self.outbox.emit("rate_limits.updated", rate_limits=_RATE_LIMITS)
            self.turns.handle_response_ended(response, now)
            self.conversation.discard_old_audio()
        self.turns.start_pending_response(now)
