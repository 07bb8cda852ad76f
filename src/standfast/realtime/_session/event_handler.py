"""What a session makes of each thing that the model tells. Nothing here waits.

Whatever else changes a session (a tool that ends, a guardrail that trips, a program that calls) does so between two of
these steps, never inside one.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from standfast.realtime import model_events as told
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.history_sync import resend_item
from standfast.realtime._session.reconnect import Reconnector, make_connection_error
from standfast.realtime._session.responses import TrackedResponse
from standfast.realtime._session.states import RealtimeState
from standfast.realtime._session.tool_calls import ToolCallManager
from standfast.realtime._session.turns import TurnTracker
from standfast.realtime.audio import parse_audio_format
from standfast.realtime.errors import ConnectionLost, ResponseRefused
from standfast.realtime.events import (
    RealtimeAudio,
    RealtimeAudioEnd,
    RealtimeAudioInterrupted,
    RealtimeInputAudioTimeoutTriggered,
    RealtimeRawModelEvent,
    RealtimeTranscriptDelta,
    RealtimeUsage,
    get_payload_size,
)
from standfast.realtime.items import AssistantMessageItem, AssistantText, UserMessageItem


class ModelEventHandler:
    """Takes the model's events in the order in which it told them."""

    def __init__(
        self,
        ctx: SessionContext,
        *,
        tool_calls: ToolCallManager,
        guardrails: GuardrailMonitor,
        reconnector: Reconnector,
        abort: Callable[[BaseException | None], None],
    ) -> None:
        self._ctx, self._tool_calls, self._guardrails, self._reconnector = ctx, tool_calls, guardrails, reconnector
        self._abort = abort
        self._turns = TurnTracker(ctx, guardrails=guardrails)
        self._responses_by_id = ctx.responses.by_id
        self._speech_started_at: float | None = None

    def handle(self, event: told.RealtimeModelEvent) -> Awaitable[None] | None:
        """Do what the event asks for. If there is something to wait for before the next event, it is given back."""
        room = self._ctx
        step = _HANDLERS.get(type(event))
        if step is None:
            raw = RealtimeRawModelEvent(event, room.info)
            room.broadcast.put_droppable(raw, get_payload_size(raw))
            return None
        size = len(event.data) if type(event) is told.RealtimeModelAudioEvent else 0
        room.broadcast.put_droppable(RealtimeRawModelEvent(event, room.info), size)
        try:
            return step(self, event)
        except Exception as error:  # noqa: BLE001 - a strange event must not stop the model's reader
            log.warning("the event %r could not be handled: %s", event.type, error, exc_info=error)
            room.emit_error(error)
            return None

    def on_connection_lost(self) -> None:
        """The connection is gone, and with it what was under way."""
        room = self._ctx
        room.user_is_speaking = False
        room.history.mark_all_transcripts_unavailable()
        self._turns.on_connection_lost()
        self._ctx.write_requested.set()

    def _on_audio(self, event: told.RealtimeModelAudioEvent) -> None:
        room = self._ctx
        response = self._responses_by_id.get(event.response_id) or self._ensure_response(event.response_id)
        if response.muted:
            return
        lasts_ms = room.history.add_audio(event.item_id, event.content_index, len(event.data))
        response.last_audio_item_id = event.item_id
        audio = RealtimeAudio(event, event.item_id, event.content_index, room.info)
        if self._guardrails.holds_back_audio:
            self._guardrails.hold_audio(response, audio, lasts_ms)
        else:
            room.play(response, audio, lasts_ms)

    def _on_audio_format(self, event: told.RealtimeModelAudioFormatEvent) -> None:
        self._ctx.history.set_audio_format(parse_audio_format(event.format))

    def _on_text_delta(
        self, event: told.RealtimeModelTranscriptDeltaEvent | told.RealtimeModelOutputTextDeltaEvent
    ) -> None:
        room = self._ctx
        response = self._responses_by_id.get(event.response_id) or self._ensure_response(event.response_id)
        spoken = event.type == "transcript_delta"
        response.produced_output = response.produced_output or not spoken
        item_id, delta = event.item_id, event.delta
        if room.history.append_delta(item_id, delta, response.id, content_index=event.content_index, spoken=spoken):
            room.emit_history_added(item_id)
        room.broadcast.put_droppable(RealtimeTranscriptDelta(item_id, delta, response.id, room.info))
        if response.resolved_agent.guardrails and not response.tripped:
            self._guardrails.add_text(response, item_id, event.content_index, delta)

    def _on_text_done(self, event: told.RealtimeModelTextDoneEvent) -> None:
        response = self._ensure_response(event.response_id)
        self._ctx.history.set_text(event.item_id, event.text, content_index=event.content_index)
        self._complete_text(response, event.item_id, event.content_index, event.text)

    def _complete_text(self, response: TrackedResponse, item_id: str, content_index: int, text: str) -> None:
        if response.resolved_agent.guardrails and not response.tripped:
            self._guardrails.complete_text(response, item_id, content_index, text)

    def _on_audio_done(self, event: told.RealtimeModelAudioDoneEvent) -> None:
        room = self._ctx
        over = RealtimeAudioEnd(room.info, event.item_id, event.content_index)
        response = room.responses.find_by_audio(event.item_id, event.response_id)
        if response is None or not self._guardrails.holds_back_audio:
            room.emit(over)
        elif not response.muted:
            self._guardrails.hold_audio(response, over)

    def _on_audio_interrupted(self, event: told.RealtimeModelAudioInterruptedEvent) -> None:
        room = self._ctx
        response = room.responses.find_by_audio(event.item_id, event.response_id)
        asked_for = response is not None and (response.tripped or response.interrupted_at is not None)
        if event.audio_end_ms is not None:
            room.truncate(event.item_id, event.content_index, event.audio_end_ms)
        if response is not None:
            room.stop_playback(response)
            by_user = room.user_is_speaking and not response.tripped
            stop = self._guardrails.interrupt if by_user else self._guardrails.discard_audio
            stop(response)
        if event.from_previous_connection and event.item_id in room.history and room.connection_up.is_set():
            room.start_task(resend_item(room, event.item_id), f"cutting {event.item_id}")
        place = (event.item_id, event.content_index)
        room.broadcast.discard(lambda it: isinstance(it, RealtimeAudio) and (it.item_id, it.content_index) == place)
        room.emit(RealtimeAudioInterrupted(room.info, *place))
        if not asked_for:
            since = room.now() if self._speech_started_at is None else self._speech_started_at
            if response is not None and not response.ended:
                response.interrupted_at = since
            else:
                room.record_metric("interruption", (room.now() - since) * 1000, event.item_id)
            self._tool_calls.handle_barge_in()

    def _on_item_truncated(self, event: told.RealtimeModelItemTruncatedEvent) -> None:
        self._ctx.truncate(event.item_id, event.content_index, event.audio_end_ms)

    def _on_speech_started(self, event: told.RealtimeModelSpeechStartedEvent) -> None:
        self._ctx.user_is_speaking = True
        self._speech_started_at = self._ctx.now()
        self._tool_calls.handle_barge_in()

    def _on_speech_stopped(self, event: told.RealtimeModelSpeechStoppedEvent) -> None:
        self._ctx.user_is_speaking, self._speech_started_at = False, None
        self._ctx.requested_at = self._ctx.now()

    def _on_transcription_completed(self, event: told.RealtimeModelInputAudioTranscriptionCompletedEvent) -> None:
        room = self._ctx
        if room.history.set_transcript(event.item_id, event.transcript):
            room.emit_history_added(event.item_id)
        else:
            room.emit_history_updated()
        self._ctx.write_requested.set()

    def _on_transcription_failed(self, event: told.RealtimeModelInputAudioTranscriptionFailedEvent) -> None:
        self._ctx.history.mark_transcript_unavailable(event.item_id)
        if event.error is not None:
            self._ctx.emit_error(event.error)
        self._ctx.write_requested.set()

    def _on_input_timeout(self, event: told.RealtimeModelInputAudioTimeoutTriggeredEvent) -> None:
        start, end = event.audio_start_ms, event.audio_end_ms
        self._ctx.emit(
            RealtimeInputAudioTimeoutTriggered(
                self._ctx.info, item_id=event.item_id, audio_start_ms=start, audio_end_ms=end
            )
        )

    def _on_item_updated(self, event: told.RealtimeModelItemUpdatedEvent) -> None:
        room, item, known = self._ctx, event.item, self._ctx.history.revision
        if room.history.upsert_item(item, response_id=event.response_id):
            room.emit_history_added(item.item_id)
            if isinstance(item, UserMessageItem):
                room.resend_queue.mark_confirmed(item)
        elif room.history.revision != known:
            room.emit_history_updated()
        response = room.responses.get(event.response_id)
        if response is not None and isinstance(item, AssistantMessageItem) and item.status == "completed":
            for index, part in enumerate(item.content):  # A server may tell the words by this alone.
                if text := part.text if isinstance(part, AssistantText) else part.transcript:
                    self._complete_text(response, item.item_id, index, text)
        self._ctx.write_requested.set()

    def _on_item_deleted(self, event: told.RealtimeModelItemDeletedEvent) -> None:
        if self._ctx.history.delete(event.item_id):
            self._ctx.emit_history_updated()

    def _on_turn_started(self, event: told.RealtimeModelTurnStartedEvent) -> None:
        self._turns.on_started(event)

    def _on_turn_ended(self, event: told.RealtimeModelTurnEndedEvent) -> None:
        self._turns.on_ended(event)

    def _on_usage(self, event: told.RealtimeModelUsageEvent) -> None:
        room = self._ctx
        room.run_context.usage.add(event.usage)
        room.emit(
            RealtimeUsage(
                event.usage,
                event.response_id,
                room.info,
                input_tokens_details=event.input_tokens_details,
                output_tokens_details=event.output_tokens_details,
            )
        )

    def _on_error(self, event: told.RealtimeModelErrorEvent) -> None:
        error = event.error
        if isinstance(error, ResponseRefused) and error.retryable and isinstance(error.error, ConnectionLost):
            self._ctx.resend_queue.response_pending = True  # The next connection is asked.
        else:
            self._ctx.emit_error(error)

    def _on_exception(self, event: told.RealtimeModelExceptionEvent) -> None:
        self._ctx.emit_error(event.exception)
        self._abort(event.exception)

    def _on_connection_status(self, event: told.RealtimeModelConnectionStatusEvent) -> None:
        if event.status == "disconnected":
            self._reconnector.on_connection_lost(make_connection_error(event.error, event.code))

    def _on_end_of_stream(self, event: told.RealtimeModelEndOfStreamEvent) -> None:
        if self._ctx.state is not RealtimeState.RECONNECTING:  # There another connection is under way.
            self._abort(None)

    def _on_tool_call(self, event: told.RealtimeModelToolCallEvent) -> Awaitable[None] | None:
        self._ensure_response(event.response_id).produced_output = True  # Asked again, it would make the call again.
        waiting = self._tool_calls.accept(event)
        self._ctx.write_requested.set()
        return waiting

    def _ensure_response(self, response_id: str | None) -> TrackedResponse:
        responses = self._ctx.responses
        if response_id is not None and responses.active is None and responses.get(response_id) is None:
            self._turns.on_started(told.RealtimeModelTurnStartedEvent(response_id=response_id))  # That was not told.
        return self._ctx.responses.get_or_create(response_id, self._ctx.resolved_agent, now=self._ctx.now())


_HANDLERS: dict[type, Callable[[ModelEventHandler, Any], Awaitable[None] | None]] = {
    told.RealtimeModelAudioEvent: ModelEventHandler._on_audio,
    told.RealtimeModelAudioFormatEvent: ModelEventHandler._on_audio_format,
    told.RealtimeModelTranscriptDeltaEvent: ModelEventHandler._on_text_delta,
    told.RealtimeModelOutputTextDeltaEvent: ModelEventHandler._on_text_delta,
    told.RealtimeModelTextDoneEvent: ModelEventHandler._on_text_done,
    told.RealtimeModelAudioDoneEvent: ModelEventHandler._on_audio_done,
    told.RealtimeModelAudioInterruptedEvent: ModelEventHandler._on_audio_interrupted,
    told.RealtimeModelItemTruncatedEvent: ModelEventHandler._on_item_truncated,
    told.RealtimeModelSpeechStartedEvent: ModelEventHandler._on_speech_started,
    told.RealtimeModelSpeechStoppedEvent: ModelEventHandler._on_speech_stopped,
    told.RealtimeModelInputAudioTranscriptionCompletedEvent: ModelEventHandler._on_transcription_completed,
    told.RealtimeModelInputAudioTranscriptionFailedEvent: ModelEventHandler._on_transcription_failed,
    told.RealtimeModelInputAudioTimeoutTriggeredEvent: ModelEventHandler._on_input_timeout,
    told.RealtimeModelItemUpdatedEvent: ModelEventHandler._on_item_updated,
    told.RealtimeModelItemDeletedEvent: ModelEventHandler._on_item_deleted,
    told.RealtimeModelTurnStartedEvent: ModelEventHandler._on_turn_started,
    told.RealtimeModelTurnEndedEvent: ModelEventHandler._on_turn_ended,
    told.RealtimeModelToolCallEvent: ModelEventHandler._on_tool_call,
    told.RealtimeModelUsageEvent: ModelEventHandler._on_usage,
    told.RealtimeModelErrorEvent: ModelEventHandler._on_error,
    told.RealtimeModelExceptionEvent: ModelEventHandler._on_exception,
    told.RealtimeModelConnectionStatusEvent: ModelEventHandler._on_connection_status,
    told.RealtimeModelEndOfStreamEvent: ModelEventHandler._on_end_of_stream,
}
