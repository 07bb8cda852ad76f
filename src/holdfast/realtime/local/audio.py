"""Audio as the wire carries it, and as the engine works with it: 16 bits, mono, 24 kHz."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

RATE = 24_000
BYTES_PER_MS = RATE * 2 // 1000


def samples(pcm: bytes | bytearray | memoryview) -> "array[int]":
    """The numbers in little-endian 16-bit audio; half a sample at the end is left out."""
    found = array("h", bytes(pcm[: len(pcm) // 2 * 2]))
    if sys.byteorder == "big":
        found.byteswap()
    return found


def pcm_of(numbers: "array[int]") -> bytes:
    """Little-endian 16-bit audio of these numbers."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def silence(milliseconds: int) -> bytes:
    return bytes(milliseconds * BYTES_PER_MS)


@dataclass(frozen=True)
class Format:
    """A format of the wire. ``to_pcm`` and ``from_pcm`` translate to and from the engine's own."""

    name: str
    bytes_per_ms: int
    width: int  # of a sample, in bytes
    to_pcm: Callable[[bytes], bytes]
    from_pcm: Callable[[bytes], bytes]

    def milliseconds(self, size: int) -> int:
        return size // self.bytes_per_ms


def _plain(data: bytes) -> bytes:
    return data


def _ulaw_value(byte: int) -> int:
    byte = ~byte & 0xFF
    magnitude = (((byte & 0x0F) << 3) + 0x84 << ((byte & 0x70) >> 4)) - 0x84
    return -magnitude if byte & 0x80 else magnitude


def _alaw_value(byte: int) -> int:
    byte ^= 0x55
    segment = (byte & 0x70) >> 4
    magnitude = ((byte & 0x0F) << 4) + (0x108 if segment else 8)
    magnitude <<= max(0, segment - 1)
    return magnitude if byte & 0x80 else -magnitude


@cache
def _compressing(value_of: Callable[[int], int]) -> bytes:
    """For each sample, without its two lowest bits, the byte whose value is nearest."""
    known = sorted((value_of(byte), byte) for byte in range(256))
    values = [value for value, _ in known]
    found = bytearray()
    for sample in range(-32768, 32768, 4):
        place = bisect_left(values, sample + 2)
        near = min(known[max(0, place - 1) : place + 1], key=lambda entry: abs(entry[0] - sample - 2))
        found.append(near[1])
    return bytes(found)


def _expander(value_of: Callable[[int], int]) -> Callable[[bytes], bytes]:
    values = [value_of(byte) for byte in range(256)]

    def expand(data: bytes) -> bytes:
        return pcm_of(_tripled(array("h", [values[byte] for byte in data])))

    return expand


def _compressor(value_of: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def compress(pcm: bytes) -> bytes:
        table, numbers = _compressing(value_of), samples(pcm)
        thirds = zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=False)
        return bytes([table[(a + b + c) // 3 + 32768 >> 2] for a, b, c in thirds])

    return compress


def _tripled(numbers: "array[int]") -> "array[int]":
    """From 8 to 24 kHz, on straight lines between the samples."""
    following = numbers[1:] + numbers[-1:]
    found = array("h", bytes(len(numbers) * 6))
    found[0::3] = numbers
    found[1::3] = array("h", [(2 * a + b) // 3 for a, b in zip(numbers, following, strict=True)])
    found[2::3] = array("h", [(a + 2 * b) // 3 for a, b in zip(numbers, following, strict=True)])
    return found


FORMATS = {
    format.name: format
    for format in [
        Format("audio/pcm", BYTES_PER_MS, 2, _plain, _plain),
        Format("audio/pcmu", 8, 1, _expander(_ulaw_value), _compressor(_ulaw_value)),
        Format("audio/pcma", 8, 1, _expander(_alaw_value), _compressor(_alaw_value)),
    ]
}
