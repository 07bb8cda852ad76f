"""The client's half of the wire protocol. No I/O: what a model is told becomes frames, frames become model events.

Frames to be sent are in ``outgoing``, in order; whoever calls a method sends what it finds there afterwards.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from standfast.realtime._session.playback import AudioTruncation, Playback
from standfast.realtime.audio import AudioFormat
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import BadFrame, ResponseRefused
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.model_events import (
    RealtimeModelAudioEvent,
    RealtimeModelAudioFormatEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelErrorEvent,
    RealtimeModelEvent,
    RealtimeModelItemTruncatedEvent,
    RealtimeModelOtherEvent,
    RealtimeModelOutputTextDeltaEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
)
from standfast.realtime.model_inputs import RealtimeModelSendEvent
from standfast.realtime.openai._protocol.client_events import SEND_HANDLERS
from standfast.realtime.openai._protocol.codec import (
    AudioDelta,
    TextDelta,
    TranscriptDelta,
    decode_message,
    decode_message_dict,
    encode_message,
    frame_to_text,
    validate_ids,
)
from standfast.realtime.openai._protocol.items import ItemTracker
from standfast.realtime.openai._protocol.out_of_band import OutOfBandResponses
from standfast.realtime.openai._protocol.response_queue import RequestContext, ResponseQueue
from standfast.realtime.openai._protocol.server_events import SERVER_EVENT_HANDLERS, handle_other
from standfast.realtime.openai._protocol.session_settings import build_session_payload
from standfast.realtime.openai._protocol.session_updates import PendingSessionUpdate, SessionUpdateTracker

_MAX_RECENT = 16  # responses of which late messages may still come
_TEXT_DELTA_EVENTS = {TranscriptDelta: RealtimeModelTranscriptDeltaEvent, TextDelta: RealtimeModelOutputTextDeltaEvent}


class RealtimeClient:
    """One connection's state: whose turn it is, what was heard, what was not acknowledged."""

    def __init__(
        self,
        options: RealtimeModelConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        acknowledge_timeout: float = 10.0,
        previous_playback: Playback | None = None,
    ) -> None:
        self._options, self._clock = options, clock
        self._pending_events: list[RealtimeModelEvent] = []
        self._muted_responses: deque[str] = deque(maxlen=_MAX_RECENT)
        self._ended_responses: deque[str | None] = deque(maxlen=_MAX_RECENT)
        self._counted_responses: deque[str] = deque(maxlen=_MAX_RECENT)
        self._truncated_parts: deque[tuple[str, int]] = deque(maxlen=_MAX_RECENT)
        self._tracing: Any = None
        self._prompt_sent = False
        self.outgoing: deque[bytes] = deque()
        desk = RequestContext(self.queue_message, self._emit_refusal, clock, timeout=acknowledge_timeout)
        self.response_queue, self.out_of_band = ResponseQueue(desk), OutOfBandResponses(desk)
        self.session_updates = SessionUpdateTracker()
        self.item_tracker = ItemTracker()
        self.playback = Playback(options.get("playback_tracker"))
        if previous_playback is not None:
            self.playback.continue_from(previous_playback, clock())
        self.server_playing_response_id: str | None = None
        """The response that the server itself lets somebody hear, in a call that was joined."""
        self.server_interrupts = False
        """Whether the server cancels its response by itself when the user begins to speak."""
        self.server_transcribes = True
        """Whether what the user says is going to be written down."""
        self.server_creates_responses = False
        """Whether the server begins a response by itself when the user has stopped."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called, on the given clock."""
        own, aside = self.response_queue.deadline, self.out_of_band.deadline
        return own if aside is None or (own is not None and own < aside) else aside

    def send_initial_settings(self) -> PendingSessionUpdate:
        """Send the first settings."""
        return self.update_settings(self._options.get("initial_model_settings") or {})

    def update_settings(self, settings: RealtimeSessionModelSettings) -> PendingSessionUpdate:
        """Send settings; the answer will be found in what this gives."""
        session = build_session_payload(settings, joins_call="call_id" in self._options)
        # A session's tracing can be set once; saying it again is an error.
        if session.get("tracing") == self._tracing:
            session.pop("tracing", None)
        if self._prompt_sent:
            session.setdefault("prompt", None)  # Left out, the prompt of the agent before would go on.
        update = self.session_updates.create(session)
        self.queue_message({"type": "session.update", "event_id": update.event_id, "session": session})
        self.session_updates.mark_sent(update)
        self._tracing = session.get("tracing", self._tracing)
        self._prompt_sent = self._prompt_sent or "prompt" in session
        return update

    def send(self, event: RealtimeModelSendEvent) -> Sequence[RealtimeModelEvent]:
        """Do what the model was told. Gives what listeners have to know about it."""
        sayer = next((SEND_HANDLERS[kind] for kind in type(event).__mro__ if kind in SEND_HANDLERS), None)
        if sayer is None:
            raise TypeError(f"a realtime model cannot be told {event!r}")
        sayer(self, event)
        return self._take_events()

    def receive(self, frame: bytes | str) -> Sequence[RealtimeModelEvent]:
        """Understand a frame. What cannot be understood becomes an error event, never an exception."""
        try:
            message = decode_message(frame)
            kind = type(message)
            if self.out_of_band.response_ids and self._is_out_of_band(message):
                return (RealtimeModelOtherEvent(decode_message_dict(frame)),)
            if kind is AudioDelta:
                return self._handle_audio_delta(message)
            if (words := _TEXT_DELTA_EVENTS.get(kind)) is not None:
                index = message.content_index
                return (words(message.item_id, message.delta, message.response_id, content_index=index),)
            validate_ids(message)
            SERVER_EVENT_HANDLERS.get(message["type"], handle_other)(self, message)
        except BadFrame as error:
            self.emit(RealtimeModelErrorEvent(error))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.emit(RealtimeModelErrorEvent(BadFrame(f"{type(error).__name__}: {error}", frame_to_text(frame))))
        return self._take_events()

    def tick(self) -> Sequence[RealtimeModelEvent]:
        """Call this when the deadline has passed."""
        self.response_queue.tick()
        self.out_of_band.tick()
        return self._take_events()

    def handle_connection_lost(self, error: Exception | None = None) -> Sequence[RealtimeModelEvent]:
        """The connection is gone: what was under way has ended, and nothing more can be sent."""
        if (died := self.response_queue.handle_connection_lost(error)) is not None:
            self.end_turn(RealtimeModelTurnEndedEvent(response_id=died, status="lost", error=error))
        self.out_of_band.handle_connection_lost(error)
        self.outgoing.clear()
        return self._take_events()

    def queue_message(self, message: dict[str, Any]) -> None:
        self.outgoing.append(encode_message(message))

    def emit(self, event: RealtimeModelEvent) -> None:
        self._pending_events.append(event)

    def end_turn(self, event: RealtimeModelTurnEndedEvent) -> None:
        """Tell that a response is over, once: a response that was given up may still be reported by the server."""
        if event.response_id is None or event.response_id not in self._ended_responses:
            self._ended_responses.append(event.response_id)
            self.emit(event)

    def has_ended(self, response_id: str | None) -> bool:
        """Whether the end of this response was told already."""
        return response_id is not None and response_id in self._ended_responses

    def mark_usage_counted(self, response_id: str | None) -> bool:
        """Whether what a response took is to be counted: once, however often its end is told."""
        if response_id is None:
            return True
        new = response_id not in self._counted_responses
        if new:
            self._counted_responses.append(response_id)
        return new

    def set_audio_format(self, format: AudioFormat) -> None:
        if format != self.playback.format:
            self.playback.set_format(format)
        self.emit(RealtimeModelAudioFormatEvent(format.as_wire()))

    def stop_playback(self, response_id: str | None = None, *, include_previous: bool = False) -> None:
        """Cut what was not heard, here and at the server, and emit no more of it."""
        cuts = self.playback.stop(
            self._clock(),
            response_id=response_id,
            active_response_id=self.response_queue.active_response_id,
            include_previous=include_previous,
        )
        for cut in cuts:
            self.mute(cut.response_id)
            self.emit(make_interrupted_event(cut))
            if not cut.from_previous_connection:
                self._truncate(cut.item_id, cut.content_index, cut.heard_ms)

    def clear_server_output(self, response_id: str | None = None) -> None:
        """Stop what the server plays itself. It wants to be told to cancel the response before this."""
        if self.server_playing_response_id is not None and response_id in (None, self.server_playing_response_id):
            self.server_playing_response_id = None
            self.queue_message({"type": "output_audio_buffer.clear"})

    def mute(self, response_id: str | None) -> None:
        """Emit no more audio of this response."""
        if response_id is not None and response_id not in self._muted_responses:
            self._muted_responses.append(response_id)

    def is_muted(self, response_id: str | None) -> bool:
        return response_id in self._muted_responses

    def _is_out_of_band(self, message: Any) -> bool:
        named = message.get("response_id") if type(message) is dict else message.response_id
        return named in self.out_of_band.response_ids

    def _handle_audio_delta(self, message: AudioDelta) -> Sequence[RealtimeModelEvent]:
        response_id = message.response_id
        item_id, index, data = message.item_id, message.content_index, message.delta
        if self._muted_responses and response_id in self._muted_responses:
            if (item_id, index) not in self._truncated_parts:  # Nothing of it was heard.
                self._truncate(item_id, index, 0)
                self.emit(RealtimeModelItemTruncatedEvent(item_id, index, 0))
            return self._take_events()
        self.playback.add_audio(item_id, index, response_id, len(data), self._clock())
        return (RealtimeModelAudioEvent(data, response_id, item_id, index),)

    def _truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        self._truncated_parts.append((item_id, content_index))
        message = {"item_id": item_id, "content_index": content_index, "audio_end_ms": heard_ms}
        self.queue_message({"type": "conversation.item.truncate", **message})

    def _emit_refusal(self, refusal: ResponseRefused) -> None:
        self.emit(RealtimeModelErrorEvent(refusal))

    def _take_events(self) -> Sequence[RealtimeModelEvent]:
        if not self._pending_events:
            return ()
        told, self._pending_events = self._pending_events, []
        return told


def make_interrupted_event(cut: AudioTruncation) -> RealtimeModelAudioInterruptedEvent:
    return RealtimeModelAudioInterruptedEvent(
        cut.item_id,
        cut.content_index,
        response_id=cut.response_id,
        audio_end_ms=cut.heard_ms,
        from_previous_connection=cut.from_previous_connection,
    )
