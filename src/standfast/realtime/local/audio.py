"""Audio formats of the protocol, and their conversion to the engine's format: 16-bit mono PCM at 24 kHz."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

SAMPLE_RATE = 24_000
BYTES_PER_MS = SAMPLE_RATE * 2 // 1000


def pcm_to_samples(pcm: bytes | bytearray | memoryview) -> "array[int]":
    """Convert little-endian 16-bit PCM to samples; an incomplete sample at the end is dropped."""
    samples = array("h", bytes(pcm[: len(pcm) // 2 * 2]))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def samples_to_pcm(samples: "array[int]") -> bytes:
    """Convert samples to little-endian 16-bit PCM."""
    if sys.byteorder == "big":
        samples = samples[:]
        samples.byteswap()
    return samples.tobytes()


def make_silence(milliseconds: int) -> bytes:
    return bytes(milliseconds * BYTES_PER_MS)


@dataclass(frozen=True)
class AudioCodec:
    """An audio format of the protocol. ``to_pcm`` and ``from_pcm`` convert to and from the engine's format."""

    name: str
    bytes_per_ms: int
    sample_width: int  # bytes per sample
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
    """Build a table of the byte with the nearest value for each sample without its two lowest bits."""
    decoded = sorted((decode_byte(byte), byte) for byte in range(256))
    values = [value for value, _ in decoded]
    table = bytearray()
    for sample in range(-32768, 32768, 4):
        index = bisect_left(values, sample + 2)
        nearest = min(decoded[max(0, index - 1) : index + 1], key=lambda entry: abs(entry[0] - sample - 2))
        table.append(nearest[1])
    return bytes(table)


def _make_decoder(decode_byte: Callable[[int], int]) -> Callable[[bytes], bytes]:
    values = [decode_byte(byte) for byte in range(256)]

    def expand(data: bytes) -> bytes:
        return samples_to_pcm(_upsample_threefold(array("h", [values[byte] for byte in data])))

    return expand


def _make_encoder(decode_byte: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def compress(pcm: bytes) -> bytes:
        table, samples = _build_compression_table(decode_byte), pcm_to_samples(pcm)
        triples = zip(samples[0::3], samples[1::3], samples[2::3], strict=False)
        return bytes([table[(a + b + c) // 3 + 32768 >> 2] for a, b, c in triples])

    return compress


def _upsample_threefold(samples: "array[int]") -> "array[int]":
    """Resample from 8 to 24 kHz by linear interpolation."""
    following = samples[1:] + samples[-1:]
    result = array("h", bytes(len(samples) * 6))
    result[0::3] = samples
    result[1::3] = array("h", [(2 * a + b) // 3 for a, b in zip(samples, following, strict=True)])
    result[2::3] = array("h", [(a + 2 * b) // 3 for a, b in zip(samples, following, strict=True)])
    return result


CODECS = {
    codec.name: codec
    for codec in [
        AudioCodec("audio/pcm", BYTES_PER_MS, 2, _pass_through, _pass_through),
        AudioCodec("audio/pcmu", 8, 1, _make_decoder(_decode_ulaw_byte), _make_encoder(_decode_ulaw_byte)),
        AudioCodec("audio/pcma", 8, 1, _make_decoder(_decode_alaw_byte), _make_encoder(_decode_alaw_byte)),
    ]
}
