"""The manifest of a captured workspace, and the stream between the host and the copy of a worker that captures it.

Content is cut into chunks that are stored by the SHA-256 digest of their bytes. A manifest has names, types, sizes and
digests only: values are pickled and unpickled inside workers, and the host reads a manifest without either. What a
worker or a store reports about a workspace is checked here before it is used.

The host sends a CaptureRequest to the worker; the copy that the worker forks answers with frames of a kind, a length,
and a digest for chunks. They have their own socket, so that chunks and the messages of the worker do not wait for each
other.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import Literal, Self

import msgspec

from standfast.workers.wire.messages import NamespaceEntry

CHUNK_SIZE = 1 << 20
"""Bytes of a chunk; the last one of a content may be shorter."""
DIGEST_SIZE = 32
MAX_DEPTH = 64
"""How deep directories may be nested."""
MAX_MANIFEST_BYTES = 32 << 20
MAX_ENTRIES = 200_000
"""How many files a workspace may have."""
MAX_NAME_LENGTH = 4096
_MAX_REASON_LENGTH = 2000
_FORMAT = 1
_MAGIC = b"standfast-workspace"
_HEADER_SIZE = len(_MAGIC) + 1 + DIGEST_SIZE

hash_chunk = hashlib.sha256
LENGTH = struct.Struct(">I")
FRAME_HEADER = struct.Struct(f">cI{DIGEST_SIZE}s")
CHUNK, MANIFEST, TOO_LARGE, FAILED = b"C", b"M", b"L", b"E"
"""The kinds of frames: a chunk, the end, and two ways to fail."""
MAX_FAILURE_BYTES = 65536
FRAME_LIMITS = {CHUNK: 1 << 20, MANIFEST: MAX_MANIFEST_BYTES, TOO_LARGE: 64, FAILED: MAX_FAILURE_BYTES}


class InvalidManifest(ValueError):
    """The manifest is damaged, foreign, too new, or describes what no worker may restore. ``kind`` says which."""

    def __init__(self, kind: Literal["foreign", "too-new", "damaged", "unsafe"], detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Content(msgspec.Struct, frozen=True, array_like=True):
    """Bytes as the digests of their chunks."""

    size: int = 0
    chunks: tuple[bytes, ...] = ()


class VariableGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Variables that share objects, pickled together: ``size`` bytes of ``contents[content]`` from ``offset``.

    ``buffers`` has the memory of large arrays, which is kept apart from the pickle.
    """

    names: tuple[str, ...]
    content: int
    offset: int = 0
    size: int = 0
    buffers: tuple[Content, ...] = ()


class WorkspaceFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or directory below the session's directory, and the figures by which an unchanged one is recognised.

    Symbolic links, with their ``target``, are kept of sandboxes only.
    """

    path: str
    kind: Literal["file", "directory", "link"] = "file"
    mode: int = 0o600
    target: str = ""
    content: Content = Content()
    inode: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0


class WorkspaceManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a capture holds.

    ``variables`` describes every variable. ``imports`` are the names of modules, and of functions and classes of
    modules, as ``module`` or ``module:name``. ``unkept`` and ``unkept_files`` have the reason for each name or path
    that could not be kept. ``state`` is the state of the random generators and of the interpreter, pickled, and
    ``cell_count`` the number of cells that were run. ``size`` is the number of bytes of all content before compression.
    ``place`` is the key and the version of the stored workspace; earlier releases did not write it.
    """

    python: str
    variables: tuple[NamespaceEntry, ...] = ()
    imports: dict[str, str] = {}
    contents: tuple[Content, ...] = ()
    groups: tuple[VariableGroup, ...] = ()
    state: Content = Content()
    files: tuple[WorkspaceFile, ...] = ()
    unkept: dict[str, str] = {}
    unkept_files: dict[str, str] = {}
    cell_count: int = 0
    size: int = 0
    place: tuple[str, int] | None = None

    def iterate_contents(self) -> Iterator[Content]:
        """Iterate over everything that has bytes, in the order in which it is restored."""
        yield from (file.content for file in self.files)
        yield from self.contents
        for group in self.groups:
            yield from group.buffers
        yield self.state

    @property
    def digests(self) -> frozenset[bytes]:
        """The digests of all chunks: what must be stored as long as this manifest is."""
        return frozenset(digest for content in self.iterate_contents() for digest in content.chunks)

    def encode(self) -> bytes:
        """Return the manifest as bytes, with a digest of themselves."""
        body = msgspec.msgpack.encode(self)
        return _MAGIC + bytes([_FORMAT]) + hash_chunk(body).digest() + body

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode and check a manifest. Raises InvalidManifest, and builds nothing large from damaged data."""
        if not data.startswith(_MAGIC) or len(data) < _HEADER_SIZE:
            raise InvalidManifest("foreign", "the data is not the manifest of a workspace")
        version = data[len(_MAGIC)]
        if version > _FORMAT:
            raise InvalidManifest(
                "too-new", f"the manifest has format {version}; this version of standfast reads up to {_FORMAT}"
            )
        if version < 1:
            raise InvalidManifest("damaged", f"the manifest has format {version}, which does not exist")
        body = data[_HEADER_SIZE:]
        if hash_chunk(body).digest() != data[len(_MAGIC) + 1 : _HEADER_SIZE]:
            raise InvalidManifest("damaged", "the manifest is damaged: its digest does not match")
        return cls.decode_body(body)

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        """Decode and check a manifest without its header, as a worker sends it."""
        try:
            manifest = msgspec.msgpack.decode(body, type=cls)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise InvalidManifest("damaged", f"the manifest cannot be read: {problem}") from problem
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise InvalidManifest unless the manifest is consistent and safe to restore."""
        total = 0
        for content in self.iterate_contents():
            _check_content(content)
            total += content.size
        if total != self.size or self.cell_count < 0:
            raise InvalidManifest("damaged", f"the manifest says {self.size} bytes and its content has {total}")
        _check_names(self)
        _check_groups(self)
        _check_files(self.files)


def _check_content(content: Content) -> None:
    expected = -(-content.size // CHUNK_SIZE)
    if content.size < 0 or len(content.chunks) != expected:
        raise InvalidManifest(
            "damaged", f"content of {content.size} bytes has {len(content.chunks)} chunks, not {expected}"
        )
    if any(len(digest) != DIGEST_SIZE for digest in content.chunks):
        raise InvalidManifest("damaged", "a digest has the wrong length")


def _check_names(manifest: WorkspaceManifest) -> None:
    tables = (manifest.variables, manifest.imports, manifest.groups, manifest.unkept, manifest.unkept_files)
    if any(len(table) > MAX_ENTRIES for table in tables):
        raise InvalidManifest("unsafe", f"the manifest has more than {MAX_ENTRIES} entries of one kind")
    for table in (manifest.imports, manifest.unkept, manifest.unkept_files):
        for name, text in table.items():
            if len(name) > MAX_NAME_LENGTH or len(text) > _MAX_REASON_LENGTH:
                raise InvalidManifest("unsafe", "a name or a reason in the manifest is too long")
    for variable in manifest.variables:
        if len(variable.name) > MAX_NAME_LENGTH or len(variable.type) > MAX_NAME_LENGTH:
            raise InvalidManifest("unsafe", "the name or the type of a variable is too long")


def _check_groups(manifest: WorkspaceManifest) -> None:
    seen = set(manifest.imports)
    for group in manifest.groups:
        if not 0 <= group.content < len(manifest.contents):
            raise InvalidManifest("damaged", f"a group refers to the missing content {group.content}")
        end = group.offset + group.size
        if group.offset < 0 or group.size < 0 or end > manifest.contents[group.content].size:
            raise InvalidManifest("damaged", "a group lies outside of its content")
        for name in group.names:
            if name in seen or len(name) > MAX_NAME_LENGTH:
                raise InvalidManifest("damaged", f"the variable {name[:100]!r} occurs twice or its name is too long")
            seen.add(name)


def _check_files(files: tuple[WorkspaceFile, ...]) -> None:
    if len(files) > MAX_ENTRIES:
        raise InvalidManifest("unsafe", f"the manifest has more than {MAX_ENTRIES} files")
    kinds: dict[str, str] = {}
    for file in files:
        if (problem := find_path_problem(file.path)) is not None:
            raise InvalidManifest("unsafe", f"the path {file.path[:200]!r} {problem}")
        if file.path in kinds:
            raise InvalidManifest("unsafe", f"the path {file.path[:200]!r} occurs twice")
        if (
            file.mode & ~0o777
            or (file.kind != "file" and file.content.size)
            or (file.kind == "link") != bool(file.target)
        ):
            raise InvalidManifest("unsafe", f"the file {file.path[:200]!r} has a mode or a content that it cannot have")
        kinds[file.path] = file.kind
    for path in kinds:
        parent = path.rpartition("/")[0]
        while parent:
            if kinds.get(parent, "directory") != "directory":
                raise InvalidManifest("unsafe", f"the path {path[:200]!r} is below a {kinds[parent]}")
            parent = parent.rpartition("/")[0]


def find_path_problem(path: str) -> str | None:
    """Return what is wrong with the path of a file in a workspace, as the end of a sentence, or None."""
    if path.startswith("/") or "\0" in path:
        return "is not inside the session's directory"
    components = path.split("/")
    if any(name in ("", ".", "..") for name in components):
        return "is not in its simplest form inside the session's directory"
    if len(components) > MAX_DEPTH + 1:
        return f"is nested more than {MAX_DEPTH} levels deep"
    if (problem := find_target_problem(path)) is not None:
        return problem
    return "is too long" if any(len(name.encode()) > 255 for name in components) else None


def find_target_problem(target: str) -> str | None:
    """Return what is wrong with the target of a symbolic link, as the end of a sentence, or None."""
    try:
        too_long = len(target.encode()) > MAX_NAME_LENGTH
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    return "is too long" if too_long else None


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
