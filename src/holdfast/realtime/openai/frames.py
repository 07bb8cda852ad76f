"""Reading and writing messages of the wire protocol. The frequent ones are read straight into their types."""

from typing import Any

import msgspec

from holdfast.realtime.errors import BadFrame


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


class _Append(msgspec.Struct, tag_field="type", tag="input_audio_buffer.append"):
    audio: bytes


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_frequent = msgspec.json.Decoder(AudioDelta | TranscriptDelta | TextDelta).decode
_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read(frame: bytes | str) -> Any:
    """The message in a frame: one of the types above, else a dict with a ``type``.

    Raises :class:`BadFrame` for everything that is no message.
    """
    try:
        return _frequent(frame)
    except _UNREADABLE:
        return read_plain(frame)


def read_plain(frame: bytes | str) -> dict[str, Any]:
    """The message in a frame as a dict, whatever it is."""
    try:
        message = _any(frame)
    except _UNREADABLE as error:
        raise BadFrame(str(error), shown(frame)) from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadFrame("it has no type", shown(frame))
    return message


def check_names(message: dict[str, Any]) -> None:
    """Raises where a name is no text: whatever is known by it could not be found again."""
    response = message.get("response")
    inner = response.get("id") if isinstance(response, dict) else None
    for name in (inner, message.get("response_id"), message.get("item_id"), message.get("previous_item_id")):
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{name!r} is no name")


def shown(frame: bytes | str) -> str:
    """A frame as text, whatever is in it."""
    return frame if isinstance(frame, str) else frame.decode("utf-8", "replace")


def write(message: Any) -> bytes:
    return _encode(message)


def write_audio(audio: bytes) -> bytes:
    """The frame that adds audio to the input buffer."""
    return _encode(_Append(audio))
