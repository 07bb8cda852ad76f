"""What a model is told, as messages of the client: one small function for each kind, listed at the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.agents.errors import UserError
from holdfast.base.ids import new_id
from holdfast.realtime.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)
from holdfast.realtime.openai.asides import is_aside
from holdfast.realtime.openai.frames import write, write_audio
from holdfast.realtime.openai.items import user_item

if TYPE_CHECKING:
    from holdfast.realtime.openai.client import RealtimeClient

_PIECE = 2**20  # bytes of audio in one message; servers take 15 MiB


def audio(client: "RealtimeClient", event: RealtimeModelSendAudio) -> None:
    for start in range(0, len(event.audio), _PIECE):
        client.outgoing.append(write_audio(event.audio[start : start + _PIECE]))
    if event.commit:
        client.say({"type": "input_audio_buffer.commit"})


def user_input(client: "RealtimeClient", event: RealtimeModelSendUserInput) -> None:
    item = user_item(event.user_input)
    if event.follow_up:
        item["id"] = new_id("item")  # It is recognised by that when the server has it.
    client.say({"type": "conversation.item.create", "item": item})
    client.gate.request("user", follows=item.get("id"))


def tool_output(client: "RealtimeClient", event: RealtimeModelSendToolOutput) -> None:
    call_id = event.tool_call.call_id
    item = {"type": "function_call_output", "call_id": call_id, "output": event.output}
    client.say({"type": "conversation.item.create", "item": item})
    if event.start_response:
        client.gate.request(f"tool:{call_id}", follows=call_id)


def interrupt(client: "RealtimeClient", event: RealtimeModelSendInterrupt) -> None:
    target = event.response_id or client.gate.active
    if not event.cancel_response_only:
        client.stop_playing(event.response_id, untold=event.playback_only)
    if not event.playback_only:
        client.mute(target)
        client.gate.cancel(event.response_id, force=event.force_response_cancel)
    if not event.cancel_response_only:
        client.hush(event.response_id)


def settings(client: "RealtimeClient", event: RealtimeModelSendSessionUpdate) -> None:
    client.update(event.session_settings)


def raw(client: "RealtimeClient", event: RealtimeModelSendRawMessage) -> None:
    message = event.message
    parts = message.get("other_data") or {}
    if not isinstance(message.get("type"), str):
        raise UserError("a raw message needs a type: {'type': 'response.create', 'other_data': {...}}")
    _check(parts)
    match message["type"]:
        case "response.create":
            wanted = parts.get("response") or {}
            who = client.asides if is_aside(wanted) else client.gate
            who.request("raw", wanted, event_id=parts.get("event_id"))
        case "session.update":
            update = client.updates.made(parts.get("session"), parts.get("event_id"))
            client.say({"type": "session.update", **parts, "event_id": update.event_id})
            client.updates.sent(update)
        case kind:
            if kind == "conversation.item.create":
                client.playback.retold((parts.get("item") or {}).get("id"))
            elif kind == "conversation.item.truncate" and "audio_end_ms" in parts:
                client.playback.truncated(parts.get("item_id"), parts.get("content_index"), parts["audio_end_ms"])
            client.say({"type": kind, **parts})


def _check(parts: dict[str, Any]) -> None:
    """What cannot be sent is refused at once, and not when its turn has come: then others would wait behind it."""
    try:
        write(parts)
    except (TypeError, ValueError) as error:
        raise UserError(f"a raw message must be JSON: {error}") from error
    response = parts.get("response") or {}
    if not isinstance(response, dict) or not isinstance(response.get("metadata") or {}, dict):
        raise UserError("the response in a raw message must be a dict, and so must its metadata")


SAYERS: dict[type, Callable[["RealtimeClient", Any], None]] = {
    RealtimeModelSendAudio: audio,
    RealtimeModelSendUserInput: user_input,
    RealtimeModelSendToolOutput: tool_output,
    RealtimeModelSendInterrupt: interrupt,
    RealtimeModelSendSessionUpdate: settings,
    RealtimeModelSendRawMessage: raw,
}
