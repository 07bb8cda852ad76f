"""What a client may say, as types: reading a frame and checking it are one step."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from holdfast.realtime.local.outbox import InvalidRequest
from holdfast.realtime.local.settings import ResponseSettings, convert


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
    """The JSON object in a frame, or :class:`Refused`."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest("invalid_json", f"The frame is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("invalid_json", f"The frame is no JSON object but {type(found).__name__}.")
    return found


def parse_client_event(event: dict[str, Any]) -> ClientEvent:
    """The event that a JSON object is, or :class:`Refused` with the parameter that is wrong."""
    if "type" not in event:
        raise InvalidRequest("missing_required_parameter", "Missing required parameter: 'type'.", param="type")
    found: ClientEvent = convert(event, ClientEvent, param_prefix="")
    return found
