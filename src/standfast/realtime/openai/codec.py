"""Encoding and decoding of protocol messages. Deltas, the most frequent ones, are decoded directly into structs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.realtime.errors import BadFrame
from standfast.realtime.model_events import RealtimeModelErrorEvent, RealtimeModelEvent, RealtimeModelRawServerEvent


class AudioDelta(msgspec.Struct, tag_field="type", tag="response.output_audio.delta", gc=False):
    """A chunk of speech; ``delta`` is decoded from base64."""

    response_id: str
    item_id: str
    delta: bytes
    content_index: int = 0


class TranscriptDelta(msgspec.Struct, tag_field="type", tag="response.output_audio_transcript.delta", gc=False):
    """The next words of the transcript of speech."""

    response_id: str
    item_id: str
    delta: str
    content_index: int = 0


class TextDelta(msgspec.Struct, tag_field="type", tag="response.output_text.delta", gc=False):
    """The next words of written output."""

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
    """Decode a frame into one of the structs above, or else into a dict with a ``type``.

    Raises :class:`BadFrame` if it is not a message.
    """
    try:
        return _decode_delta(frame)
    except _DECODE_ERRORS:
        return decode_message_dict(frame)


def decode_message_dict(frame: bytes | str) -> dict[str, Any]:
    """Decode a frame into a dict, whatever its type. Raises :class:`BadFrame` if it is not a message."""
    try:
        message = _decode_json(frame)
    except _DECODE_ERRORS as error:
        raise BadFrame(str(error), frame_to_text(frame)) from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadFrame("it has no string 'type'", frame_to_text(frame))
    return message


def validate_ids(message: dict[str, Any]) -> None:
    """Raise :class:`TypeError` if an id of the message is not a string: ids are keys of lookups everywhere."""
    response = message.get("response")
    inner = response.get("id") if isinstance(response, dict) else None
    for value in (inner, message.get("response_id"), message.get("item_id"), message.get("previous_item_id")):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"an id must be a string, got {value!r}")


def frame_to_text(frame: bytes | str) -> str:
    """Return a frame as text; bytes that are not UTF-8 are replaced."""
    return frame if isinstance(frame, str) else frame.decode("utf-8", "replace")


def encode_message(message: Any) -> bytes:
    return _encode(message)


def encode_audio_append(audio: bytes) -> bytes:
    """Build the frame that appends audio to the input buffer."""
    return _encode(_AppendAudioMessage(audio))


class LazyRawServerEvent(RealtimeModelRawServerEvent):
    """A raw server event whose ``data`` is decoded on first access."""

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
    """Return the events of a frame with its raw server event in front; a frame that is not a message has none."""
    if events and type(events[-1]) is RealtimeModelErrorEvent:
        try:
            return [RealtimeModelRawServerEvent(decode_message_dict(frame)), *events]
        except BadFrame:
            return events
    return [LazyRawServerEvent(frame), *events]
