"""Reading and writing messages of the wire protocol. The frequent ones are read straight into their types."""

from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.realtime.errors import BadFrame
from standfast.realtime.model_events import RealtimeModelErrorEvent, RealtimeModelEvent, RealtimeModelRawServerEvent


class AudioDelta(msgspec.Struct, tag_field="type", tag="response.output_audio.delta", gc=False):
    """A piece of speech; reading it decodes it."""

    response_id: str
    item_id: str
    delta: bytes
    content_index: int = 0


class TranscriptDelta(msgspec.Struct, tag_field="type", tag="response.output_audio_transcript.delta", gc=False):
    """The next spoken words."""

    response_id: str
    item_id: str
    delta: str
    content_index: int = 0


class TextDelta(msgspec.Struct, tag_field="type", tag="response.output_text.delta", gc=False):
    """The next written words."""

    response_id: str
    item_id: str
    delta: str
    content_index: int = 0


class _AppendAudioMessage(msgspec.Struct, tag_field="type", tag="input_audio_buffer.append"):
    audio: bytes


_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_delta = msgspec.json.Decoder(AudioDelta | TranscriptDelta | TextDelta).decode
_decode_json = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode_message(frame: bytes | str) -> Any:
    """The message in a frame: one of the types above, else a dict with a ``type``.

    Raises :class:`BadFrame` for everything that is no message.
    """
    try:
        return _decode_delta(frame)
    except _DECODE_ERRORS:
        return decode_message_dict(frame)


def decode_message_dict(frame: bytes | str) -> dict[str, Any]:
    """The message in a frame as a dict, whatever it is."""
    try:
        message = _decode_json(frame)
    except _DECODE_ERRORS as error:
        raise BadFrame(str(error), frame_to_text(frame)) from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadFrame("it has no type", frame_to_text(frame))
    return message


def validate_ids(message: dict[str, Any]) -> None:
    """Raises where a name is no text: whatever is known by it could not be found again."""
    response = message.get("response")
    inner = response.get("id") if isinstance(response, dict) else None
    for name in (inner, message.get("response_id"), message.get("item_id"), message.get("previous_item_id")):
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{name!r} is no name")


def frame_to_text(frame: bytes | str) -> str:
    """A frame as text, whatever is in it."""
    return frame if isinstance(frame, str) else frame.decode("utf-8", "replace")


def encode_message(message: Any) -> bytes:
    return _encode(message)


def encode_audio_append(audio: bytes) -> bytes:
    """The frame that adds audio to the input buffer."""
    return _encode(_AppendAudioMessage(audio))


class LazyRawServerEvent(RealtimeModelRawServerEvent):
    """A message whose ``data`` is read from the frame when it is asked for."""

    __slots__ = ("_data", "_frame", "size")

    def __init__(self, frame: bytes | str) -> None:
        self.type = "raw_server_event"
        self._frame: bytes | str = frame
        self.size = len(frame)
        self._data: Any = None

    @property
    def data(self) -> Any:
        if self._data is None:
            self._data, self._frame = decode_message_dict(self._frame), b""
        return self._data


def prepend_raw_event(frame: bytes | str, events: Sequence[RealtimeModelEvent]) -> Sequence[RealtimeModelEvent]:
    """What a frame meant, with the frame itself in front. A frame that is no message has no such event."""
    if events and type(events[-1]) is RealtimeModelErrorEvent:
        try:
            return [RealtimeModelRawServerEvent(decode_message_dict(frame)), *events]
        except BadFrame:
            return events
    return [LazyRawServerEvent(frame), *events]
