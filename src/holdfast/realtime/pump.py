"""What a session makes of each thing that the model tells. Nothing here waits.

Whatever else changes a session (a tool that ends, a guardrail that trips, a program that calls) does so between two of
these steps, never inside one.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.realtime import model_events as told
from holdfast.realtime.audio import audio_format
from holdfast.realtime.calls import Calls
from holdfast.realtime.errors import ConnectionLost, ResponseRefused
from holdfast.realtime.events import (
    RealtimeAudio,
    RealtimeAudioEnd,
    RealtimeAudioInterrupted,
    RealtimeInputAudioTimeoutTriggered,
    RealtimeRawModelEvent,
    RealtimeTranscriptDelta,
    RealtimeUsage,
    size_of,
)
from holdfast.realtime.guarding import Guard
from holdfast.realtime.items import AssistantMessageItem, AssistantText, UserMessageItem
from holdfast.realtime.reconnecting import Reconnecting, lost_error
from holdfast.realtime.responses import Response
from holdfast.realtime.retelling import retell
from holdfast.realtime.room import Room, log
from holdfast.realtime.states import RealtimeState
from holdfast.realtime.turns import Turns


class Pump:
    """Takes the model's events in the order in which it told them."""

    def __init__(
        self,
        room: Room,
        *,
        calls: Calls,
        guard: Guard,
        reconnecting: Reconnecting,
        end: Callable[[BaseException | None], None],
    ) -> None:
        self._room, self._calls, self._guard, self._reconnecting = room, calls, guard, reconnecting
        self._end = end
        self._turns = Turns(room, guard=guard)
        self._known = room.responses.known
        self._speech_at: float | None = None

    def take(self, event: told.RealtimeModelEvent) -> Awaitable[None] | None:
        """Do what the event asks for. If there is something to wait for before the next event, it is given back."""
        room = self._room
        step = _STEPS.get(type(event))
        if step is None:
            raw = RealtimeRawModelEvent(event, room.info)
            room.outlet.flow(raw, size_of(raw))
            return None
        size = len(event.data) if type(event) is told.RealtimeModelAudioEvent else 0
        room.outlet.flow(RealtimeRawModelEvent(event, room.info), size)
        try:
            return step(self, event)
        except Exception as error:  # noqa: BLE001 - a strange event must not stop the model's reader
            log.warning("the event %r could not be handled: %s", event.type, error, exc_info=error)
            room.fail(error)
            return None

    def settle(self) -> None:
        """The connection is gone, and with it what was under way."""
        room = self._room
        room.user_is_speaking = False
        room.ledger.no_more_transcripts()
        self._turns.lost()
        self._room.to_write.set()

    def _audio(self, event: told.RealtimeModelAudioEvent) -> None:
        room = self._room
        response = self._known.get(event.response_id) or self._response(event.response_id)
        if response.muted:
            return
        lasts_ms = room.ledger.sent_audio(event.item_id, event.content_index, len(event.data))
        response.item_id = event.item_id
        audio = RealtimeAudio(event, event.item_id, event.content_index, room.info)
        if self._guard.holds_back:
            self._guard.hold(response, audio, lasts_ms)
        else:
            room.play(response, audio, lasts_ms)

    def _audio_format(self, event: told.RealtimeModelAudioFormatEvent) -> None:
        self._room.ledger.use_format(audio_format(event.format))

    def _delta(self, event: told.RealtimeModelTranscriptDeltaEvent | told.RealtimeModelOutputTextDeltaEvent) -> None:
        room = self._room
        response = self._known.get(event.response_id) or self._response(event.response_id)
        spoken = event.type == "transcript_delta"
        response.spoke = response.spoke or not spoken
        item_id, delta = event.item_id, event.delta
        if room.ledger.say(item_id, delta, response.id, content_index=event.content_index, spoken=spoken):
            room.added(item_id)
        room.outlet.flow(RealtimeTranscriptDelta(item_id, delta, response.id, room.info))
        if response.snapshot.guardrails and not response.tripped:
            self._guard.hear(response, item_id, event.content_index, delta)

    def _text_done(self, event: told.RealtimeModelTextDoneEvent) -> None:
        response = self._response(event.response_id)
        self._room.ledger.said(event.item_id, event.text, content_index=event.content_index)
        self._complete(response, event.item_id, event.content_index, event.text)

    def _complete(self, response: Response, item_id: str, content_index: int, text: str) -> None:
        if response.snapshot.guardrails and not response.tripped:
            self._guard.complete(response, item_id, content_index, text)

    def _audio_done(self, event: told.RealtimeModelAudioDoneEvent) -> None:
        room = self._room
        over = RealtimeAudioEnd(room.info, event.item_id, event.content_index)
        response = room.responses.playing(event.item_id, event.response_id)
        if response is None or not self._guard.holds_back:
            room.emit(over)
        elif not response.muted:
            self._guard.hold(response, over)

    def _audio_interrupted(self, event: told.RealtimeModelAudioInterruptedEvent) -> None:
        room = self._room
        response = room.responses.playing(event.item_id, event.response_id)
        asked_for = response is not None and (response.tripped or response.interrupted_at is not None)
        if event.audio_end_ms is not None:
            room.cut(event.item_id, event.content_index, event.audio_end_ms)
        if response is not None:
            room.stop(response)
            by_user = room.user_is_speaking and not response.tripped
            stop = self._guard.interrupt if by_user else self._guard.drop
            stop(response)
        if event.retold and event.item_id in room.ledger and room.up.is_set():
            room.start(retell(room, event.item_id), f"cutting {event.item_id}")
        place = (event.item_id, event.content_index)
        room.outlet.forget(lambda it: isinstance(it, RealtimeAudio) and (it.item_id, it.content_index) == place)
        room.emit(RealtimeAudioInterrupted(room.info, *place))
        if not asked_for:
            since = room.now() if self._speech_at is None else self._speech_at
            if response is not None and not response.ended:
                response.interrupted_at = since
            else:
                room.measure("interruption", (room.now() - since) * 1000, event.item_id)
            self._calls.barge_in()

    def _truncated(self, event: told.RealtimeModelItemTruncatedEvent) -> None:
        self._room.cut(event.item_id, event.content_index, event.audio_end_ms)

    def _speech_started(self, event: told.RealtimeModelSpeechStartedEvent) -> None:
        self._room.user_is_speaking = True
        self._speech_at = self._room.now()
        self._calls.barge_in()

    def _speech_stopped(self, event: told.RealtimeModelSpeechStoppedEvent) -> None:
        self._room.user_is_speaking, self._speech_at = False, None
        self._room.asked_at = self._room.now()

    def _transcribed(self, event: told.RealtimeModelInputAudioTranscriptionCompletedEvent) -> None:
        room = self._room
        if room.ledger.transcribed(event.item_id, event.transcript):
            room.added(event.item_id)
        else:
            room.updated()
        self._room.to_write.set()

    def _not_transcribed(self, event: told.RealtimeModelInputAudioTranscriptionFailedEvent) -> None:
        self._room.ledger.not_transcribed(event.item_id)
        if event.error is not None:
            self._room.fail(event.error)
        self._room.to_write.set()

    def _input_timeout(self, event: told.RealtimeModelInputAudioTimeoutTriggeredEvent) -> None:
        start, end = event.audio_start_ms, event.audio_end_ms
        self._room.emit(
            RealtimeInputAudioTimeoutTriggered(
                self._room.info, item_id=event.item_id, audio_start_ms=start, audio_end_ms=end
            )
        )

    def _item(self, event: told.RealtimeModelItemUpdatedEvent) -> None:
        room, item, known = self._room, event.item, self._room.ledger.revision
        if room.ledger.tell(item, response_id=event.response_id):
            room.added(item.item_id)
            if isinstance(item, UserMessageItem):
                room.owed.confirmed(item)
        elif room.ledger.revision != known:
            room.updated()
        response = room.responses.get(event.response_id)
        if response is not None and isinstance(item, AssistantMessageItem) and item.status == "completed":
            for index, part in enumerate(item.content):  # A server may tell the words by this alone.
                if text := part.text if isinstance(part, AssistantText) else part.transcript:
                    self._complete(response, item.item_id, index, text)
        self._room.to_write.set()

    def _deleted(self, event: told.RealtimeModelItemDeletedEvent) -> None:
        if self._room.ledger.delete(event.item_id):
            self._room.updated()

    def _turn_started(self, event: told.RealtimeModelTurnStartedEvent) -> None:
        self._turns.started(event)

    def _turn_ended(self, event: told.RealtimeModelTurnEndedEvent) -> None:
        self._turns.ended(event)

    def _usage(self, event: told.RealtimeModelUsageEvent) -> None:
        room = self._room
        room.context.usage.add(event.usage)
        room.emit(
            RealtimeUsage(
                event.usage,
                event.response_id,
                room.info,
                input_tokens_details=event.input_tokens_details,
                output_tokens_details=event.output_tokens_details,
            )
        )

    def _error(self, event: told.RealtimeModelErrorEvent) -> None:
        error = event.error
        if isinstance(error, ResponseRefused) and error.plain and isinstance(error.error, ConnectionLost):
            self._room.owed.answer = True  # The next connection is asked.
        else:
            self._room.fail(error)

    def _exception(self, event: told.RealtimeModelExceptionEvent) -> None:
        self._room.fail(event.exception)
        self._end(event.exception)

    def _connection(self, event: told.RealtimeModelConnectionStatusEvent) -> None:
        if event.status == "disconnected":
            self._reconnecting.lost(lost_error(event.error, event.code))

    def _end_of_stream(self, event: told.RealtimeModelEndOfStreamEvent) -> None:
        if self._room.state is not RealtimeState.RECONNECTING:  # There another connection is under way.
            self._end(None)

    def _call(self, event: told.RealtimeModelToolCallEvent) -> Awaitable[None] | None:
        self._response(event.response_id).spoke = True  # Asked again, it would make the call again.
        waiting = self._calls.take(event)
        self._room.to_write.set()
        return waiting

    def _response(self, name: str | None) -> Response:
        responses = self._room.responses
        if name is not None and responses.active is None and responses.get(name) is None:
            self._turns.started(told.RealtimeModelTurnStartedEvent(response_id=name))  # That was not told.
        return self._room.responses.of(name, self._room.snapshot, now=self._room.now())


_STEPS: dict[type, Callable[[Pump, Any], Awaitable[None] | None]] = {
    told.RealtimeModelAudioEvent: Pump._audio,
    told.RealtimeModelAudioFormatEvent: Pump._audio_format,
    told.RealtimeModelTranscriptDeltaEvent: Pump._delta,
    told.RealtimeModelOutputTextDeltaEvent: Pump._delta,
    told.RealtimeModelTextDoneEvent: Pump._text_done,
    told.RealtimeModelAudioDoneEvent: Pump._audio_done,
    told.RealtimeModelAudioInterruptedEvent: Pump._audio_interrupted,
    told.RealtimeModelItemTruncatedEvent: Pump._truncated,
    told.RealtimeModelSpeechStartedEvent: Pump._speech_started,
    told.RealtimeModelSpeechStoppedEvent: Pump._speech_stopped,
    told.RealtimeModelInputAudioTranscriptionCompletedEvent: Pump._transcribed,
    told.RealtimeModelInputAudioTranscriptionFailedEvent: Pump._not_transcribed,
    told.RealtimeModelInputAudioTimeoutTriggeredEvent: Pump._input_timeout,
    told.RealtimeModelItemUpdatedEvent: Pump._item,
    told.RealtimeModelItemDeletedEvent: Pump._deleted,
    told.RealtimeModelTurnStartedEvent: Pump._turn_started,
    told.RealtimeModelTurnEndedEvent: Pump._turn_ended,
    told.RealtimeModelToolCallEvent: Pump._call,
    told.RealtimeModelUsageEvent: Pump._usage,
    told.RealtimeModelErrorEvent: Pump._error,
    told.RealtimeModelExceptionEvent: Pump._exception,
    told.RealtimeModelConnectionStatusEvent: Pump._connection,
    told.RealtimeModelEndOfStreamEvent: Pump._end_of_stream,
}
