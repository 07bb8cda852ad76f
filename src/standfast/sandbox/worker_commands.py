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
import time
from typing import Any

_CHUNK = 65536
_POLL_BYTES = 262144


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
            # What the process wrote is in the pipe; descendants that keep it open are not waited for.
            while self._read(0.0):
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
        if sum(map(len, self.streams.values())) >= _POLL_BYTES:
            return True
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
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            status = entry.stat(follow_symlinks=False)
            found.append((entry.path, status.st_mode, status.st_uid, status.st_gid, status.st_size))
    except OSError as problem:
        return problem.strerror or str(problem)
    return found


def make_directory(path: str, parents: bool) -> str | None:
    try:
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


def pack(root: str, archive_name: str, skipped: list[str]) -> str | None:
    """Write the workspace to an archive in its root. Returns the reason if that fails."""
    left_out = {archive_name, *skipped}

    def select_member(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if info.name in left_out or not (info.isreg() or info.isdir() or info.issym()):
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    try:
        with tarfile.open(os.path.join(root, archive_name), "w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(os.listdir(root)):
                archive.add(os.path.join(root, name), arcname=name, filter=select_member)
    except (OSError, tarfile.TarError) as problem:
        remove(os.path.join(root, archive_name), recursive=False)
        return str(problem)
    return None


def unpack(root: str, archive_name: str) -> str | None:
    """Extract an archive in the root into the workspace and delete it. Returns the reason if that fails."""
    path = os.path.join(root, archive_name)
    try:
        with tarfile.open(path) as archive:
            archive.extractall(root, filter="tar")
    except (OSError, tarfile.TarError) as problem:
        return str(problem)
    finally:
        os.unlink(path)
    return None
