"""Archives: those that programs extract into a workspace, and the workspace itself as a manifest and chunks."""

import io
import itertools
import math
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import IO, Any

from standfast.sandbox.config import SandboxArchiveLimits
from standfast.sandbox.manifest_entries import ArchiveMember
from standfast.sandbox.workspace_paths import to_relative_path
from standfast.workers.chunks import decode_chunk, encode_chunk
from standfast.workers.wire.manifests import (
    CHUNK_SIZE,
    MAX_ENTRIES,
    Content,
    WorkspaceFile,
    WorkspaceManifest,
    find_path_problem,
    find_target_problem,
    hash_chunk,
)
from standfast.workspaces.storage import WorkspaceStorage


def read_tar(content: bytes, prefix: PurePosixPath, limits: SandboxArchiveLimits) -> Iterator[ArchiveMember]:
    """Yield the files and directories of a tar archive, compressed or not. Links and special files are refused."""
    total = 0
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
        for count, info in enumerate(archive, 1):
            limits.check_members(count)
            path = prefix / to_relative_path(info.name)
            if info.isdir():
                yield ArchiveMember(path, info.mode & 0o777)
                continue
            if not info.isreg():
                raise ValueError(f"{info.name} in the archive is neither a file nor a directory")
            total += info.size
            limits.check_extracted(total)
            yield ArchiveMember(path, info.mode & 0o777, stream=archive.extractfile(info), size=info.size)


def read_zip(content: bytes, prefix: PurePosixPath, limits: SandboxArchiveLimits) -> Iterator[ArchiveMember]:
    """Yield the files and directories of a zip archive."""
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for count, info in enumerate(archive.infolist(), 1):
                limits.check_members(count)
                path, mode = prefix / to_relative_path(info.filename), info.external_attr >> 16 & 0o777
                if info.is_dir():
                    yield ArchiveMember(path, mode or 0o755)
                    continue
                total += info.file_size  # no more is read, whatever the content is
                limits.check_extracted(total)
                with archive.open(info) as file:
                    yield ArchiveMember(path, mode or 0o644, stream=file, size=info.file_size)
    except zipfile.BadZipFile as problem:
        raise ValueError(f"the data are not a zip archive: {problem}") from problem


_SPOOLED_BYTES = 16 << 20
_MAX_TIME_NS = (1 << 63) - 1


def read_archive(
    file: Any, known: Collection[bytes] = (), *, max_bytes: int | None = None, max_entries: int = MAX_ENTRIES
) -> tuple[WorkspaceManifest, dict[bytes, bytes]]:
    """Return the manifest of a tar archive, and its chunks that are not ``known``, as they are stored.

    What a manifest cannot have is among its ``unkept_files``, with the reason. ValueError above ``max_bytes`` or
    ``max_entries``, and tarfile.TarError for what is no archive.
    """
    files: dict[str, WorkspaceFile] = {}
    unkept: dict[str, str] = {}
    chunks: dict[bytes, bytes] = {}
    size = 0
    with tarfile.open(fileobj=file, mode="r") as archive:
        for count, member in enumerate(archive, 1):
            if count > max_entries:
                raise ValueError(f"the workspace has more than {max_entries} files")
            path = member.name.removeprefix("./").rstrip("/")
            if path in ("", "."):
                continue
            if (problem := find_path_problem(path)) is not None:
                unkept[path.encode(errors="replace").decode()[:4096]] = f"the path {problem}"
                continue
            mode, changed = member.mode & 0o777, _get_time_ns(member)
            if member.isdir():
                files[path] = WorkspaceFile(path=path, kind="directory", mode=mode, mtime_ns=changed)
            elif member.issym() and (problem := find_target_problem(member.linkname)) is not None:
                unkept[path] = f"its target {problem}"
            elif member.issym():
                files[path] = WorkspaceFile(path=path, kind="link", mode=mode, mtime_ns=changed, target=member.linkname)
            elif (source := archive.extractfile(member)) is not None:
                size += member.size
                if max_bytes is not None and size > max_bytes:
                    raise ValueError(f"the workspace has more than {max_bytes} bytes")
                content = _read_content(source, known, chunks)
                files[path] = WorkspaceFile(path=path, mode=mode, mtime_ns=changed, content=content)
            else:
                unkept[path] = "it is not a file, a directory or a symbolic link"
    total = sum(file.content.size for file in files.values())
    manifest = WorkspaceManifest(python="", files=tuple(files.values()), unkept_files=unkept, size=total)
    manifest.check()
    return manifest, chunks


def _get_time_ns(member: tarfile.TarInfo) -> int:
    """Return the time of the last change, or the nearest one that a manifest can have."""
    seconds = member.mtime if math.isfinite(member.mtime) else 0.0
    return max(-_MAX_TIME_NS, min(int(seconds * 1e9), _MAX_TIME_NS))


def _read_content(source: IO[bytes], known: Collection[bytes], chunks: dict[bytes, bytes]) -> Content:
    digests, size = [], 0
    while data := source.read(CHUNK_SIZE):
        digest = hash_chunk(data).digest()
        digests.append(digest)
        size += len(data)
        if digest not in known and digest not in chunks:
            chunks[digest] = encode_chunk(data)
    return Content(size, tuple(digests))


async def write_archive(manifest: WorkspaceManifest, storage: WorkspaceStorage) -> io.IOBase:
    """Return the workspace of a manifest as a tar archive."""
    target: Any = tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES)  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for entry in manifest.files:
                info = tarfile.TarInfo(entry.path)
                info.mode, info.mtime = entry.mode, entry.mtime_ns / 1e9
                if entry.kind == "directory":
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                elif entry.kind == "link":
                    info.type, info.linkname = tarfile.SYMTYPE, entry.target
                    archive.addfile(info)
                else:
                    parts = [decode_chunk(digest, await storage.fetch(digest)) for digest in entry.content.chunks]
                    info.size = entry.content.size
                    archive.addfile(info, io.BytesIO(b"".join(parts)))
        target.seek(0)
    except BaseException:
        target.close()
        raise
    archive_file: io.IOBase = target
    return archive_file


def write_members(file: Any, members: Iterable[ArchiveMember]) -> list[PurePosixPath]:
    """Write files and directories to a tar archive, one after the other. Returns their paths."""
    now, paths = time.time(), []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(str(member.path))
            info.mode, info.mtime = member.mode, now
            paths.append(member.path)
            if member.link_target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, member.link_target
                archive.addfile(info)
            elif member.source is not None:
                with open(member.source, "rb") as source:
                    info.size = source.seek(0, io.SEEK_END)
                    source.seek(0)
                    archive.addfile(info, source)
            elif member.stream is not None:
                info.size = member.size
                archive.addfile(info, member.stream)
            elif member.data is not None:
                info.size = len(member.data)
                archive.addfile(info, io.BytesIO(member.data))
            else:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
    return paths


def read_members(
    content: bytes, scheme: str | None, path: PurePosixPath, limits: SandboxArchiveLimits
) -> Iterator[ArchiveMember] | None:
    """Iterate over an archive that is stored at this path, and its members beside it, within limits.

    Without a scheme it is the suffix of the path, or what the content looks like; None if it is neither tar nor zip.
    Links are refused.
    """
    limits.check_input(len(content))
    readers = {"tar": read_tar, "zip": read_zip}
    reader = readers.get(scheme or path.suffix[1:].lower() or "")
    if reader is None and scheme is None:
        if content[:4] == b"PK\x03\x04":
            reader = read_zip
        elif tarfile.is_tarfile(io.BytesIO(content)):
            reader = read_tar
    if reader is None:
        return None
    stored = ArchiveMember(path, mode=0o644, data=content)
    return itertools.chain([stored], reader(content, path.parent, limits))
