"""The handlers of model events. No handler awaits.

Everything else that changes a session (a tool that ends, a guardrail that trips, a call of the program) happens between
two handlers and never inside one.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from standfast.realtime import model_events as events
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import RealtimeState, SessionContext, SessionOutcome, log
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.interruption import Interruption
from standfast.realtime._session.playback_clock import AudioOutput, PlaybackClock
from standfast.realtime._session.reconnect import Reconnector, make_connection_error
from standfast.realtime._session.responses import ResponseRegistry, TrackedResponse
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_calls import ToolCallRunner
from standfast.realtime._session.turns import TurnTracker
from standfast.realtime.audio import parse_audio_format
from standfast.realtime.errors import ConnectionLost, ResponseRefused
from standfast.realtime.events import (
    RealtimeAudio,
    RealtimeAudioEnd,
    RealtimeInputAudioTimeoutTriggered,
    RealtimeRawModelEvent,
    RealtimeTranscriptDelta,
    RealtimeUsage,
    get_payload_size,
)
from standfast.realtime.items import AssistantMessageItem, AssistantText, UserMessageItem


class ModelEventHandler:
    """Handles the events of the model, in their order."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        history: SessionHistory,
        clock: PlaybackClock,
        output: AudioOutput,
        tool_calls: ToolCallRunner,
        guardrails: GuardrailMonitor,
        turns: TurnTracker,
        interruption: Interruption,
        reconnector: Reconnector,
        outcome: SessionOutcome,
    ) -> None:
        self._ctx, self._connection, self._responses = ctx, connection, responses
        self._history, self._clock, self._output = history, clock, output
        self._tool_calls, self._guardrails, self._turns = tool_calls, guardrails, turns
        self._interruption, self._reconnector, self._outcome = interruption, reconnector, outcome
        self._conversation, self._responses_by_id = history.conversation, responses.by_id

    def handle(self, event: events.RealtimeModelEvent) -> Awaitable[None] | None:
        """Handle one event. Returns what the model must await before it passes the next event, if anything."""
        ctx = self._ctx
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raw = RealtimeRawModelEvent(event, ctx.info)
            ctx.broadcast.put_droppable(raw, get_payload_size(raw))
            return None
        size = len(event.data) if type(event) is events.RealtimeModelAudioEvent else 0
        ctx.broadcast.put_droppable(RealtimeRawModelEvent(event, ctx.info), size)
        try:
            return handler(self, event)
        except Exception as error:  # noqa: BLE001 - an invalid event must not stop the delivery of others
            log.warning("the event %r could not be handled: %s", event.type, error, exc_info=error)
            ctx.emit_error(error)
            return None

    def _on_audio(self, event: events.RealtimeModelAudioEvent) -> None:
        response = self._responses_by_id.get(event.response_id) or self._turns.ensure_response(event.response_id)
        if response.muted:
            return
        duration_ms = self._clock.receive(event.item_id, event.content_index, len(event.data))
        response.last_audio_item_id = event.item_id
        audio = RealtimeAudio(event, event.item_id, event.content_index, self._ctx.info)
        if self._guardrails.holds_back_audio:
            self._guardrails.hold_audio(response, audio, duration_ms)
        else:
            self._output.play(response, audio, duration_ms)

    def _on_audio_format(self, event: events.RealtimeModelAudioFormatEvent) -> None:
        self._clock.set_format(parse_audio_format(event.format))

    def _on_text_delta(
        self, event: events.RealtimeModelTranscriptDeltaEvent | events.RealtimeModelOutputTextDeltaEvent
    ) -> None:
        ctx = self._ctx
        response = self._responses_by_id.get(event.response_id) or self._turns.ensure_response(event.response_id)
        spoken = event.type == "transcript_delta"
        response.produced_output = response.produced_output or not spoken
        item_id, delta = event.item_id, event.delta
        if self._conversation.append_delta(
            item_id, delta, response.id, content_index=event.content_index, spoken=spoken
        ):
            self._history.emit_added(item_id)
        ctx.broadcast.put_droppable(RealtimeTranscriptDelta(item_id, delta, response.id, ctx.info))
        if response.resolved_agent.guardrails and not response.tripped:
            self._guardrails.add_text(response, item_id, event.content_index, delta)

    def _on_text_done(self, event: events.RealtimeModelTextDoneEvent) -> None:
        response = self._turns.ensure_response(event.response_id)
        self._conversation.set_text(event.item_id, event.text, content_index=event.content_index)
        self._complete_text(response, event.item_id, event.content_index, event.text)

    def _complete_text(self, response: TrackedResponse, item_id: str, content_index: int, text: str) -> None:
        if response.resolved_agent.guardrails and not response.tripped:
            self._guardrails.complete_text(response, item_id, content_index, text)

    def _on_audio_done(self, event: events.RealtimeModelAudioDoneEvent) -> None:
        end = RealtimeAudioEnd(self._ctx.info, event.item_id, event.content_index)
        response = self._responses.find_by_audio(event.item_id, event.response_id)
        if response is None or not self._guardrails.holds_back_audio:
            self._ctx.emit(end)
        elif not response.muted:
            self._guardrails.hold_audio(response, end)

    def _on_audio_interrupted(self, event: events.RealtimeModelAudioInterruptedEvent) -> None:
        self._interruption.on_audio_interrupted(event)

    def _on_item_truncated(self, event: events.RealtimeModelItemTruncatedEvent) -> None:
        self._history.truncate(event.item_id, event.content_index, event.audio_end_ms)

    def _on_speech_started(self, event: events.RealtimeModelSpeechStartedEvent) -> None:
        self._turns.on_speech_started()
        self._tool_calls.handle_barge_in()

    def _on_speech_stopped(self, event: events.RealtimeModelSpeechStoppedEvent) -> None:
        self._turns.on_speech_stopped()

    def _on_transcription_completed(self, event: events.RealtimeModelInputAudioTranscriptionCompletedEvent) -> None:
        if self._conversation.set_transcript(event.item_id, event.transcript):
            self._history.emit_added(event.item_id)
        else:
            self._history.emit_updated()
        self._history.write_requested.set()

    def _on_transcription_failed(self, event: events.RealtimeModelInputAudioTranscriptionFailedEvent) -> None:
        self._conversation.mark_transcript_unavailable(event.item_id)
        if event.error is not None:
            self._ctx.emit_error(event.error)
        self._history.write_requested.set()

    def _on_input_timeout(self, event: events.RealtimeModelInputAudioTimeoutTriggeredEvent) -> None:
        start, end = event.audio_start_ms, event.audio_end_ms
        self._ctx.emit(
            RealtimeInputAudioTimeoutTriggered(
                self._ctx.info, item_id=event.item_id, audio_start_ms=start, audio_end_ms=end
            )
        )

    def _on_item_updated(self, event: events.RealtimeModelItemUpdatedEvent) -> None:
        item, revision = event.item, self._conversation.revision
        if self._conversation.upsert_item(item, response_id=event.response_id):
            self._history.emit_added(item.item_id)
            if isinstance(item, UserMessageItem):
                self._connection.resend_queue.mark_confirmed(item)
        elif self._conversation.revision != revision:
            self._history.emit_updated()
        response = self._responses.get(event.response_id)
        if response is not None and isinstance(item, AssistantMessageItem) and item.status == "completed":
            for index, part in enumerate(item.content):  # Some servers send the text in no other event.
                if text := part.text if isinstance(part, AssistantText) else part.transcript:
                    self._complete_text(response, item.item_id, index, text)
        self._history.write_requested.set()

    def _on_item_deleted(self, event: events.RealtimeModelItemDeletedEvent) -> None:
        if self._conversation.delete(event.item_id):
            self._history.emit_updated()

    def _on_turn_started(self, event: events.RealtimeModelTurnStartedEvent) -> None:
        self._turns.on_started(event)

    def _on_turn_ended(self, event: events.RealtimeModelTurnEndedEvent) -> None:
        self._turns.on_ended(event)

    def _on_usage(self, event: events.RealtimeModelUsageEvent) -> None:
        ctx = self._ctx
        ctx.run_context.usage.add(event.usage)
        ctx.emit(
            RealtimeUsage(
                event.usage,
                event.response_id,
                ctx.info,
                input_tokens_details=event.input_tokens_details,
                output_tokens_details=event.output_tokens_details,
            )
        )

    def _on_error(self, event: events.RealtimeModelErrorEvent) -> None:
        error = event.error
        if isinstance(error, ResponseRefused) and error.retryable and isinstance(error.error, ConnectionLost):
            self._connection.resend_queue.response_pending = True  # The next connection gets the request.
        else:
            self._ctx.emit_error(error)

    def _on_exception(self, event: events.RealtimeModelExceptionEvent) -> None:
        self._outcome.abort(event.exception)

    def _on_connection_status(self, event: events.RealtimeModelConnectionStatusEvent) -> None:
        if event.status == "disconnected":
            self._reconnector.on_connection_lost(make_connection_error(event.error, event.code))

    def _on_end_of_stream(self, event: events.RealtimeModelEndOfStreamEvent) -> None:
        if self._ctx.state is not RealtimeState.RECONNECTING:  # Otherwise another connection is on its way.
            self._outcome.abort(None)

    def _on_tool_call(self, event: events.RealtimeModelToolCallEvent) -> Awaitable[None] | None:
        # The response must not be requested again after a reconnect: that would repeat the call.
        self._turns.ensure_response(event.response_id).produced_output = True
        waiting = self._tool_calls.start_call(event)
        self._history.write_requested.set()
        return waiting


_HANDLERS: dict[type, Callable[[ModelEventHandler, Any], Awaitable[None] | None]] = {
    events.RealtimeModelAudioEvent: ModelEventHandler._on_audio,
    events.RealtimeModelAudioFormatEvent: ModelEventHandler._on_audio_format,
    events.RealtimeModelTranscriptDeltaEvent: ModelEventHandler._on_text_delta,
    events.RealtimeModelOutputTextDeltaEvent: ModelEventHandler._on_text_delta,
    events.RealtimeModelTextDoneEvent: ModelEventHandler._on_text_done,
    events.RealtimeModelAudioDoneEvent: ModelEventHandler._on_audio_done,
    events.RealtimeModelAudioInterruptedEvent: ModelEventHandler._on_audio_interrupted,
    events.RealtimeModelItemTruncatedEvent: ModelEventHandler._on_item_truncated,
    events.RealtimeModelSpeechStartedEvent: ModelEventHandler._on_speech_started,
    events.RealtimeModelSpeechStoppedEvent: ModelEventHandler._on_speech_stopped,
    events.RealtimeModelInputAudioTranscriptionCompletedEvent: ModelEventHandler._on_transcription_completed,
    events.RealtimeModelInputAudioTranscriptionFailedEvent: ModelEventHandler._on_transcription_failed,
    events.RealtimeModelInputAudioTimeoutTriggeredEvent: ModelEventHandler._on_input_timeout,
    events.RealtimeModelItemUpdatedEvent: ModelEventHandler._on_item_updated,
    events.RealtimeModelItemDeletedEvent: ModelEventHandler._on_item_deleted,
    events.RealtimeModelTurnStartedEvent: ModelEventHandler._on_turn_started,
    events.RealtimeModelTurnEndedEvent: ModelEventHandler._on_turn_ended,
    events.RealtimeModelToolCallEvent: ModelEventHandler._on_tool_call,
    events.RealtimeModelUsageEvent: ModelEventHandler._on_usage,
    events.RealtimeModelErrorEvent: ModelEventHandler._on_error,
    events.RealtimeModelExceptionEvent: ModelEventHandler._on_exception,
    events.RealtimeModelConnectionStatusEvent: ModelEventHandler._on_connection_status,
    events.RealtimeModelEndOfStreamEvent: ModelEventHandler._on_end_of_stream,
}
