"""Access from the host to the directory of a session.

Each component of a path is opened relative to its parent, and no symbolic link is followed: code in the worker may
have created links that point anywhere.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from standfast.base.errors import InvalidInput, NotFound
from standfast.lifecycle.scope import run_to_end

MAX_DEPTH = 64
"""How deep directories may be nested. User code can create thousands of levels, and each one needs a descriptor."""
MAX_LISTING = 16 << 20
"""How many characters the paths of a listing may have. A path of 64 levels can be repeated for each of many files."""


async def copy_work_directory(source: int, target: int) -> tuple[str, ...]:
    """Copy the files of one worker's directory into that of its successor. Symbolic links are copied as links.

    Returns the paths that were not copied: sockets and pipes, files that cannot be read or do not fit, and
    directories nested deeper than ``MAX_DEPTH``. Above ``MAX_LISTING``, ``...`` stands for the others.
    """

    def work() -> tuple[str, ...]:
        skipped = _PathList()
        try:
            with _open_at("work", os.O_DIRECTORY, source) as old, _open_at("work", os.O_DIRECTORY, target) as new:
                _copy_tree(old, new, ".", skipped)
        except OSError:
            # User code has moved the directory away.
            skipped.append(".")
        return tuple(skipped.paths)

    # Also when the caller is cancelled: it closes the descriptors then, and their numbers may be used again.
    return await run_to_end(asyncio.to_thread(work), grace=None)


class _PathList:
    """Paths of at most ``MAX_LISTING`` characters together; then ``...``, which stands for all others."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._remaining = MAX_LISTING

    def append(self, path: str) -> None:
        if self._remaining >= 0:
            self._remaining -= len(path)
            self.paths.append(path if self._remaining >= 0 else "...")


def _copy_tree(source: int, target: int, prefix: str, skipped: _PathList, depth: int = 0) -> None:
    for name in _iterate_names(source):
        path = os.path.normpath(f"{prefix}/{name}")
        try:
            with as_owner(target):
                kind = _copy_entry(name, source, target)
            if kind == "other" or (kind == "directory" and depth == MAX_DEPTH):
                skipped.append(path)
            elif kind == "directory":
                with _open_at(name, os.O_DIRECTORY, source) as inner, _open_at(name, os.O_DIRECTORY, target) as copy:
                    _copy_tree(inner, copy, path, skipped, depth + 1)
        except OSError:
            skipped.append(path)


def _copy_entry(name: str, source: int, target: int) -> Literal["file", "directory", "other"]:
    """Copy a file or a link, or create a directory whose content the caller copies. Nothing else can be copied."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        return "file"
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(name, mode | 0o700, dir_fd=target)
        return "directory"
    if not stat.S_ISREG(status.st_mode):
        return "other"
    with (
        _open_at(name, os.O_NONBLOCK, source) as old,
        _open_at(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, target) as new,
        open(old, "rb", closefd=False) as reader,
        open(new, "wb", closefd=False) as writer,
    ):
        shutil.copyfileobj(reader, writer, 1 << 20)
        os.fchmod(new, mode)
    return "file"


@contextlib.contextmanager
def _open_at(name: str, flags: int, parent: int) -> Iterator[int]:
    fd = os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class WorkerFile:
    """A regular file below the session's directory."""

    path: str
    size: int
    modified_at: float


FileEntries = list[WorkerFile]


class Files:
    """Write, read, list and remove files by their path relative to the session's directory."""

    def __init__(self, get_directory: Callable[[], tuple[int, str | None]]) -> None:
        self._get_directory = get_directory

    async def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file and create its missing parent directories."""
        content = data.encode() if isinstance(data, str) else data
        await asyncio.to_thread(self._write, path, content)

    async def read(self, path: str, *, limit: int = 256 << 20) -> bytes:
        """Return the content of a file. Raises InvalidInput when it has more than ``limit`` bytes."""
        return await asyncio.to_thread(self._read, path, limit)

    async def list(self, path: str = ".") -> FileEntries:
        """Return all regular files below ``path``, sorted by path.

        Raises InvalidInput when directories are nested too deep, or the paths together are too long.
        """
        return await asyncio.to_thread(self._list, path)

    async def remove(self, path: str) -> None:
        def work() -> None:
            with self._open_parent(path, create=False) as (parent, name):
                os.unlink(name, dir_fd=parent)

        try:
            await asyncio.to_thread(work)
        except FileNotFoundError:
            raise NotFound("file", path) from None
        except OSError as problem:
            raise InvalidInput(f"{path!r} cannot be removed: {problem.strerror}") from problem

    def write_entries(self, entries: Iterable[tuple[str, int, bytes | None]]) -> dict[str, str]:
        """Write files with their modes, and directories, whose content is None. Blocks.

        Returns the reason for each path that could not be written.
        """
        failed: dict[str, str] = {}
        directories: list[tuple[str, int]] = []
        for path, mode, content in entries:
            try:
                if content is None:
                    with self._open_parent(f"{path}/_", create=True):
                        directories.append((path, mode))
                else:
                    self._write(path, content, mode)
            except (InvalidInput, NotFound) as problem:
                failed[path] = str(problem)
        # Last and from below, since a mode may forbid to write or to look inside.
        for path, mode in reversed(directories):
            with contextlib.suppress(InvalidInput, NotFound), self._open_parent(f"{path}/_", create=False) as (top, _):
                os.fchmod(top, mode)
        return failed

    def _write(self, path: str, content: bytes, mode: int | None = None) -> None:
        with self._open_parent(path, create=True) as (parent, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                with as_owner(parent):
                    fd = os.open(name, flags, 0o644, dir_fd=parent)
                with open(fd, "wb", buffering=0) as file:
                    _require_regular_file(file.fileno(), path)
                    remaining = memoryview(content)
                    while remaining:
                        remaining = remaining[file.write(remaining) :]
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
            except OSError as problem:
                raise InvalidInput(f"{path!r} cannot be written: {problem.strerror}") from problem

    def _read(self, path: str, limit: int) -> bytes:
        with self._open_parent(path, create=False) as (parent, name):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            except FileNotFoundError:
                raise NotFound("file", path) from None
            except OSError as problem:
                raise InvalidInput(
                    f"{path!r} is not a file in the session's directory: {problem.strerror}"
                ) from problem
            try:
                # Before ``open``, which does not close the descriptor of a directory that it refuses.
                _require_regular_file(fd, path)
                if os.fstat(fd).st_size > limit:
                    raise InvalidInput(f"{path!r} is larger than {limit} bytes")
                with open(fd, "rb", closefd=False) as file:
                    return file.read(limit)
            finally:
                os.close(fd)

    def _list(self, path: str) -> FileEntries:
        entries: FileEntries = []
        remaining = MAX_LISTING
        with self._open_parent(f"{path}/_", create=False) as (top, _):
            for entry in _iterate_files(top, os.path.normpath(path)):
                remaining -= len(entry.path)
                if remaining < 0:
                    raise InvalidInput(f"the paths of the files below {path!r} are too long to be listed")
                entries.append(entry)
        return sorted(entries, key=lambda entry: entry.path)

    @contextlib.contextmanager
    def _open_parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """Open the parent directory of a path without following links. Yields it and the last component."""
        components = _split_path(path)
        base, workdir = self._get_directory()
        try:
            if workdir is None:
                parent = os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
            else:
                parent = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as problem:
            raise InvalidInput(
                f"the session's directory was moved or removed by its code: {problem.strerror}"
            ) from problem
        try:
            for name in components[:-1]:
                if create:
                    with contextlib.suppress(OSError), as_owner(parent):
                        os.mkdir(name, 0o755, dir_fd=parent)
                try:
                    child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                except FileNotFoundError:
                    raise NotFound("file", path.removesuffix("/_")) from None
                except OSError as problem:
                    raise InvalidInput(f"{path!r}: {name!r} is not a directory of the session") from problem
                os.close(parent)
                parent = child
            yield parent, components[-1]
        finally:
            os.close(parent)


def _split_path(path: str) -> list[str]:
    if path.startswith("/") or "\0" in path:
        raise InvalidInput(f"{path!r} is not a path inside the session's directory")
    components = [name for name in path.split("/") if name not in ("", ".")]
    if not components or ".." in components:
        raise InvalidInput(f"{path!r} is not a path inside the session's directory")
    return components


def _iterate_files(directory: int, prefix: str, depth: int = 0) -> Iterator[WorkerFile]:
    """Yield the regular files in and below an open directory. Files that are removed meanwhile are skipped."""
    for name in _iterate_names(directory):
        path = os.path.normpath(os.path.join(prefix, name))
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield WorkerFile(path, status.st_size, status.st_mtime)
        elif stat.S_ISDIR(status.st_mode):
            yield from _iterate_subdirectory(directory, name, path, depth)


def _iterate_names(directory: int) -> Iterator[str]:
    """Yield the names in an open directory one by one: code can make millions where its files are not limited."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _iterate_subdirectory(directory: int, name: str, path: str, depth: int) -> Iterator[WorkerFile]:
    if depth >= MAX_DEPTH:
        raise InvalidInput(f"directories are nested more than {MAX_DEPTH} levels deep: {path!r}")
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except (NotADirectoryError, FileNotFoundError):
        return
    except PermissionError as problem:
        raise InvalidInput(f"{path!r} cannot be listed: {problem.strerror}") from problem
    try:
        yield from _iterate_files(inner, path, depth + 1)
    finally:
        os.close(inner)


def _require_regular_file(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise InvalidInput(f"{path!r} is not a regular file")


@contextlib.contextmanager
def as_owner(directory: int) -> Iterator[None]:
    """Create files as the owner of ``directory``, when the host runs as root and the worker does not.

    Changes the user of the calling thread for file access only. The root user does not exist in the worker's file
    system.
    """
    owner = os.fstat(directory)
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.setfsgid(owner.st_gid)
    libc.setfsuid(owner.st_uid)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)
