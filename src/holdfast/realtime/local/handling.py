"""What each of a client's events does to a session."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.realtime.local import client_events as said
from holdfast.realtime.local.conversation import Conversation, Entry, Item, checked_item
from holdfast.realtime.local.outbox import Refused
from holdfast.realtime.local.settings import updated

if TYPE_CHECKING:
    from holdfast.realtime.local.engine import Engine


def update_session(engine: "Engine", event: said.UpdateSession, now: float) -> None:
    if "type" not in event.session:
        raise Refused("missing_required_parameter", "Missing required parameter: 'session.type'.", param="session.type")
    before, after = engine.settings, updated(engine.settings, event.session)
    if after.audio.output.voice != before.audio.output.voice and _has_spoken(engine.conversation):
        message = "Cannot update a conversation's voice if assistant audio is present."
        raise Refused("cannot_update_voice", message, param="session.audio.output.voice")
    if not engine.transcribes:
        after.audio.input.transcription = None
    engine.settings = after
    engine.turns.configure()
    engine.outbox.tell("session.updated", session=engine.shown())


def append_audio(engine: "Engine", event: said.AppendAudio, now: float) -> None:
    engine.turns.append(event.audio, now)


def commit_audio(engine: "Engine", event: said.CommitAudio, now: float) -> None:
    engine.turns.commit()


def clear_audio(engine: "Engine", event: said.ClearAudio, now: float) -> None:
    engine.turns.clear()


def clear_output(engine: "Engine", event: said.ClearOutput, now: float) -> None:
    active = engine.active
    if active is not None:
        active.cancel("client_cancelled")
        engine.outbox.tell("output_audio_buffer.cleared", response_id=active.id)


def create_item(engine: "Engine", event: said.CreateItem, now: float) -> None:
    item = checked_item(event.item)
    if item["type"] == "function_call_output" and not engine.conversation.has_call(item["call_id"]):
        message = f"Tool call ID '{item['call_id']}' not found in conversation."
        raise Refused("invalid_tool_call_id", message, param="item.call_id")
    if item["type"] == "function_call":
        item["call_id"] = item.get("call_id") or engine.new_id("call")
    named = {**item, "id": item.get("id") or engine.new_id("item"), "object": "realtime.item"}
    entry = Entry({**named, "status": item.get("status") or "completed"})
    engine.add_item(entry, after=event.previous_item_id)


def retrieve_item(engine: "Engine", event: said.RetrieveItem, now: float) -> None:
    engine.outbox.tell("conversation.item.retrieved", item=engine.conversation.find(event.item_id).whole())


def truncate_item(engine: "Engine", event: said.TruncateItem, now: float) -> None:
    where = {"item_id": event.item_id, "content_index": event.content_index, "audio_end_ms": event.audio_end_ms}
    engine.conversation.truncate(**where)  # type: ignore[arg-type]
    engine.outbox.tell("conversation.item.truncated", **where)


def delete_item(engine: "Engine", event: said.DeleteItem, now: float) -> None:
    engine.conversation.delete(event.item_id)
    engine.outbox.tell("conversation.item.deleted", item_id=event.item_id)


def create_response(engine: "Engine", event: said.CreateResponse, now: float) -> None:
    engine.begin_response(now, event.response)


def cancel_response(engine: "Engine", event: said.CancelResponse, now: float) -> None:
    found = engine.active if event.response_id is None else engine.response(event.response_id)
    if found is None:
        raise Refused("response_cancel_not_active", "Cancellation failed: no active response found")
    found.cancel("client_cancelled")


HANDLERS: dict[type[Struct], Callable[["Engine", Any, float], None]] = {
    said.UpdateSession: update_session,
    said.AppendAudio: append_audio,
    said.CommitAudio: commit_audio,
    said.ClearAudio: clear_audio,
    said.ClearOutput: clear_output,
    said.CreateItem: create_item,
    said.RetrieveItem: retrieve_item,
    said.TruncateItem: truncate_item,
    said.DeleteItem: delete_item,
    said.CreateResponse: create_response,
    said.CancelResponse: cancel_response,
}


def chosen_context(conversation: Conversation, input: list[Item] | None) -> list[Entry]:
    """What a response is an answer to: the conversation, or what the client chose in its place."""
    if input is None:
        return list(conversation)
    return [
        conversation.find(str(item.get("id")))
        if item.get("type") == "item_reference"
        else Entry({"id": "input", **checked_item(item, where=f"response.input[{index}]")})
        for index, item in enumerate(input)
    ]


def _has_spoken(conversation: Conversation) -> bool:
    return any(entry.words for entry in conversation)
