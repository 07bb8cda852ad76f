"""Messages of the server as they came, read only if somebody looks."""

from collections.abc import Sequence
from typing import Any

from holdfast.realtime.errors import BadFrame
from holdfast.realtime.model_events import RealtimeModelErrorEvent, RealtimeModelEvent, RealtimeModelRawServerEvent
from holdfast.realtime.openai.frames import read_plain


class UnreadServerEvent(RealtimeModelRawServerEvent):
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
            self._data, self._frame = read_plain(self._frame), b""
        return self._data


def with_raw(frame: bytes | str, told: Sequence[RealtimeModelEvent]) -> Sequence[RealtimeModelEvent]:
    """What a frame meant, with the frame itself in front. A frame that is no message has no such event."""
    if told and type(told[-1]) is RealtimeModelErrorEvent:
        try:
            return [RealtimeModelRawServerEvent(read_plain(frame)), *told]
        except BadFrame:
            return told
    return [UnreadServerEvent(frame), *told]
