"""The session's own directory, seen from the host.

Every step of a path is opened relative to the one before, and no link is followed: code in the worker may
have put links there that point anywhere.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from standfast.base.errors import InvalidInput, NotFound


async def copy_work_directory(source: int, target: int) -> tuple[str, ...]:
    """Copy what the code of one worker wrote to where that of the next one will look for it.

    No link is followed: links are carried as links. Returns the paths of what had to stay behind: sockets and
    pipes, what cannot be read or does not fit, what is nested deeper than anybody means it.
    """

    def work() -> tuple[str, ...]:
        left: list[str] = []
        try:
            with _open_at("work", os.O_DIRECTORY, source) as old, _open_at("work", os.O_DIRECTORY, target) as new:
                _copy_tree(old, new, ".", left)
        except OSError:
            # The code itself moved its directory away.
            left.append(".")
        return tuple(left)

    copying = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:
        # The descriptors are closed after this, and their numbers may soon belong to something else.
        await asyncio.wait([copying])
        raise


def _copy_tree(source: int, target: int, prefix: str, skipped: list[str], depth: int = 0) -> None:
    for name in os.listdir(source):
        path = os.path.normpath(f"{prefix}/{name}")
        try:
            with as_owner(target):
                carried = _copy_entry(name, source, target)
            if carried is None or (carried and depth == MAX_DEPTH):
                skipped.append(path)
            elif carried:
                with _open_at(name, os.O_DIRECTORY, source) as inner, _open_at(name, os.O_DIRECTORY, target) as copy:
                    _copy_tree(inner, copy, path, skipped, depth + 1)
        except OSError:
            skipped.append(path)


def _copy_entry(name: str, source: int, target: int) -> bool | None:
    """Copy one thing: True when its content has to follow, False when that was all, None when it cannot be."""
    facts = os.stat(name, dir_fd=source, follow_symlinks=False)
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        return False
    if stat.S_ISDIR(facts.st_mode):
        os.mkdir(name, mode | 0o700, dir_fd=target)
        return True
    if not stat.S_ISREG(facts.st_mode):
        return None
    with (
        _open_at(name, os.O_NONBLOCK, source) as old,
        _open_at(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, target) as new,
        open(old, "rb", closefd=False) as reader,
        open(new, "wb", closefd=False) as writer,
    ):
        shutil.copyfileobj(reader, writer, 1 << 20)
        os.fchmod(new, mode)
    return False


@contextlib.contextmanager
def _open_at(name: str, flags: int, parent: int) -> Iterator[int]:
    fd = os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


MAX_DEPTH = 64
"""How many directories may lie in each other; code may make thousands, and each one costs a descriptor."""


@dataclass(frozen=True)
class FileEntry:
    path: str
    size: int
    modified_at: float


FileEntries = list[FileEntry]


class Files:
    """write, read, list and remove, by paths relative to the session's directory."""

    def __init__(self, get_directory: Callable[[], tuple[int, str | None]]) -> None:
        self._get_directory = get_directory

    async def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file, with its parent directories."""
        content = data.encode() if isinstance(data, str) else data
        await asyncio.to_thread(self._write, path, content)

    async def read(self, path: str, *, limit: int = 256 << 20) -> bytes:
        """The whole file; InvalidInput above ``limit`` bytes."""
        return await asyncio.to_thread(self._read, path, limit)

    async def list(self, path: str = ".") -> FileEntries:
        """Every regular file below ``path``, sorted by path."""
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

    def _write(self, path: str, content: bytes) -> None:
        with self._open_parent(path, create=True) as (parent, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                with as_owner(parent):
                    fd = os.open(name, flags, 0o644, dir_fd=parent)
                with open(fd, "wb", buffering=0) as file:
                    _require_regular_file(file.fileno(), path)
                    left = memoryview(content)
                    while left:
                        left = left[file.write(left) :]
            except OSError as problem:
                raise InvalidInput(f"{path!r} cannot be written: {problem.strerror}") from problem

    def _read(self, path: str, limit: int) -> bytes:
        with self._open_parent(path, create=False) as (parent, name):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            except FileNotFoundError:
                raise NotFound("file", path) from None
            except OSError as problem:
                raise InvalidInput(f"{path!r} is not a file of the session: {problem.strerror}") from problem
            with open(fd, "rb") as file:
                _require_regular_file(file.fileno(), path)
                if os.fstat(file.fileno()).st_size > limit:
                    raise InvalidInput(f"{path!r} is larger than {limit} bytes")
                return file.read(limit)

    def _list(self, path: str) -> FileEntries:
        found: FileEntries = []
        with self._open_parent(f"{path}/_", create=False) as (top, _):
            _collect_files(top, os.path.normpath(path), found)
        return sorted(found, key=lambda entry: entry.path)

    @contextlib.contextmanager
    def _open_parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """The open parent directory and the last name, reached without following a link."""
        steps = _split_path(path)
        base, outside = self._get_directory()
        try:
            if outside is None:
                at = os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
            else:
                at = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as problem:
            raise InvalidInput(f"the session's directory was taken away: {problem.strerror}") from problem
        try:
            for step in steps[:-1]:
                if create:
                    with contextlib.suppress(OSError), as_owner(at):
                        os.mkdir(step, 0o755, dir_fd=at)
                try:
                    following = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                except FileNotFoundError:
                    raise NotFound("file", path.removesuffix("/_")) from None
                except OSError as problem:
                    raise InvalidInput(f"{path!r}: {step!r} is not a directory of the session") from problem
                os.close(at)
                at = following
            yield at, steps[-1]
        finally:
            os.close(at)


def _split_path(path: str) -> list[str]:
    if path.startswith("/") or "\0" in path:
        raise InvalidInput(f"{path!r} is not a path inside the session's directory")
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if not steps or ".." in steps:
        raise InvalidInput(f"{path!r} is not a path inside the session's directory")
    return steps


def _collect_files(directory: int, prefix: str, found: FileEntries, depth: int = 0) -> None:
    """The regular files in an open directory and below. What vanishes meanwhile is not there."""
    for name in os.listdir(directory):
        path = os.path.normpath(os.path.join(prefix, name))
        with contextlib.suppress(FileNotFoundError):
            facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                found.append(FileEntry(path, facts.st_size, facts.st_mtime))
            elif stat.S_ISDIR(facts.st_mode):
                _collect_subdirectory(directory, name, path, found, depth)


def _collect_subdirectory(directory: int, name: str, path: str, found: FileEntries, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise InvalidInput(f"more than {MAX_DEPTH} directories lie in each other: {path!r}")
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except NotADirectoryError:
        return
    except PermissionError as problem:
        raise InvalidInput(f"{path!r} cannot be listed: {problem.strerror}") from problem
    try:
        _collect_files(inner, path, found, depth + 1)
    finally:
        os.close(inner)


def _require_regular_file(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise InvalidInput(f"{path!r} is not a regular file")


@contextlib.contextmanager
def as_owner(directory: int) -> Iterator[None]:
    """What a host that is root writes belongs to the worker's user, like the directory it is in.

    Changes the calling thread's user for files only. Inside the worker's file system root does not exist.
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
