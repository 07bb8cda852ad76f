"""What a model is told, as messages of the client: one small function for each kind, listed at the end."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.realtime.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)
from holdfast.realtime.openai.asides import is_aside
from holdfast.realtime.openai.frames import append
from holdfast.realtime.openai.items import user_item

if TYPE_CHECKING:
    from holdfast.realtime.openai.client import RealtimeClient


def audio(client: "RealtimeClient", event: RealtimeModelSendAudio) -> None:
    if event.audio:
        client.outgoing.append(append(event.audio))
    if event.commit:
        client.say({"type": "input_audio_buffer.commit"})


def user_input(client: "RealtimeClient", event: RealtimeModelSendUserInput) -> None:
    client.say({"type": "conversation.item.create", "item": user_item(event.user_input)})
    client.gate.request("user")


def tool_output(client: "RealtimeClient", event: RealtimeModelSendToolOutput) -> None:
    call_id = event.tool_call.call_id
    item = {"type": "function_call_output", "call_id": call_id, "output": event.output}
    client.say({"type": "conversation.item.create", "item": item})
    if event.start_response:
        client.gate.request(f"tool:{call_id}")


def interrupt(client: "RealtimeClient", event: RealtimeModelSendInterrupt) -> None:
    target = event.response_id or client.gate.active
    if not event.cancel_response_only:
        client.stop_playing(event.response_id)
    if not event.playback_only:
        client.mute(target)
        client.gate.cancel(event.response_id, force=event.force_response_cancel)


def settings(client: "RealtimeClient", event: RealtimeModelSendSessionUpdate) -> None:
    client.update(event.session_settings)


def raw(client: "RealtimeClient", event: RealtimeModelSendRawMessage) -> None:
    message = event.message
    parts = message.get("other_data") or {}
    match message["type"]:
        case "response.create":
            wanted = parts.get("response") or {}
            who = client.asides if is_aside(wanted) else client.gate
            who.request("raw", wanted, event_id=parts.get("event_id"))
        case "session.update":
            update = client.updates.sent(parts.get("event_id"))
            client.say({"type": "session.update", **parts, "event_id": update.event_id})
        case kind:
            if kind == "conversation.item.create":
                client.playback.retold((parts.get("item") or {}).get("id"))
            client.say({"type": kind, **parts})


SAYERS: dict[type, Callable[["RealtimeClient", Any], None]] = {
    RealtimeModelSendAudio: audio,
    RealtimeModelSendUserInput: user_input,
    RealtimeModelSendToolOutput: tool_output,
    RealtimeModelSendInterrupt: interrupt,
    RealtimeModelSendSessionUpdate: settings,
    RealtimeModelSendRawMessage: raw,
}
