"""Carrying the files of a session from one directory to the next, when its worker is replaced."""

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import Iterator

from holdfast.workers.files import MAX_DEPTH, as_owner


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
