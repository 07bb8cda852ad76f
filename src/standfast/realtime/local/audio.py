"""Audio as the wire carries it, and as the engine works with it: 16 bits, mono, 24 kHz."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

SAMPLE_RATE = 24_000
BYTES_PER_MS = SAMPLE_RATE * 2 // 1000


def pcm_to_samples(pcm: bytes | bytearray | memoryview) -> "array[int]":
    """The numbers in little-endian 16-bit audio; half a sample at the end is left out."""
    found = array("h", bytes(pcm[: len(pcm) // 2 * 2]))
    if sys.byteorder == "big":
        found.byteswap()
    return found


def samples_to_pcm(samples: "array[int]") -> bytes:
    """Little-endian 16-bit audio of these numbers."""
    if sys.byteorder == "big":
        samples = samples[:]
        samples.byteswap()
    return samples.tobytes()


def make_silence(milliseconds: int) -> bytes:
    return bytes(milliseconds * BYTES_PER_MS)


@dataclass(frozen=True)
class AudioCodec:
    """A format of the wire. ``to_pcm`` and ``from_pcm`` translate to and from the engine's own."""

    name: str
    bytes_per_ms: int
    sample_width: int  # of a sample, in bytes
    to_pcm: Callable[[bytes], bytes]
    from_pcm: Callable[[bytes], bytes]

    def get_duration_ms(self, size: int) -> int:
        return size // self.bytes_per_ms


def _pass_through(data: bytes) -> bytes:
    return data


def _decode_ulaw_byte(byte: int) -> int:
    byte = ~byte & 0xFF
    magnitude = (((byte & 0x0F) << 3) + 0x84 << ((byte & 0x70) >> 4)) - 0x84
    return -magnitude if byte & 0x80 else magnitude


def _decode_alaw_byte(byte: int) -> int:
    byte ^= 0x55
    segment = (byte & 0x70) >> 4
    magnitude = ((byte & 0x0F) << 4) + (0x108 if segment else 8)
    magnitude <<= max(0, segment - 1)
    return magnitude if byte & 0x80 else -magnitude


@cache
def _build_compression_table(decode_byte: Callable[[int], int]) -> bytes:
    """For each sample, without its two lowest bits, the byte whose value is nearest."""
    known = sorted((decode_byte(byte), byte) for byte in range(256))
    values = [value for value, _ in known]
    found = bytearray()
    for sample in range(-32768, 32768, 4):
        place = bisect_left(values, sample + 2)
        near = min(known[max(0, place - 1) : place + 1], key=lambda entry: abs(entry[0] - sample - 2))
        found.append(near[1])
    return bytes(found)


def _make_decoder(decode_byte: Callable[[int], int]) -> Callable[[bytes], bytes]:
    values = [decode_byte(byte) for byte in range(256)]

    def expand(data: bytes) -> bytes:
        return samples_to_pcm(_upsample_threefold(array("h", [values[byte] for byte in data])))

    return expand


def _make_encoder(decode_byte: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def compress(pcm: bytes) -> bytes:
        table, numbers = _build_compression_table(decode_byte), pcm_to_samples(pcm)
        thirds = zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=False)
        return bytes([table[(a + b + c) // 3 + 32768 >> 2] for a, b, c in thirds])

    return compress


def _upsample_threefold(samples: "array[int]") -> "array[int]":
    """From 8 to 24 kHz, on straight lines between the samples."""
    following = samples[1:] + samples[-1:]
    found = array("h", bytes(len(samples) * 6))
    found[0::3] = samples
    found[1::3] = array("h", [(2 * a + b) // 3 for a, b in zip(samples, following, strict=True)])
    found[2::3] = array("h", [(a + 2 * b) // 3 for a, b in zip(samples, following, strict=True)])
    return found


CODECS = {
    format.name: format
    for format in [
        AudioCodec("audio/pcm", BYTES_PER_MS, 2, _pass_through, _pass_through),
        AudioCodec("audio/pcmu", 8, 1, _make_decoder(_decode_ulaw_byte), _make_encoder(_decode_ulaw_byte)),
        AudioCodec("audio/pcma", 8, 1, _make_decoder(_decode_alaw_byte), _make_encoder(_decode_alaw_byte)),
    ]
}
