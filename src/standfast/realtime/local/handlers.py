"""The events of a client as structs, and what each of them does to a session."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from standfast.realtime.local.actions import InvalidRequest
from standfast.realtime.local.conversation import ConversationEntry, EngineConversation, Item, validate_item
from standfast.realtime.local.settings import ResponseSettings, convert, merge_settings

if TYPE_CHECKING:
    from standfast.realtime.local.engine import Engine


class _ClientEventBase(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    event_id: str | None = None


class UpdateSession(_ClientEventBase, tag="session.update"):
    session: dict[str, Any]


class AppendAudio(_ClientEventBase, tag="input_audio_buffer.append"):
    audio: bytes


class CommitAudio(_ClientEventBase, tag="input_audio_buffer.commit"):
    pass


class ClearAudio(_ClientEventBase, tag="input_audio_buffer.clear"):
    pass


class ClearOutput(_ClientEventBase, tag="output_audio_buffer.clear"):
    pass


class CreateItem(_ClientEventBase, tag="conversation.item.create"):
    item: dict[str, Any]
    previous_item_id: str | None = None


class RetrieveItem(_ClientEventBase, tag="conversation.item.retrieve"):
    item_id: str


class TruncateItem(_ClientEventBase, tag="conversation.item.truncate"):
    item_id: str
    content_index: int
    audio_end_ms: Annotated[int, Meta(ge=0)]


class DeleteItem(_ClientEventBase, tag="conversation.item.delete"):
    item_id: str


class CreateResponse(_ClientEventBase, tag="response.create"):
    response: ResponseSettings | None = None


class CancelResponse(_ClientEventBase, tag="response.cancel"):
    response_id: str | None = None


ClientEvent: TypeAlias = (
    UpdateSession
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | ClearOutput
    | CreateItem
    | RetrieveItem
    | TruncateItem
    | DeleteItem
    | CreateResponse
    | CancelResponse
)


def decode_client_frame(data: str | bytes) -> dict[str, Any]:
    """Decode the JSON object in a frame. Raises :class:`InvalidRequest`."""
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest("invalid_json", f"The frame is not valid JSON: {error}") from None
    if not isinstance(event, dict):
        raise InvalidRequest("invalid_json", f"The frame must be a JSON object, got {type(event).__name__}.")
    return event


def parse_client_event(event: dict[str, Any]) -> ClientEvent:
    """Convert a JSON object to an event. Raises :class:`InvalidRequest` with the invalid parameter."""
    if "type" not in event:
        raise InvalidRequest("missing_required_parameter", "Missing required parameter: 'type'.", param="type")
    parsed: ClientEvent = convert(event, ClientEvent, param_prefix="")
    return parsed


def update_session(engine: "Engine", event: UpdateSession, now: float) -> None:
    if "type" not in event.session:
        raise InvalidRequest(
            "missing_required_parameter", "Missing required parameter: 'session.type'.", param="session.type"
        )
    before, after = engine.settings, merge_settings(engine.settings, event.session)
    if after.audio.output.voice != before.audio.output.voice and _has_assistant_audio(engine.conversation):
        message = "Cannot update a conversation's voice if assistant audio is present."
        raise InvalidRequest("cannot_update_voice", message, param="session.audio.output.voice")
    if not engine.has_transcriber:
        after.audio.input.transcription = None
    engine.settings = after
    engine.turns.configure()
    engine.outbox.emit("session.updated", session=engine.to_wire())


def append_audio(engine: "Engine", event: AppendAudio, now: float) -> None:
    engine.turns.append(event.audio, now)


def commit_audio(engine: "Engine", event: CommitAudio, now: float) -> None:
    engine.turns.commit()


def clear_audio(engine: "Engine", event: ClearAudio, now: float) -> None:
    engine.turns.clear()


def clear_output(engine: "Engine", event: ClearOutput, now: float) -> None:
    active = engine.active_response
    if active is not None:
        active.cancel("client_cancelled")
        engine.outbox.emit("output_audio_buffer.cleared", response_id=active.id)


def create_item(engine: "Engine", event: CreateItem, now: float) -> None:
    item = validate_item(event.item)
    if item["type"] == "function_call_output" and not engine.conversation.has_call(item["call_id"]):
        message = f"Tool call ID '{item['call_id']}' not found in conversation."
        raise InvalidRequest("invalid_tool_call_id", message, param="item.call_id")
    if item["type"] == "function_call":
        item["call_id"] = item.get("call_id") or engine.new_id("call")
    complete = {
        **item,
        "id": item.get("id") or engine.new_id("item"),
        "object": "realtime.item",
        "status": item.get("status") or "completed",
    }
    engine.add_item(ConversationEntry(complete), after=event.previous_item_id)


def retrieve_item(engine: "Engine", event: RetrieveItem, now: float) -> None:
    engine.outbox.emit(
        "conversation.item.retrieved", item=engine.conversation.get_entry(event.item_id).to_wire_with_audio()
    )


def truncate_item(engine: "Engine", event: TruncateItem, now: float) -> None:
    engine.conversation.truncate(event.item_id, event.content_index, event.audio_end_ms)
    engine.outbox.emit(
        "conversation.item.truncated",
        item_id=event.item_id,
        content_index=event.content_index,
        audio_end_ms=event.audio_end_ms,
    )


def delete_item(engine: "Engine", event: DeleteItem, now: float) -> None:
    engine.conversation.delete(event.item_id)
    engine.outbox.emit("conversation.item.deleted", item_id=event.item_id)


def create_response(engine: "Engine", event: CreateResponse, now: float) -> None:
    engine.start_response(now, event.response)


def cancel_response(engine: "Engine", event: CancelResponse, now: float) -> None:
    response = engine.active_response if event.response_id is None else engine.get_response(event.response_id)
    if response is None:
        raise InvalidRequest("response_cancel_not_active", "Cancellation failed: no active response found")
    response.cancel("client_cancelled")


CLIENT_EVENT_HANDLERS: dict[type[Struct], Callable[["Engine", Any, float], None]] = {
    UpdateSession: update_session,
    AppendAudio: append_audio,
    CommitAudio: commit_audio,
    ClearAudio: clear_audio,
    ClearOutput: clear_output,
    CreateItem: create_item,
    RetrieveItem: retrieve_item,
    TruncateItem: truncate_item,
    DeleteItem: delete_item,
    CreateResponse: create_response,
    CancelResponse: cancel_response,
}


def select_context(conversation: EngineConversation, input: list[Item] | None) -> list[ConversationEntry]:
    """Return the context of a response: the conversation, or the ``input`` that the client chose instead."""
    if input is None:
        return list(conversation)
    return [
        conversation.get_entry(str(item.get("id")))
        if item.get("type") == "item_reference"
        else ConversationEntry({"id": "input", **validate_item(item, param_prefix=f"response.input[{index}]")})
        for index, item in enumerate(input)
    ]


def _has_assistant_audio(conversation: EngineConversation) -> bool:
    return any(entry.words for entry in conversation)
