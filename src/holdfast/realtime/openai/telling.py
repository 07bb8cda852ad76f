"""What the messages of the server mean: one small function for each type, listed at the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.realtime.audio import audio_format
from holdfast.realtime.items import InputAudio, RealtimeItem, UserMessageItem
from holdfast.realtime.model_events import (
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
from holdfast.realtime.openai.items import message_item
from holdfast.realtime.openai.usage import usage_event

if TYPE_CHECKING:
    from holdfast.realtime.openai.client import RealtimeClient

Message: TypeAlias = dict[str, Any]
Handler: TypeAlias = "Callable[[RealtimeClient, Message], None]"


def other(client: "RealtimeClient", message: Message) -> None:
    """Nothing to be done about it here; a listener may know better."""
    client.tell(RealtimeModelOtherEvent(message))


def session(client: "RealtimeClient", message: Message) -> None:
    audio = message["session"].get("audio") or {}
    if (format := audio_format((audio.get("output") or {}).get("format"))) is not None:
        client.use_format(format)
    heard = audio.get("input") or {}
    client.server_transcribes = heard.get("transcription", "not told") is not None
    detection = heard.get("turn_detection") or {}
    client.server_interrupts = detection.get("interrupt_response") is True
    client.server_answers = bool(detection) and detection.get("create_response") is not False
    if not detection:
        client.gate.user_stopped(answered=False)  # Nobody listens for the end of it any more.
    if message["type"] == "session.updated":
        client.updates.accepted(message["session"])
    else:
        client.updates.session = message["session"]
    other(client, message)


def error(client: "RealtimeClient", message: Message) -> None:
    """What concerns a request or a change of settings is told to whoever made it."""
    told = message["error"]
    if client.asides.failed(told):
        return
    active = client.gate.active
    settled = client.gate.failed(told)
    if active is not None and client.gate.active is None:
        client.end_turn(RealtimeModelTurnEndedEvent(response_id=active, status="lost", reason=told["code"]))
    if not settled and not client.updates.rejected(told):
        client.tell(RealtimeModelErrorEvent(told))


def item(client: "RealtimeClient", message: Message) -> None:
    raw, response_id = message["item"], message.get("response_id")
    previous = client.places.place(raw["id"], message.get("previous_item_id"))
    found: RealtimeItem | None = None
    match raw.get("type"):
        case "message":
            client.gate.knows(raw["id"])
            found = message_item(raw, previous)
        case "function_call" if message["type"] == "response.output_item.done":
            function_call(client, raw, response_id)
            return
        case "function_call" if raw.get("status") == "completed":
            found = client.places.call(raw, previous)
        case "function_call_output":
            client.gate.knows(raw["call_id"])
            found = client.places.output(raw)
    if found is None:
        other(client, message)
        return
    client.tell(RealtimeModelItemUpdatedEvent(found, response_id=response_id))
    if isinstance(found, UserMessageItem) and not client.server_transcribes:
        for index, part in enumerate(found.content):
            if isinstance(part, InputAudio) and part.transcript is None:
                client.tell(RealtimeModelInputAudioTranscriptionFailedEvent(found.item_id, index, None))


def function_call(client: "RealtimeClient", raw: Message, response_id: str | None) -> None:
    """A call that is complete is announced once; one that was cut off is not."""
    if raw.get("status") not in (None, "completed") or not client.places.announce(raw["call_id"]):
        return
    previous = client.places.place(raw["id"], None)
    client.tell(RealtimeModelItemUpdatedEvent(client.places.call(raw, previous), response_id=response_id))
    client.tell(
        RealtimeModelToolCallEvent(
            raw["name"], raw["call_id"], raw["arguments"], raw["id"], previous, response_id=response_id
        )
    )


def item_deleted(client: "RealtimeClient", message: Message) -> None:
    client.playback.forget(message["item_id"])
    client.tell(RealtimeModelItemDeletedEvent(message["item_id"]))


def item_truncated(client: "RealtimeClient", message: Message) -> None:
    client.tell(RealtimeModelItemTruncatedEvent(message["item_id"], message["content_index"], message["audio_end_ms"]))


def transcribed(client: "RealtimeClient", message: Message) -> None:
    client.tell(
        RealtimeModelInputAudioTranscriptionCompletedEvent(
            message["item_id"], _text(message["transcript"]), content_index=message.get("content_index", 0)
        )
    )


def transcription_failed(client: "RealtimeClient", message: Message) -> None:
    client.tell(
        RealtimeModelInputAudioTranscriptionFailedEvent(
            message["item_id"], message.get("content_index", 0), message.get("error") or {}
        )
    )


def speech_started(client: "RealtimeClient", message: Message) -> None:
    """The user speaks, so the model stops. Where the server stops its response itself, late audio is dropped."""
    client.tell(RealtimeModelSpeechStartedEvent(message.get("item_id"), message.get("audio_start_ms")))
    client.gate.user_speaks()
    client.stop_playing()
    active = client.gate.active
    client.mute(active)
    if active is not None and not client.server_interrupts:
        client.gate.cancel(active)
    if not client.server_interrupts:
        client.hush()


def speech_stopped(client: "RealtimeClient", message: Message) -> None:
    client.gate.user_stopped(answered=client.server_answers)
    client.tell(RealtimeModelSpeechStoppedEvent(message.get("item_id"), message.get("audio_end_ms")))


def buffer_emptied(client: "RealtimeClient", message: Message) -> None:
    """What the user was saying was made an item by the program, or thrown away: its end will not be told."""
    client.gate.user_stopped(answered=False)
    other(client, message)


def server_plays(client: "RealtimeClient", message: Message) -> None:
    client.server_plays = message["response_id"] if message["type"] == "output_audio_buffer.started" else None
    other(client, message)


def silence(client: "RealtimeClient", message: Message) -> None:
    client.tell(
        RealtimeModelInputAudioTimeoutTriggeredEvent(
            message["item_id"], message["audio_start_ms"], message["audio_end_ms"]
        )
    )


def response_created(client: "RealtimeClient", message: Message) -> None:
    response = message["response"]
    # Out of order, its end came first, and it must not seem active for ever.
    if client.asides.takes(response, claimed=client.gate.claims(response)) or client.is_over(response["id"]):
        other(client, message)
        return
    if client.gate.created(response):
        client.mute(response["id"])
    client.tell(
        RealtimeModelTurnStartedEvent(
            response_id=response["id"], metadata=response.get("metadata"), plain=client.gate.plain
        )
    )


def response_done(client: "RealtimeClient", message: Message) -> None:
    response = message["response"]
    response_id: str | None = response.get("id")
    status: RealtimeResponseStatus = response.get("status") or "completed"
    if client.asides.takes(response, claimed=client.gate.claims(response)):
        if response.get("usage") and client.counts(response_id):
            client.tell(usage_event(response["usage"], response_id))
        other(client, message)
        return
    client.gate.done(response)
    for raw in response.get("output") or ():
        if status == "completed" and raw.get("type") == "function_call":
            function_call(client, raw, response_id)
    if response.get("usage") and client.counts(response_id):
        client.tell(usage_event(response["usage"], response_id))
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


def text_done(client: "RealtimeClient", message: Message) -> None:
    text = _text(message["transcript"] if "transcript" in message else message["text"])
    client.tell(
        RealtimeModelTextDoneEvent(
            message["item_id"], text, message["response_id"], content_index=message.get("content_index", 0)
        )
    )


def audio_done(client: "RealtimeClient", message: Message) -> None:
    response_id = message.get("response_id")
    if not client.is_muted(response_id):
        client.tell(
            RealtimeModelAudioDoneEvent(message["item_id"], message.get("content_index", 0), response_id=response_id)
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def misshapen(client: "RealtimeClient", message: Message) -> None:
    """A delta that could not be read as one."""
    raise ValueError("a delta has other parts")


HANDLERS: dict[str, Handler] = {
    "session.created": session,
    "session.updated": session,
    "error": error,
    "conversation.item.added": item,
    "conversation.item.created": item,
    "conversation.item.retrieved": item,
    "conversation.item.deleted": item_deleted,
    "conversation.item.truncated": item_truncated,
    "conversation.item.input_audio_transcription.completed": transcribed,
    "conversation.item.input_audio_transcription.failed": transcription_failed,
    "input_audio_buffer.speech_started": speech_started,
    "input_audio_buffer.speech_stopped": speech_stopped,
    "input_audio_buffer.committed": buffer_emptied,
    "input_audio_buffer.cleared": buffer_emptied,
    "input_audio_buffer.timeout_triggered": silence,
    "output_audio_buffer.started": server_plays,
    "output_audio_buffer.stopped": server_plays,
    "output_audio_buffer.cleared": server_plays,
    "response.created": response_created,
    "response.done": response_done,
    "response.output_item.added": item,
    "response.output_item.done": item,
    "response.output_text.done": text_done,
    "response.output_audio_transcript.done": text_done,
    "response.output_audio.done": audio_done,
    "response.output_audio.delta": misshapen,
    "response.output_audio_transcript.delta": misshapen,
    "response.output_text.delta": misshapen,
}
