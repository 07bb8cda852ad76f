"""The client of the realtime protocol, sans I/O: it turns model inputs into frames and frames into model events.

Frames to send are appended to ``outgoing``, in order. The caller of any method sends the frames that are there
afterwards.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from standfast.realtime._session.playback import AudioTruncation, Playback
from standfast.realtime.audio import AudioFormat
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import BadFrame, ResponseRefused
from standfast.realtime.model import RealtimeModelConfig, RealtimeModelSendEvent
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
from standfast.realtime.openai._protocol.client_events import SEND_HANDLERS
from standfast.realtime.openai._protocol.items import ItemTracker
from standfast.realtime.openai._protocol.out_of_band import OutOfBandResponses
from standfast.realtime.openai._protocol.response_queue import RequestContext, ResponseQueue
from standfast.realtime.openai._protocol.server_events import SERVER_EVENT_HANDLERS, handle_other
from standfast.realtime.openai._protocol.session_settings import (
    PendingSessionUpdate,
    SessionUpdateTracker,
    build_session_payload,
)
from standfast.realtime.openai.codec import (
    AudioDelta,
    TextDelta,
    TranscriptDelta,
    decode_message,
    decode_message_dict,
    encode_message,
    frame_to_text,
    validate_ids,
)

_MAX_RECENT = 16  # responses whose messages may still arrive late
_TEXT_DELTA_EVENTS = {TranscriptDelta: RealtimeModelTranscriptDeltaEvent, TextDelta: RealtimeModelOutputTextDeltaEvent}


class RealtimeClient:
    """The protocol state of one connection."""

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
        context = RequestContext(self.queue_message, self._emit_refusal, clock, timeout=acknowledge_timeout)
        self.response_queue, self.out_of_band = ResponseQueue(context), OutOfBandResponses(context)
        self.session_updates = SessionUpdateTracker()
        self.item_tracker = ItemTracker()
        self.playback = Playback(options.get("playback_tracker"))
        if previous_playback is not None:
            self.playback.continue_from(previous_playback, clock())
        self.server_playing_response_id: str | None = None
        """The response whose audio the server plays itself, in a telephone or WebRTC call."""
        self.server_interrupts = False
        """Whether the server cancels its response itself when the user starts to speak."""
        self.server_transcribes = True
        """Whether the server transcribes the audio of the user."""
        self.server_creates_responses = False
        """Whether the server starts a response itself when the user stops speaking."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` must be called, in seconds of the clock; ``None`` if nothing is pending."""
        queued, out_of_band = self.response_queue.deadline, self.out_of_band.deadline
        return queued if out_of_band is None or (queued is not None and queued < out_of_band) else out_of_band

    def send_initial_settings(self) -> PendingSessionUpdate:
        """Send the initial settings of the model config."""
        return self.update_settings(self._options.get("initial_model_settings") or {})

    def update_settings(self, settings: RealtimeSessionModelSettings) -> PendingSessionUpdate:
        """Send settings. The returned update is marked ``answered`` when the server has accepted or rejected it."""
        session = build_session_payload(settings, joins_call="call_id" in self._options)
        # The tracing of a session can be set once; setting it again is an error.
        if session.get("tracing") == self._tracing:
            session.pop("tracing", None)
        if self._prompt_sent:
            session.setdefault("prompt", None)  # If omitted, the prompt of the previous agent would stay.
        update = self.session_updates.create(session)
        self.queue_message({"type": "session.update", "event_id": update.event_id, "session": session})
        self.session_updates.mark_sent(update)
        self._tracing = session.get("tracing", self._tracing)
        self._prompt_sent = self._prompt_sent or "prompt" in session
        return update

    def send(self, event: RealtimeModelSendEvent) -> Sequence[RealtimeModelEvent]:
        """Send a model input. Returns the events that result from it."""
        handler = next((SEND_HANDLERS[kind] for kind in type(event).__mro__ if kind in SEND_HANDLERS), None)
        if handler is None:
            raise TypeError(f"a realtime model cannot send {event!r}")
        handler(self, event)
        return self._take_events()

    def receive(self, frame: bytes | str) -> Sequence[RealtimeModelEvent]:
        """Handle a frame of the server. A malformed one becomes an error event, never an exception."""
        try:
            message = decode_message(frame)
            kind = type(message)
            if self.out_of_band.response_ids and self._is_out_of_band(message):
                return (RealtimeModelOtherEvent(decode_message_dict(frame)),)
            if kind is AudioDelta:
                return self._handle_audio_delta(message)
            if (text_event := _TEXT_DELTA_EVENTS.get(kind)) is not None:
                index = message.content_index
                return (text_event(message.item_id, message.delta, message.response_id, content_index=index),)
            validate_ids(message)
            SERVER_EVENT_HANDLERS.get(message["type"], handle_other)(self, message)
        except BadFrame as error:
            self.emit(RealtimeModelErrorEvent(error))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.emit(RealtimeModelErrorEvent(BadFrame(f"{type(error).__name__}: {error}", frame_to_text(frame))))
        return self._take_events()

    def tick(self) -> Sequence[RealtimeModelEvent]:
        """Act on passed deadlines; to be called when ``deadline`` has come."""
        self.response_queue.tick()
        self.out_of_band.tick()
        return self._take_events()

    def handle_connection_lost(self, error: Exception | None = None) -> Sequence[RealtimeModelEvent]:
        """End the active response, refuse all pending requests and drop the outgoing frames."""
        if (response_id := self.response_queue.handle_connection_lost(error)) is not None:
            self.end_turn(RealtimeModelTurnEndedEvent(response_id=response_id, status="lost", error=error))
        self.out_of_band.handle_connection_lost(error)
        self.outgoing.clear()
        return self._take_events()

    def queue_message(self, message: dict[str, Any]) -> None:
        self.outgoing.append(encode_message(message))

    def emit(self, event: RealtimeModelEvent) -> None:
        self._pending_events.append(event)

    def end_turn(self, event: RealtimeModelTurnEndedEvent) -> None:
        """Emit the end of a response, once: the server may still report one that the client gave up."""
        if event.response_id is None or event.response_id not in self._ended_responses:
            self._ended_responses.append(event.response_id)
            self.emit(event)

    def has_ended(self, response_id: str | None) -> bool:
        """Whether the end of this response was emitted already."""
        return response_id is not None and response_id in self._ended_responses

    def mark_usage_counted(self, response_id: str | None) -> bool:
        """Mark the usage of a response as counted. Returns False if it was counted before."""
        if response_id is None:
            return True
        is_new = response_id not in self._counted_responses
        if is_new:
            self._counted_responses.append(response_id)
        return is_new

    def set_audio_format(self, format: AudioFormat) -> None:
        if format != self.playback.format:
            self.playback.set_format(format)
        self.emit(RealtimeModelAudioFormatEvent(format.as_wire()))

    def stop_playback(self, response_id: str | None = None, *, include_previous: bool = False) -> None:
        """Truncate audio that was not played, locally and at the server, and emit no more of its responses."""
        truncations = self.playback.stop(
            self._clock(),
            response_id=response_id,
            active_response_id=self.response_queue.active_response_id,
            include_previous=include_previous,
        )
        for truncation in truncations:
            self.mute(truncation.response_id)
            self.emit(make_interrupted_event(truncation))
            if not truncation.from_previous_connection:
                self._truncate(truncation.item_id, truncation.content_index, truncation.heard_ms)

    def clear_server_output(self, response_id: str | None = None) -> None:
        """Stop the audio that the server plays itself. The server requires a cancelled response before this."""
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
        response_id = message.get("response_id") if type(message) is dict else message.response_id
        return response_id in self.out_of_band.response_ids

    def _handle_audio_delta(self, message: AudioDelta) -> Sequence[RealtimeModelEvent]:
        response_id = message.response_id
        item_id, index, data = message.item_id, message.content_index, message.delta
        if self._muted_responses and response_id in self._muted_responses:
            if (item_id, index) not in self._truncated_parts:  # None of it was played.
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
        events, self._pending_events = self._pending_events, []
        return events


def make_interrupted_event(truncation: AudioTruncation) -> RealtimeModelAudioInterruptedEvent:
    return RealtimeModelAudioInterruptedEvent(
        truncation.item_id,
        truncation.content_index,
        response_id=truncation.response_id,
        audio_end_ms=truncation.heard_ms,
        from_previous_connection=truncation.from_previous_connection,
    )
