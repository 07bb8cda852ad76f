"""Client events: one function for each kind of model input, listed in ``SEND_HANDLERS``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from standfast.agents.errors import UserError
from standfast.base.ids import new_id
from standfast.realtime.model import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)
from standfast.realtime.openai._protocol.items import build_user_item
from standfast.realtime.openai._protocol.out_of_band import is_out_of_band
from standfast.realtime.openai.codec import encode_audio_append, encode_message

if TYPE_CHECKING:
    from standfast.realtime.openai._protocol.client import RealtimeClient

_MAX_AUDIO_CHUNK = 2**20  # bytes of audio in one message; servers accept 15 MiB


def send_audio(client: "RealtimeClient", event: RealtimeModelSendAudio) -> None:
    for start in range(0, len(event.audio), _MAX_AUDIO_CHUNK):
        client.outgoing.append(encode_audio_append(event.audio[start : start + _MAX_AUDIO_CHUNK]))
    if event.commit:
        client.queue_message({"type": "input_audio_buffer.commit"})


def send_user_input(client: "RealtimeClient", event: RealtimeModelSendUserInput) -> None:
    item = build_user_item(event.user_input)
    if event.follow_up:
        item["id"] = new_id("item")  # The server's confirmation is recognised by this id.
    client.queue_message({"type": "conversation.item.create", "item": item})
    client.response_queue.request("user", after_item_id=item.get("id"))


def send_tool_output(client: "RealtimeClient", event: RealtimeModelSendToolOutput) -> None:
    call_id = event.tool_call.call_id
    item = {"type": "function_call_output", "call_id": call_id, "output": event.output}
    client.queue_message({"type": "conversation.item.create", "item": item})
    if event.start_response:
        client.response_queue.request(f"tool:{call_id}", after_item_id=call_id)


def send_interrupt(client: "RealtimeClient", event: RealtimeModelSendInterrupt) -> None:
    target = event.response_id or client.response_queue.active_response_id
    if not event.cancel_response_only:
        client.stop_playback(event.response_id, include_previous=event.playback_only)
    if not event.playback_only:
        client.mute(target)
        client.response_queue.cancel(event.response_id, force=event.force_response_cancel)
    if not event.cancel_response_only:
        client.clear_server_output(event.response_id)


def send_settings(client: "RealtimeClient", event: RealtimeModelSendSessionUpdate) -> None:
    client.update_settings(event.session_settings)


def send_raw_message(client: "RealtimeClient", event: RealtimeModelSendRawMessage) -> None:
    message = event.message
    parts = message.get("other_data") or {}
    if not isinstance(message.get("type"), str):
        raise UserError("a raw message must have a type: {'type': 'response.create', 'other_data': {...}}")
    _validate_raw_parts(parts)
    match message["type"]:
        case "response.create":
            response = parts.get("response") or {}
            queue = client.out_of_band if is_out_of_band(response) else client.response_queue
            queue.request("raw", response, event_id=parts.get("event_id"))
        case "session.update":
            update = client.session_updates.create(parts.get("session"), parts.get("event_id"))
            client.queue_message({"type": "session.update", **parts, "event_id": update.event_id})
            client.session_updates.mark_sent(update)
        case kind:
            if kind == "conversation.item.create":
                client.playback.include_item((parts.get("item") or {}).get("id"))
            elif kind == "conversation.item.truncate" and "audio_end_ms" in parts:
                client.playback.truncate(parts.get("item_id"), parts.get("content_index"), parts["audio_end_ms"])
            client.queue_message({"type": kind, **parts})


def _validate_raw_parts(parts: dict[str, Any]) -> None:
    """Reject at once what cannot be sent: later, in the queue, it would block the requests behind it."""
    try:
        encode_message(parts)
    except (TypeError, ValueError) as error:
        raise UserError(f"the other_data of a raw message must be JSON serialisable: {error}") from error
    response = parts.get("response") or {}
    if not isinstance(response, dict) or not isinstance(response.get("metadata") or {}, dict):
        raise UserError("the response in a raw message must be a dict, and so must its metadata")


SEND_HANDLERS: dict[type, Callable[["RealtimeClient", Any], None]] = {
    RealtimeModelSendAudio: send_audio,
    RealtimeModelSendUserInput: send_user_input,
    RealtimeModelSendToolOutput: send_tool_output,
    RealtimeModelSendInterrupt: send_interrupt,
    RealtimeModelSendSessionUpdate: send_settings,
    RealtimeModelSendRawMessage: send_raw_message,
}
