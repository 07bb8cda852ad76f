"""Large contents of workspaces in memory, which workers map instead of receiving a copy.

What a worker changes in its mapping only that worker sees. Each content has a memory file of its own, so that a worker
that maps it can read nothing else, and the file is sealed, so that no process can change it any more.
"""

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable

from standfast.workers.chunks import decode_chunk
from standfast.workers.errors import WorkspaceRefused
from standfast.workers.wire.manifests import CHUNK_SIZE, Content, WorkspaceManifest

MAX_SHARED = 7
"""How many contents of a workspace are shared, the largest first: as many as one message to a worker can carry."""
_MIN_SIZE = 1 << 20

Fetch = Callable[[bytes], Awaitable[bytes]]
_found: "weakref.WeakValueDictionary[Content, SharedContent]" = weakref.WeakValueDictionary()


class SharedContent:
    """The bytes of a content in a sealed memory file, which ends with its last holder."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.fd = os.memfd_create("standfast-content", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._finalizer = weakref.finalize(self, os.close, self.fd)

    @property
    def file_id(self) -> tuple[int, int]:
        """The device and the inode, by which the mappings of a process show what it has mapped."""
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def write_chunk(self, number: int, data: bytes) -> None:
        remaining, offset = memoryview(data), number * CHUNK_SIZE
        while remaining:
            written = os.pwrite(self.fd, remaining, offset)
            remaining, offset = remaining[written:], offset + written

    def seal(self) -> None:
        """Make the bytes immutable. Raise WorkspaceRefused if their number is not the expected one."""
        import fcntl

        if (size := os.fstat(self.fd).st_size) != self.content.size:
            raise WorkspaceRefused("damaged", f"content of {self.content.size} bytes has chunks of {size}")
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def read_chunk(self, number: int) -> bytes:
        return os.pread(self.fd, CHUNK_SIZE, number * CHUNK_SIZE)


def find_shared(content: Content) -> SharedContent | None:
    """Return a content that is held in memory elsewhere in this process."""
    return _found.get(content)


async def share_contents(
    manifest: WorkspaceManifest, fetch: Fetch, held: Iterable[SharedContent] = ()
) -> tuple[SharedContent, ...]:
    """Return the largest contents of a workspace in memory: those that are there already, and others from their chunks.

    A chunk is taken from ``held`` if one of these has it, and otherwise fetched and verified. On systems without
    sealed memory files nothing is shared.
    """
    if not hasattr(os, "memfd_create"):
        return ()
    sources = {digest: (one, number) for one in held for number, digest in enumerate(one.content.chunks)}
    return tuple([find_shared(one) or await _share(one, fetch, sources) for one in choose_contents(manifest)])


def choose_contents(manifest: WorkspaceManifest) -> list[Content]:
    """Return the largest contents, those that are worth to be shared."""
    large = {content for content in manifest.iterate_contents() if content.size >= _MIN_SIZE}
    return sorted(large, key=lambda content: (-content.size, content.chunks))[:MAX_SHARED]


async def _share(content: Content, fetch: Fetch, sources: dict[bytes, tuple[SharedContent, int]]) -> SharedContent:
    shared = SharedContent(content)
    for number, digest in enumerate(content.chunks):
        stored = b"" if digest in sources else await fetch(digest)
        await asyncio.to_thread(_copy_chunk, shared, number, digest, stored, sources)
    shared.seal()
    _found[content] = shared
    return shared


def _copy_chunk(
    shared: SharedContent, number: int, digest: bytes, stored: bytes, sources: dict[bytes, tuple[SharedContent, int]]
) -> None:
    if digest in sources:
        source, place = sources[digest]
        shared.write_chunk(number, source.read_chunk(place))
    else:
        shared.write_chunk(number, decode_chunk(digest, stored))
