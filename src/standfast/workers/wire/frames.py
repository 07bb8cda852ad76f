"""Length-prefixed frames: four bytes of big-endian length, then that many bytes.

This module does no I/O. A frame above the limit is skipped without being buffered and reported in its place, so that
an oversized message does not affect the others.
"""

import struct
from typing import NamedTuple

HEADER = struct.Struct(">I")
DEFAULT_LIMIT = 16 * 1024 * 1024


class FrameTooLarge(ValueError):
    """A message is larger than the frame limit. It was not sent; the session can still be used."""

    code = "frame-too-large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes is larger than the frame limit of {limit} bytes")
        self.size, self.limit = size, limit


class OversizedFrame(NamedTuple):
    """Takes the place of a skipped frame that was above the limit."""

    size: int


def encode_frame(payload: bytes, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return the payload as a frame. Raises FrameTooLarge above the limit."""
    if len(payload) > limit:
        raise FrameTooLarge(len(payload), limit)
    return HEADER.pack(len(payload)) + payload


class FrameReader:
    """Splits a byte stream into payloads. ``feed`` returns the frames that are complete, in order."""

    def __init__(self, *, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._bytes_to_skip = 0

    @property
    def buffered(self) -> bytes:
        """The bytes of a frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> list[bytes | OversizedFrame]:
        if self._bytes_to_skip:
            dropped = min(self._bytes_to_skip, len(data))
            self._bytes_to_skip -= dropped
            data = data[dropped:]
        buffer = self._buffer
        if not buffer and 4 <= len(data) <= self.limit and HEADER.unpack_from(data)[0] == len(data) - 4:
            # Nearly always, the data is exactly one frame.
            return [data[4:]]
        # Without buffered bytes, frames are cut from the data itself, which saves a copy.
        unbuffered = not buffer
        if not unbuffered:
            buffer += data
        source: bytes | bytearray = data if unbuffered else buffer
        complete: list[bytes | OversizedFrame] = []
        start, available = 0, len(source)
        while available - start >= 4:
            (size,) = HEADER.unpack_from(source, start)
            end = start + 4 + size
            if size > self.limit:
                complete.append(OversizedFrame(size))
                self._bytes_to_skip = max(0, end - available)
                start = min(end, available)
            elif end <= available:
                complete.append(data[start + 4 : end] if unbuffered else bytes(memoryview(buffer)[start + 4 : end]))
                start = end
            else:
                break
        if not unbuffered:
            del buffer[:start]
        elif start < available:
            buffer += data[start:]
        return complete
