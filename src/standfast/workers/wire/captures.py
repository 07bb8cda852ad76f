"""The stream between the host and the copy of a worker that captures its workspace.

The host sends a CaptureRequest to the worker; the copy that the worker forks answers with frames of a kind, a length,
and a digest for chunks. They have their own socket, so that chunks and the messages of the worker do not wait for each
other.
"""

import struct

import msgspec

from standfast.workers.wire.manifests import DIGEST_SIZE, MAX_MANIFEST_BYTES, WorkspaceFile

LENGTH = struct.Struct(">I")
FRAME_HEADER = struct.Struct(f">cI{DIGEST_SIZE}s")
CHUNK, MANIFEST, TOO_LARGE, FAILED = b"C", b"M", b"L", b"E"
"""The kinds of frames: a chunk, the end, and two ways to fail."""
MAX_FAILURE_BYTES = 65536
FRAME_LIMITS = {CHUNK: 1 << 20, MANIFEST: MAX_MANIFEST_BYTES, TOO_LARGE: 64, FAILED: MAX_FAILURE_BYTES}


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the host has already: the digests of stored chunks, one after the other, and the files of the manifest."""

    known: bytes = b""
    files: tuple[WorkspaceFile, ...] = ()
    max_bytes: int


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker is to restore. The bytes of the contents, of the buffers and of the state follow, in this order.

    ``mapped`` are the places of those that come as descriptors of memory files instead. With ``remains`` all other
    variables and files are removed first.
    """

    imports: dict[str, str] = {}
    contents: tuple[int, ...] = ()
    groups: tuple["PlannedGroup", ...] = ()
    state: int = 0
    cell_count: int = 0
    mapped: tuple[int, ...] = ()
    remains: "Remains | None" = None


class Remains(msgspec.Struct, frozen=True, array_like=True):
    """The variables and paths of a prepared worker that a restore does not remove."""

    names: tuple[str, ...]
    paths: tuple[str, ...]


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of variables, as in the manifest, with the sizes of its buffers."""

    names: tuple[str, ...]
    content: int
    offset: int = 0
    size: int = 0
    buffers: tuple[int, ...] = ()


def encode_request(request: CaptureRequest | RestorePlan) -> bytes:
    """Return the first message on the socket of a capture or a restore, with its length."""
    payload = msgspec.msgpack.encode(request)
    return LENGTH.pack(len(payload)) + payload
