"""Chunks of content as they are stored: compressed if that helps, and verified by their digest when they are read.

Content is cut into chunks where it is captured: in the worker (``child/captures.py``) or from an archive of a sandbox.
"""

from typing import Any

from standfast.base.errors import Unsupported
from standfast.workers.errors import WorkspaceRefused
from standfast.workers.wire.manifests import CHUNK_SIZE, hash_chunk

_RAW, _ZSTD = b"\x00", b"\x01"
_LEVEL = 1
_SAMPLE_SIZE = 16 << 10
_MIN_SIZE = 256
# Saving less than this is not worth the time: numbers with random digits shrink by a tenth, at a third of the speed.
_USEFUL_RATIO = 0.85


def encode_chunk(data: bytes | bytearray) -> bytes:
    """Return a chunk as it is stored. Compresses with zstandard where that is installed and makes it smaller."""
    if len(data) < _MIN_SIZE or (library := _import_zstandard()) is None:
        return _RAW + data
    compressor = library.ZstdCompressor(level=_LEVEL, write_checksum=False)
    if len(data) > 4 * _SAMPLE_SIZE:
        middle = len(data) // 2
        sample = data[middle : middle + _SAMPLE_SIZE]
        if len(compressor.compress(sample)) > _USEFUL_RATIO * len(sample):
            return _RAW + data
    compressed: bytes = compressor.compress(data)
    return _ZSTD + compressed if len(compressed) < _USEFUL_RATIO * len(data) else _RAW + data


def decode_chunk(digest: bytes, stored: bytes) -> bytes:
    """Return the content of a stored chunk. Raises WorkspaceRefused unless it is what the digest says."""
    kind, body = stored[:1], stored[1:]
    if kind == _RAW:
        data = body
    elif kind == _ZSTD:
        data = _decompress(body)
    else:
        raise WorkspaceRefused("damaged", f"the chunk {digest.hex()[:16]} has an unknown encoding")
    if len(data) > CHUNK_SIZE or hash_chunk(data).digest() != digest:
        raise WorkspaceRefused("damaged", f"the chunk {digest.hex()[:16]} does not match its digest")
    return data


def _decompress(body: bytes) -> bytes:
    library = _import_zstandard()
    if library is None:
        raise Unsupported("the workspace is compressed: install zstandard, or standfast[workers], to read it")
    try:
        if library.frame_content_size(body) > CHUNK_SIZE:
            raise WorkspaceRefused("damaged", "a chunk is larger than a chunk may be")
        data: bytes = library.ZstdDecompressor().decompress(body, max_output_size=CHUNK_SIZE)
    except library.ZstdError as problem:
        raise WorkspaceRefused("damaged", f"a chunk cannot be decompressed: {problem}") from problem
    return data


def _import_zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard
