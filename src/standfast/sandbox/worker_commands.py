"""Commands and files of a workspace, inside its worker.

This module is not imported by the host: its source is executed in the worker when a session starts, and the host calls
its functions. It uses the standard library only. Every function takes and returns plain data.
"""

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import stat
import subprocess
import tarfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

_CHUNK = 65536
# What the pipes of a command hold when it ends: at most 1 MB each, unless root made them larger.
_REST_BYTES = 2_500_000
# Characters of a listing; the host takes no larger value.
_LISTING_LIMIT = 3_000_000


class RunningCommand:
    """A process group with the pipes, or the terminal, of its first process."""

    def __init__(self, arguments: list[str], cwd: str, environment: dict[str, str], tty: bool, merged: bool) -> None:
        self.terminal = -1
        if tty:
            self.terminal, inner = pty.openpty()

            def take_terminal() -> None:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

            try:
                self.process = subprocess.Popen(  # noqa: S603
                    arguments,
                    cwd=cwd,
                    env=environment,
                    stdin=inner,
                    stdout=inner,
                    stderr=inner,
                    start_new_session=True,
                    preexec_fn=take_terminal,
                )
            finally:
                os.close(inner)
            self.streams = {self.terminal: bytearray()}
            self.input = self.terminal
        else:
            self.process = subprocess.Popen(  # noqa: S603
                arguments,
                cwd=cwd,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                start_new_session=True,
            )
            outputs = [self.process.stdout, None if merged else self.process.stderr]
            self.streams = {file.fileno(): bytearray() for file in outputs if file is not None}
            self.input = self.process.stdin.fileno() if self.process.stdin else -1
        self.order = list(self.streams)
        self.open = set(self.streams)
        for fd in (*self.streams, self.input):
            os.set_blocking(fd, False)

    def poll(self, seconds: float, written: bytes) -> tuple[list[bytes], int | None, int]:
        """Wait for output or the end. Returns the output of each stream, the exit code, and how much was written."""
        deadline, taken = time.monotonic() + seconds, self._write(written)
        while self.process.poll() is None:
            left = deadline - time.monotonic()
            if self._read(max(0.0, min(left, 0.02))) or left <= 0:
                break
        if self.process.poll() is not None:
            # What the process wrote is in the pipe; descendants that keep it open, and may write for ever, are not
            # waited for.
            while sum(map(len, self.streams.values())) < _REST_BYTES and self._read(0.0):
                pass
        outputs = [bytes(self.streams[fd]) for fd in self.order]
        for buffer in self.streams.values():
            buffer.clear()
        code = self.process.poll()
        return outputs, code if code is None or code >= 0 else 128 - code, taken  # as a shell reports signals

    def _write(self, data: bytes) -> int:
        if self.process.poll() is not None:
            return len(data)
        try:
            return os.write(self.input, data) if data else 0
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _read(self, seconds: float) -> bool:
        if not self.open:
            time.sleep(seconds)
            return False
        found = False
        for fd in select.select(list(self.open), [], [], seconds)[0]:
            try:
                data = os.read(fd, _CHUNK)
            except OSError:  # a terminal whose processes have ended
                data = b""
            if not data:
                self.open.discard(fd)
            self.streams[fd] += data
            found = found or bool(data)
        return found

    def close_input(self) -> None:
        if self.terminal < 0 and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        if self.terminal >= 0:
            os.close(self.terminal)


commands: dict[int, RunningCommand] = {}


def start(
    number: int, arguments: list[str], cwd: str, environment: dict[str, str], tty: bool, merged: bool
) -> str | None:
    """Start a command. Returns the reason if it cannot be started."""
    try:
        commands[number] = RunningCommand(arguments, cwd, environment, tty, merged)
    except (OSError, subprocess.SubprocessError) as problem:
        return str(problem)
    return None


def poll(number: int, seconds: float, written: bytes = b"", close_input: bool = False) -> Any:
    """Return (outputs, exit code or None, bytes written), or None for an unknown command. One that ended is dropped."""
    command = commands.get(number)
    if command is None:
        return None
    if close_input:
        command.close_input()
    outputs, code, taken = command.poll(seconds, written)
    if code is not None:
        commands.pop(number).close()
    return outputs, code, taken


def kill(numbers: list[int] | None = None) -> None:
    """Kill these commands, or all."""
    for number in list(commands) if numbers is None else numbers:
        command = commands.pop(number, None)
        if command is not None:
            command.kill()
            command.close()


def list_directory(path: str) -> list[tuple[str, int, int, int, int]] | str:
    """Return (name, mode, uid, gid, size) of each entry, or the reason why the directory cannot be read."""
    try:
        found = []
        remaining = _LISTING_LIMIT
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            status = entry.stat(follow_symlinks=False)
            remaining -= len(entry.path) + 14
            if remaining < 0:
                return "the names of its entries are too long together to be listed"
            found.append((entry.path, status.st_mode, status.st_uid, status.st_gid, status.st_size))
    except OSError as problem:
        return problem.strerror or str(problem)
    return found


def make_directory(path: str, parents: bool) -> str | None:
    try:
        if parents or not os.path.isdir(path):
            os.makedirs(path, exist_ok=True) if parents else os.mkdir(path)
    except OSError as problem:
        return problem.strerror or str(problem)
    return None


def move(source: str, destination: str) -> str | None:
    try:
        shutil.move(source, destination)
    except (OSError, shutil.Error) as problem:
        return str(problem)
    return None


def remove(path: str, recursive: bool) -> str | None:
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path) if recursive else os.rmdir(path)
        else:
            os.unlink(path)
    except OSError as problem:
        return problem.strerror or str(problem)
    return None


class ArchiveThread:
    """A thread that writes an archive to a pipe, or extracts one from a pipe, so that the disk need not hold it."""

    def __init__(self, work: Callable[[IO[bytes]], None], *, writes: bool) -> None:
        reading, writing = os.pipe()
        ours, theirs = (reading, writing) if writes else (writing, reading)
        self.pipe: Any = open(ours, "rb" if writes else "wb")  # noqa: SIM115 - finish() closes it
        self.problem: str | None = None

        def run() -> None:
            try:
                with open(theirs, "wb" if writes else "rb") as end:
                    work(end)
            except Exception as problem:  # noqa: BLE001 - reported to the host
                self.problem = str(problem) or type(problem).__name__

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def finish(self) -> str | None:
        """Wait for the thread. Returns the reason if it has failed."""
        with contextlib.suppress(OSError):  # the thread has ended, and does not read what is buffered
            self.pipe.close()
        self.thread.join()
        return self.problem


archive_thread: ArchiveThread | None = None


def _replace_archive_thread(thread: ArchiveThread) -> None:
    global archive_thread
    if archive_thread is not None:  # the host has abandoned it
        archive_thread.finish()
    archive_thread = thread


def pack(root: str, skipped: list[str]) -> None:
    """Begin to archive the workspace; :func:`read_archive` returns the archive."""

    def write(pipe: IO[bytes]) -> None:
        with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            add_directory(archive, root, "", skipped)

    _replace_archive_thread(ArchiveThread(write, writes=True))


def add_directory(archive: tarfile.TarFile, path: str, prefix: str, skipped: list[str]) -> None:
    """Add what a directory contains to an archive, but no sockets, pipes and devices."""
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        archive.inodes.clear()  # type: ignore[attr-defined] # each name of a file gets its content
        info = archive.gettarinfo(entry.path, prefix + entry.name)
        if info is None or info.name in skipped or not (info.isreg() or info.isdir() or info.issym()):
            continue
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.issym():
            archive.addfile(info)
            continue
        with make_readable(entry.path, info.mode):
            if info.isdir():
                archive.addfile(info)
                add_directory(archive, entry.path, f"{info.name}/", skipped)
            else:
                with open(entry.path, "rb") as file:
                    archive.addfile(info, file)


@contextlib.contextmanager
def make_readable(path: str, mode: int) -> Iterator[None]:
    """Let the owner read a file, or list a directory, in the block: a command may have taken that from itself."""
    needed = 0o500 if os.path.isdir(path) else 0o400
    if mode & needed == needed:
        yield
        return
    os.chmod(path, mode | needed)
    try:
        yield
    finally:
        os.chmod(path, mode)


def read_archive(size: int) -> tuple[bytes, str | None]:
    """Return the next bytes of the archive, none at its end, and the reason if it cannot be completed."""
    if archive_thread is None:
        return b"", "there is no archive"
    data = archive_thread.pipe.read(size)
    return data, None if data else archive_thread.finish()


def unpack(root: str) -> None:
    """Begin to extract an archive into the workspace; :func:`write_archive` takes the archive."""

    def extract(pipe: IO[bytes]) -> None:
        with tarfile.open(fileobj=pipe, mode="r|*") as archive:
            archive.extractall(root, filter="tar")

    _replace_archive_thread(ArchiveThread(extract, writes=False))


def write_archive(path: str | None) -> str | None:
    """Pass on the next piece of the archive, and delete its file. None ends it, and returns the reason if it failed."""
    if archive_thread is None:
        return "there is no archive"
    if path is None:
        return archive_thread.finish()
    with open(path, "rb") as file:
        piece = file.read()
    os.unlink(path)
    with contextlib.suppress(OSError):  # the thread has ended: at the end of the archive, or because it failed
        archive_thread.pipe.write(piece)
        archive_thread.pipe.flush()
    return None
