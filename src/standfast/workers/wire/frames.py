"""Length-prefixed frames: four bytes of big-endian length, then that many bytes.

Pure: bytes in, payloads out. A frame above the limit is skipped, never buffered, and reported in its
place, so one oversized message costs itself and nothing else.
"""

import struct
from typing import NamedTuple

HEADER = struct.Struct(">I")
DEFAULT_LIMIT = 16 * 1024 * 1024


class FrameTooLarge(ValueError):
    """A message does not fit the frame limit. It was not sent; the session goes on."""

    code = "frame-too-large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes is larger than the frame limit of {limit} bytes")
        self.size, self.limit = size, limit


class OversizedFrame(NamedTuple):
    """Stands where a frame above the limit was skipped."""

    size: int


def encode_frame(payload: bytes, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """The payload as one frame. Raises FrameTooLarge instead of sending what the peer would refuse."""
    if len(payload) > limit:
        raise FrameTooLarge(len(payload), limit)
    return HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into payloads. ``feed`` returns what became complete, in order."""

    def __init__(self, *, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._bytes_to_skip = 0

    @property
    def buffered(self) -> bytes:
        """The bytes of the frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> list[bytes | OversizedFrame]:
        if self._bytes_to_skip:
            dropped = min(self._bytes_to_skip, len(data))
            self._bytes_to_skip -= dropped
            data = data[dropped:]
        buffer = self._buffer
        if not buffer and 4 <= len(data) <= self.limit and HEADER.unpack_from(data)[0] == len(data) - 4:
            # One whole frame, as nearly always.
            return [data[4:]]
        # Mostly frames come whole, and nothing need be kept.
        whole = not buffer
        if not whole:
            buffer += data
        source: bytes | bytearray = data if whole else buffer
        complete: list[bytes | OversizedFrame] = []
        start, held = 0, len(source)
        while held - start >= 4:
            (size,) = HEADER.unpack_from(source, start)
            end = start + 4 + size
            if size > self.limit:
                complete.append(OversizedFrame(size))
                self._bytes_to_skip = max(0, end - held)
                start = min(end, held)
            elif end <= held:
                complete.append(data[start + 4 : end] if whole else bytes(memoryview(buffer)[start + 4 : end]))
                start = end
            else:
                break
        if not whole:
            del buffer[:start]
        elif start < held:
            buffer += data[start:]
        return complete
