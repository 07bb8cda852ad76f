"""Messages of the server as they came, read only if somebody looks."""

from collections.abc import Sequence
from typing import Any

from holdfast.realtime.errors import BadFrame
from holdfast.realtime.model_events import RealtimeModelErrorEvent, RealtimeModelEvent, RealtimeModelRawServerEvent
from holdfast.realtime.openai.frames import decode_message_dict


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
