"""The client's half of the wire protocol. No I/O: what a model is told becomes frames, frames become model events.

Frames to be sent are in ``outgoing``, in order; whoever calls a method sends what it finds there afterwards.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.realtime.audio import AudioFormat
from holdfast.realtime.config import RealtimeSessionModelSettings
from holdfast.realtime.errors import BadFrame, ResponseRefused
from holdfast.realtime.model import RealtimeModelConfig
from holdfast.realtime.model_events import (
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
from holdfast.realtime.model_inputs import RealtimeModelSendEvent
from holdfast.realtime.openai.asides import Asides
from holdfast.realtime.openai.frames import (
    AudioDelta,
    TextDelta,
    TranscriptDelta,
    check_names,
    read,
    read_plain,
    shown,
    write,
)
from holdfast.realtime.openai.gate import Desk, ResponseGate
from holdfast.realtime.openai.items import Places
from holdfast.realtime.openai.saying import SAYERS
from holdfast.realtime.openai.settings import session_payload
from holdfast.realtime.openai.telling import HANDLERS, other
from holdfast.realtime.openai.updates import Update, Updates
from holdfast.realtime.playback import Cut, Playback

_LATE = 16  # responses of which late messages may still come
_WORDS = {TranscriptDelta: RealtimeModelTranscriptDeltaEvent, TextDelta: RealtimeModelOutputTextDeltaEvent}


class RealtimeClient:
    """One connection's state: whose turn it is, what was heard, what was not acknowledged."""

    def __init__(
        self,
        options: RealtimeModelConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        acknowledge_within: float = 10.0,
        before: Playback | None = None,
    ) -> None:
        self._options, self._clock = options, clock
        self._told: list[RealtimeModelEvent] = []
        self._muted: deque[str] = deque(maxlen=_LATE)
        self._over: deque[str | None] = deque(maxlen=_LATE)
        self._counted: deque[str] = deque(maxlen=_LATE)
        self._truncated: deque[tuple[str, int]] = deque(maxlen=_LATE)
        self._tracing: Any = None
        self._prompted = False
        self.outgoing: deque[bytes] = deque()
        desk = Desk(self.say, self._refused, clock, patience=acknowledge_within)
        self.gate, self.asides = ResponseGate(desk), Asides(desk)
        self.updates = Updates()
        self.places = Places()
        self.playback = Playback(options.get("playback_tracker"))
        if before is not None:
            self.playback.take_over(before, clock())
        self.server_plays: str | None = None
        """The response that the server itself lets somebody hear, in a call that was joined."""
        self.server_interrupts = False
        """Whether the server cancels its response by itself when the user begins to speak."""
        self.server_transcribes = True
        """Whether what the user says is going to be written down."""
        self.server_answers = False
        """Whether the server begins a response by itself when the user has stopped."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called, on the given clock."""
        own, aside = self.gate.deadline, self.asides.deadline
        return own if aside is None or (own is not None and own < aside) else aside

    def open(self) -> Update:
        """Send the first settings."""
        return self.update(self._options.get("initial_model_settings") or {})

    def update(self, settings: RealtimeSessionModelSettings) -> Update:
        """Send settings; the answer will be found in what this gives."""
        session = session_payload(settings, joins_call="call_id" in self._options)
        # A session's tracing can be set once; saying it again is an error.
        if session.get("tracing") == self._tracing:
            session.pop("tracing", None)
        if self._prompted:
            session.setdefault("prompt", None)  # Left out, the prompt of the agent before would go on.
        update = self.updates.made(session)
        self.say({"type": "session.update", "event_id": update.event_id, "session": session})
        self.updates.sent(update)
        self._tracing = session.get("tracing", self._tracing)
        self._prompted = self._prompted or "prompt" in session
        return update

    def send(self, event: RealtimeModelSendEvent) -> Sequence[RealtimeModelEvent]:
        """Do what the model was told. Gives what listeners have to know about it."""
        sayer = next((SAYERS[kind] for kind in type(event).__mro__ if kind in SAYERS), None)
        if sayer is None:
            raise TypeError(f"a realtime model cannot be told {event!r}")
        sayer(self, event)
        return self._events()

    def receive(self, frame: bytes | str) -> Sequence[RealtimeModelEvent]:
        """Understand a frame. What cannot be understood becomes an error event, never an exception."""
        try:
            message = read(frame)
            kind = type(message)
            if self.asides.known and self._is_aside(message):
                return (RealtimeModelOtherEvent(read_plain(frame)),)
            if kind is AudioDelta:
                return self._audio(message)
            if (words := _WORDS.get(kind)) is not None:
                index = message.content_index
                return (words(message.item_id, message.delta, message.response_id, content_index=index),)
            check_names(message)
            HANDLERS.get(message["type"], other)(self, message)
        except BadFrame as error:
            self.tell(RealtimeModelErrorEvent(error))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.tell(RealtimeModelErrorEvent(BadFrame(f"{type(error).__name__}: {error}", shown(frame))))
        return self._events()

    def tick(self) -> Sequence[RealtimeModelEvent]:
        """Call this when the deadline has passed."""
        self.gate.tick()
        self.asides.tick()
        return self._events()

    def lose(self, error: Exception | None = None) -> Sequence[RealtimeModelEvent]:
        """The connection is gone: what was under way has ended, and nothing more can be sent."""
        if (died := self.gate.lose(error)) is not None:
            self.end_turn(RealtimeModelTurnEndedEvent(response_id=died, status="lost", error=error))
        self.asides.lose(error)
        self.outgoing.clear()
        return self._events()

    def say(self, message: dict[str, Any]) -> None:
        self.outgoing.append(write(message))

    def tell(self, event: RealtimeModelEvent) -> None:
        self._told.append(event)

    def end_turn(self, event: RealtimeModelTurnEndedEvent) -> None:
        """Tell that a response is over, once: a response that was given up may still be reported by the server."""
        if event.response_id is None or event.response_id not in self._over:
            self._over.append(event.response_id)
            self.tell(event)

    def is_over(self, response_id: str | None) -> bool:
        """Whether the end of this response was told already."""
        return response_id is not None and response_id in self._over

    def counts(self, response_id: str | None) -> bool:
        """Whether what a response took is to be counted: once, however often its end is told."""
        if response_id is None:
            return True
        new = response_id not in self._counted
        if new:
            self._counted.append(response_id)
        return new

    def use_format(self, format: AudioFormat) -> None:
        if format != self.playback.format:
            self.playback.use(format)
        self.tell(RealtimeModelAudioFormatEvent(format.as_wire()))

    def stop_playing(self, response_id: str | None = None, *, untold: bool = False) -> None:
        """Cut what was not heard, here and at the server, and emit no more of it."""
        cuts = self.playback.cut(self._clock(), response_id=response_id, generating=self.gate.active, untold=untold)
        for cut in cuts:
            self.mute(cut.response_id)
            self.tell(interrupted(cut))
            if not cut.retold:
                self._truncate(cut.item_id, cut.content_index, cut.heard_ms)

    def hush(self, response_id: str | None = None) -> None:
        """Stop what the server plays itself. It wants to be told to cancel the response before this."""
        if self.server_plays is not None and response_id in (None, self.server_plays):
            self.server_plays = None
            self.say({"type": "output_audio_buffer.clear"})

    def mute(self, response_id: str | None) -> None:
        """Emit no more audio of this response."""
        if response_id is not None and response_id not in self._muted:
            self._muted.append(response_id)

    def is_muted(self, response_id: str | None) -> bool:
        return response_id in self._muted

    def _is_aside(self, message: Any) -> bool:
        named = message.get("response_id") if type(message) is dict else message.response_id
        return named in self.asides.known

    def _audio(self, message: AudioDelta) -> Sequence[RealtimeModelEvent]:
        response_id = message.response_id
        item_id, index, data = message.item_id, message.content_index, message.delta
        if self._muted and response_id in self._muted:
            if (item_id, index) not in self._truncated:  # Nothing of it was heard.
                self._truncate(item_id, index, 0)
                self.tell(RealtimeModelItemTruncatedEvent(item_id, index, 0))
            return self._events()
        self.playback.received(item_id, index, response_id, len(data), self._clock())
        return (RealtimeModelAudioEvent(data, response_id, item_id, index),)

    def _truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        self._truncated.append((item_id, content_index))
        message = {"item_id": item_id, "content_index": content_index, "audio_end_ms": heard_ms}
        self.say({"type": "conversation.item.truncate", **message})

    def _refused(self, refusal: ResponseRefused) -> None:
        self.tell(RealtimeModelErrorEvent(refusal))

    def _events(self) -> Sequence[RealtimeModelEvent]:
        if not self._told:
            return ()
        told, self._told = self._told, []
        return told


def interrupted(cut: Cut) -> RealtimeModelAudioInterruptedEvent:
    return RealtimeModelAudioInterruptedEvent(
        cut.item_id, cut.content_index, response_id=cut.response_id, audio_end_ms=cut.heard_ms, retold=cut.retold
    )
