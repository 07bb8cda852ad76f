"""Server events: one function for each type of message, listed in ``SERVER_EVENT_HANDLERS``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.realtime.audio import parse_audio_format
from standfast.realtime.items import InputAudio, RealtimeItem, UserMessageItem
from standfast.realtime.model_events import (
    RealtimeModelAudioDoneEvent,
    RealtimeModelErrorEvent,
    RealtimeModelInputAudioTimeoutTriggeredEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelInputAudioTranscriptionFailedEvent,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemTruncatedEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOtherEvent,
    RealtimeModelSpeechStartedEvent,
    RealtimeModelSpeechStoppedEvent,
    RealtimeModelTextDoneEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
    RealtimeResponseStatus,
)
from standfast.realtime.openai._protocol.items import build_usage_event, parse_message_item

if TYPE_CHECKING:
    from standfast.realtime.openai._protocol.client import RealtimeClient

ServerEvent: TypeAlias = dict[str, Any]
ServerEventHandler: TypeAlias = "Callable[[RealtimeClient, ServerEvent], None]"


def handle_other(client: "RealtimeClient", message: ServerEvent) -> None:
    """Pass a message on to listeners as it is."""
    client.emit(RealtimeModelOtherEvent(message))


def handle_session(client: "RealtimeClient", message: ServerEvent) -> None:
    audio = message["session"].get("audio") or {}
    if (format := parse_audio_format((audio.get("output") or {}).get("format"))) is not None:
        client.set_audio_format(format)
    audio_input = audio.get("input") or {}
    client.server_transcribes = audio_input.get("transcription", "unknown") is not None
    detection = audio_input.get("turn_detection") or {}
    client.server_interrupts = detection.get("interrupt_response") is True
    client.server_creates_responses = bool(detection) and detection.get("create_response") is not False
    if not detection:
        client.response_queue.end_user_turn(server_responds=False)  # Without detection its end is never reported.
    if message["type"] == "session.updated":
        client.session_updates.handle_accepted(message["session"])
    else:
        client.session_updates.session = message["session"]
    handle_other(client, message)


def handle_error(client: "RealtimeClient", message: ServerEvent) -> None:
    """Report an error to the request or settings update that caused it, or else to listeners."""
    error = message["error"]
    if client.out_of_band.handle_error(error):
        return
    active = client.response_queue.active_response_id
    handled = client.response_queue.handle_error(error)
    if active is not None and client.response_queue.active_response_id is None:
        client.end_turn(RealtimeModelTurnEndedEvent(response_id=active, status="lost", reason=error["code"]))
    if not handled and not client.session_updates.handle_rejected(error):
        client.emit(RealtimeModelErrorEvent(error))


def handle_item(client: "RealtimeClient", message: ServerEvent) -> None:
    raw, response_id = message["item"], message.get("response_id")
    previous = client.item_tracker.resolve_previous_id(raw["id"], message.get("previous_item_id"))
    item: RealtimeItem | None = None
    match raw.get("type"):
        case "message":
            client.response_queue.confirm_item(raw["id"])
            item = parse_message_item(raw, previous)
        case "function_call" if message["type"] == "response.output_item.done":
            emit_function_call(client, raw, response_id)
            return
        case "function_call" if raw.get("status") == "completed":
            item = client.item_tracker.record_call(raw, previous)
        case "function_call_output":
            client.response_queue.confirm_item(raw["call_id"])
            item = client.item_tracker.match_output(raw)
    if item is None:
        handle_other(client, message)
        return
    client.emit(RealtimeModelItemUpdatedEvent(item, response_id=response_id))
    if isinstance(item, UserMessageItem) and not client.server_transcribes:
        for index, part in enumerate(item.content):
            if isinstance(part, InputAudio) and part.transcript is None:
                client.emit(RealtimeModelInputAudioTranscriptionFailedEvent(item.item_id, index, None))


def emit_function_call(client: "RealtimeClient", raw: ServerEvent, response_id: str | None) -> None:
    """Emit a complete tool call once; an incomplete one is never emitted."""
    if raw.get("status") not in (None, "completed") or not client.item_tracker.claim_call(raw["call_id"]):
        return
    previous = client.item_tracker.resolve_previous_id(raw["id"], None)
    client.emit(RealtimeModelItemUpdatedEvent(client.item_tracker.record_call(raw, previous), response_id=response_id))
    client.emit(
        RealtimeModelToolCallEvent(
            raw["name"], raw["call_id"], raw["arguments"], raw["id"], previous, response_id=response_id
        )
    )


def handle_item_deleted(client: "RealtimeClient", message: ServerEvent) -> None:
    client.playback.remove_item(message["item_id"])
    client.emit(RealtimeModelItemDeletedEvent(message["item_id"]))


def handle_item_truncated(client: "RealtimeClient", message: ServerEvent) -> None:
    client.emit(RealtimeModelItemTruncatedEvent(message["item_id"], message["content_index"], message["audio_end_ms"]))


def handle_transcription_completed(client: "RealtimeClient", message: ServerEvent) -> None:
    client.emit(
        RealtimeModelInputAudioTranscriptionCompletedEvent(
            message["item_id"], _require_text(message["transcript"]), content_index=message.get("content_index", 0)
        )
    )


def handle_transcription_failed(client: "RealtimeClient", message: ServerEvent) -> None:
    client.emit(
        RealtimeModelInputAudioTranscriptionFailedEvent(
            message["item_id"], message.get("content_index", 0), message.get("error") or {}
        )
    )


def handle_speech_started(client: "RealtimeClient", message: ServerEvent) -> None:
    """Stop the model because the user speaks. Late audio is dropped if the server stops its response itself."""
    client.emit(RealtimeModelSpeechStartedEvent(message.get("item_id"), message.get("audio_start_ms")))
    client.response_queue.start_user_turn()
    client.stop_playback()
    active = client.response_queue.active_response_id
    client.mute(active)
    if active is not None and not client.server_interrupts:
        client.response_queue.cancel(active)
    if not client.server_interrupts:
        client.clear_server_output()


def handle_speech_stopped(client: "RealtimeClient", message: ServerEvent) -> None:
    client.response_queue.end_user_turn(server_responds=client.server_creates_responses)
    client.emit(RealtimeModelSpeechStoppedEvent(message.get("item_id"), message.get("audio_end_ms")))


def handle_buffer_emptied(client: "RealtimeClient", message: ServerEvent) -> None:
    """End the user's turn: its end is not reported for audio that the program committed or cleared itself."""
    client.response_queue.end_user_turn(server_responds=False)
    handle_other(client, message)


def handle_server_playback(client: "RealtimeClient", message: ServerEvent) -> None:
    client.server_playing_response_id = (
        message["response_id"] if message["type"] == "output_audio_buffer.started" else None
    )
    handle_other(client, message)


def handle_idle_timeout(client: "RealtimeClient", message: ServerEvent) -> None:
    client.emit(
        RealtimeModelInputAudioTimeoutTriggeredEvent(
            message["item_id"], message["audio_start_ms"], message["audio_end_ms"]
        )
    )


def handle_response_created(client: "RealtimeClient", message: ServerEvent) -> None:
    response = message["response"]
    # If its end came first, out of order, it must not stay active for ever.
    if client.out_of_band.claim(
        response, in_conversation=client.response_queue.is_own_response(response)
    ) or client.has_ended(response["id"]):
        handle_other(client, message)
        return
    if client.response_queue.handle_created(response):
        client.mute(response["id"])
    client.emit(
        RealtimeModelTurnStartedEvent(
            response_id=response["id"], metadata=response.get("metadata"), retryable=client.response_queue.retryable
        )
    )


def handle_response_done(client: "RealtimeClient", message: ServerEvent) -> None:
    response = message["response"]
    response_id: str | None = response.get("id")
    status: RealtimeResponseStatus = response.get("status") or "completed"
    if client.out_of_band.claim(response, in_conversation=client.response_queue.is_own_response(response)):
        if response.get("usage") and client.mark_usage_counted(response_id):
            client.emit(build_usage_event(response["usage"], response_id))
        handle_other(client, message)
        return
    client.response_queue.handle_done(response)
    for raw in response.get("output") or ():
        if status == "completed" and raw.get("type") == "function_call":
            emit_function_call(client, raw, response_id)
    if response.get("usage") and client.mark_usage_counted(response_id):
        client.emit(build_usage_event(response["usage"], response_id))
    details = response.get("status_details") or {}
    client.end_turn(
        RealtimeModelTurnEndedEvent(
            response_id=response_id,
            status=status,
            reason=details.get("reason"),
            error=details.get("error"),
            metadata=response.get("metadata"),
        )
    )


def handle_text_done(client: "RealtimeClient", message: ServerEvent) -> None:
    text = _require_text(message["transcript"] if "transcript" in message else message["text"])
    client.emit(
        RealtimeModelTextDoneEvent(
            message["item_id"], text, message["response_id"], content_index=message.get("content_index", 0)
        )
    )


def handle_audio_done(client: "RealtimeClient", message: ServerEvent) -> None:
    response_id = message.get("response_id")
    if not client.is_muted(response_id):
        client.emit(
            RealtimeModelAudioDoneEvent(message["item_id"], message.get("content_index", 0), response_id=response_id)
        )


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r}")
    return value


def reject_malformed_delta(client: "RealtimeClient", message: ServerEvent) -> None:
    """Raise for a delta that did not match its struct."""
    raise ValueError("the delta has missing or invalid fields")


SERVER_EVENT_HANDLERS: dict[str, ServerEventHandler] = {
    "session.created": handle_session,
    "session.updated": handle_session,
    "error": handle_error,
    "conversation.item.added": handle_item,
    "conversation.item.created": handle_item,
    "conversation.item.retrieved": handle_item,
    "conversation.item.deleted": handle_item_deleted,
    "conversation.item.truncated": handle_item_truncated,
    "conversation.item.input_audio_transcription.completed": handle_transcription_completed,
    "conversation.item.input_audio_transcription.failed": handle_transcription_failed,
    "input_audio_buffer.speech_started": handle_speech_started,
    "input_audio_buffer.speech_stopped": handle_speech_stopped,
    "input_audio_buffer.committed": handle_buffer_emptied,
    "input_audio_buffer.cleared": handle_buffer_emptied,
    "input_audio_buffer.timeout_triggered": handle_idle_timeout,
    "output_audio_buffer.started": handle_server_playback,
    "output_audio_buffer.stopped": handle_server_playback,
    "output_audio_buffer.cleared": handle_server_playback,
    "response.created": handle_response_created,
    "response.done": handle_response_done,
    "response.output_item.added": handle_item,
    "response.output_item.done": handle_item,
    "response.output_text.done": handle_text_done,
    "response.output_audio_transcript.done": handle_text_done,
    "response.output_audio.done": handle_audio_done,
    "response.output_audio.delta": reject_malformed_delta,
    "response.output_audio_transcript.delta": reject_malformed_delta,
    "response.output_text.delta": reject_malformed_delta,
}
