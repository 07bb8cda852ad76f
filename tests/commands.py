"""Commands and programs in forks of one process that has imported the package: see ``command_process.py``."""

import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

import standfast

SOURCE = str(Path(standfast.__file__).parents[1])
HERE = Path(__file__).parent
DEADLINE = 150
"""Seconds after which a command is taken to hang."""


class ForkedCommand:
    """The process of one command, with methods of :class:`subprocess.Popen`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.settimeout(DEADLINE)
        self.pid = int(connection.recv(100).split()[1])
        self.status: int | None = None

    def wait(self) -> int:
        """Wait for its end and return the exit code, negative if a signal killed it."""
        if self.status is None:
            self.status = int(self._connection.recv(100).split()[1])
            self._connection.close()
        return self.status

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.status is None:
            self._connection.settimeout(0)
            with suppress(BlockingIOError):
                return self.wait()
            self._connection.settimeout(DEADLINE)
        return self.status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class CommandProcess:
    """The process that forks the commands, by its socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(
        self, *words: str, streams: tuple[int, int, int], directory: Path, environment: Mapping[str, str],
        terminal: bool = False,
    ) -> ForkedCommand:  # fmt: skip
        """Start ``python WORDS``, which are a program or ``-m module``, with these standard streams.

        With ``terminal`` they are a terminal, which becomes the controlling one of the process.
        """
        strings = [
            str(directory), "terminal" if terminal else "", str(len(words)), *words,
            *(f"{name}={value}" for name, value in environment.items()),
        ]  # fmt: skip
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(self._path))
        socket.send_fds(connection, [b"".join(os.fsencode(each) + b"\0" for each in strings)], streams)
        return ForkedCommand(connection)

    def run(
        self, *words: str, directory: Path, environment: Mapping[str, str], stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python WORDS`` to its end."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
            given.write(stdin.encode())
            given.seek(0)
            streams = (given.fileno(), out.fileno(), error.fileno())
            code = self.start(*words, streams=streams, directory=directory, environment=environment).wait()
            for written in (out, error):
                written.seek(0)
            return subprocess.CompletedProcess(
                words, code, out.read().decode(errors="replace"), error.read().decode(errors="replace")
            )

    def start_fresh(
        self, *words: str, terminal: int, directory: Path, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start ``python WORDS`` on a terminal in a new interpreter."""
        return subprocess.Popen(
            [sys.executable, *words], stdin=terminal, stdout=terminal, stderr=terminal, cwd=directory, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def write_program(self, file: Path, *words: str) -> None:
        """Write a program for the shell that runs ``python WORDS`` with its arguments."""
        client = shlex.join([sys.executable, "-I", "-S", str(HERE / "command_client.py"), str(self._path), *words])
        file.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
        file.chmod(0o755)


@pytest.fixture(scope="session")
def command_process() -> Iterator[CommandProcess]:
    # Not pytest's directory: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="standfast-commands-") as folder:
        path = Path(folder) / "socket"
        command = [sys.executable, str(HERE / "command_process.py"), str(path)]
        environment = {"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"]}
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield CommandProcess(path)
            assert process.stdin is not None
            process.stdin.close()
