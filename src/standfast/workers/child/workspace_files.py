"""Read the files of a session's directory for a capture, as they are at one moment."""

import contextlib
import os
import stat
import time
from typing import NamedTuple

from standfast.workers.wire.manifests import MAX_DEPTH, WorkspaceFile, find_path_problem

_MAX_FILES = 100_000
# Times have the resolution of a clock tick: a file that was changed just now may change again unnoticed.
_UNSETTLED_NS = 50_000_000
# A time can be set to one that no integer of a message has. They are compared only.
_TIME_BITS = (1 << 63) - 1


class TooLarge(Exception):
    """The workspace has more bytes than the host accepts."""


class Directory(NamedTuple):
    """The files and directories with the data of those that have changed, and the reason for each that is left out."""

    files: list[tuple[WorkspaceFile, bytes | None]]
    unkept: dict[str, str]


def read_files(root: str, previous: tuple[WorkspaceFile, ...], max_bytes: int) -> Directory:
    """Read every file that is not the same as in ``previous``. Raises TooLarge if all have more than ``max_bytes``.

    A file is the same if its inode, its size, and the times of its last change are.
    """
    reader = _Reader({file.path: file for file in previous}, max_bytes)
    reader.walk(root, "", 0)
    return Directory(reader.files, reader.unkept)


def keep_only(root: str, paths: set[str]) -> None:
    """Remove everything else below the directory."""
    for folder, directories, files in os.walk(root, topdown=False):
        for remove, names in ((os.unlink, files), (os.rmdir, directories)):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.relpath(path, root) not in paths:
                    with contextlib.suppress(OSError):  # a directory that is not empty, or a link to one
                        remove(path)


class _Reader:
    def __init__(self, previous: dict[str, WorkspaceFile], max_bytes: int) -> None:
        self.files: list[tuple[WorkspaceFile, bytes | None]] = []
        self.unkept: dict[str, str] = {}
        self._previous, self._max_bytes = previous, max_bytes
        self._size = 0

    def walk(self, folder: str, prefix: str, depth: int) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as problem:
            self._leave_out(prefix.rstrip("/") or ".", problem.strerror or "it cannot be listed")
            return
        for entry in entries:
            path = prefix + entry.name
            problem_of_path = find_path_problem(path)
            if problem_of_path is not None or len(self.files) >= _MAX_FILES:
                self._leave_out(path, f"the path {problem_of_path}" if problem_of_path else "there are too many files")
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    self._add_directory(entry.path, path, status, depth)
                elif stat.S_ISREG(status.st_mode):
                    self._add_file(entry.path, path, status)
                else:
                    self._leave_out(path, "it is neither a regular file nor a directory")
            except OSError as problem:
                self._leave_out(path, problem.strerror or "it cannot be read")

    def _add_directory(self, folder: str, path: str, status: os.stat_result, depth: int) -> None:
        self.files.append((WorkspaceFile(path=path, kind="directory", mode=stat.S_IMODE(status.st_mode) & 0o777), None))
        if depth >= MAX_DEPTH:
            self._leave_out(path, f"directories are nested more than {MAX_DEPTH} levels deep")
        else:
            self.walk(folder, f"{path}/", depth + 1)

    def _add_file(self, full_path: str, path: str, status: os.stat_result) -> None:
        self._size += status.st_size
        if self._size > self._max_bytes:
            raise TooLarge(str(self._size))
        file = WorkspaceFile(
            path=path,
            mode=stat.S_IMODE(status.st_mode) & 0o777,
            inode=status.st_ino if status.st_ctime_ns + _UNSETTLED_NS < time.time_ns() else 0,
            mtime_ns=status.st_mtime_ns & _TIME_BITS,
            ctime_ns=status.st_ctime_ns & _TIME_BITS,
        )
        known = self._previous.get(path)
        if known is not None and _is_same(known, file, status.st_size):
            self.files.append((known, None))
        else:
            self.files.append((file, _read_file(full_path, self._max_bytes)))

    def _leave_out(self, path: str, reason: str) -> None:
        with contextlib.suppress(UnicodeEncodeError):
            path.encode()
            self.unkept[path[:4096]] = reason[:500]
            return
        self.unkept[path.encode("utf-8", "backslashreplace").decode()[:4096]] = reason[:500]


def _is_same(known: WorkspaceFile, file: WorkspaceFile, size: int) -> bool:
    return (
        known.kind == "file"
        and known.inode == file.inode != 0
        and known.content.size == size
        and known.mode == file.mode
        and (known.mtime_ns, known.ctime_ns) == (file.mtime_ns, file.ctime_ns)
    )


def _read_file(path: str, max_bytes: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        data = file.read(max_bytes + 1)
        while len(data) <= max_bytes and (more := file.read(max_bytes + 1 - len(data))):
            data += more
    if len(data) > max_bytes:
        raise TooLarge(str(len(data)))
    return data
