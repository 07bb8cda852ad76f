"""A process that has imported the command line and forks a process for each command.

    python command_process.py SOCKET

It takes 20 ms instead of the 400 ms in which an interpreter starts and imports the same modules. A client connects and
sends one packet with the descriptors of standard input, output and error; its strings, each followed by a null, are the
directory, ``terminal`` or nothing, the words after ``python`` with their number before them, and the environment. It
receives ``pid N`` and, at the end, ``exit STATUS`` (negative: the signal that killed the command).
"""

import atexit
import fcntl
import gc
import importlib
import io
import os
import runpy
import select
import signal
import socket
import sys
import termios
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Self

PRELOADED = (
    "standfast.cli.app",
    "standfast.runtime.runtime",
    "standfast.runs.runner",
    "standfast.history.store",
    "standfast.store.sqlite.backend",
    "standfast.workers.session",
    "standfast.workspaces.executor",
)


@dataclass
class Request:
    directory: str
    terminal: bool
    words: list[str]
    environment: dict[str, str]

    @classmethod
    def decode(cls, packet: bytes) -> Self:
        directory, terminal, number, *others = [os.fsdecode(part) for part in packet.split(b"\0")[:-1]]
        words, variables = others[: int(number)], others[int(number) :]
        return cls(directory, terminal == "terminal", words, dict(each.split("=", 1) for each in variables))


def preload() -> None:
    """Import what commands import, except readline, which looks at the terminal and its type when it is imported."""
    sys.modules["readline"] = None  # type: ignore[assignment]
    for name in PRELOADED:
        importlib.import_module(name)
    import typer

    from standfast.cli.app import app

    typer.main.get_command(app).load_all()
    del sys.modules["readline"]
    gc.collect()
    gc.freeze()


def serve(path: str) -> Request | None:
    """Fork a process for each request and return the request in that process; return None at the end of the input."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    children: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        # The standard input ends when the parent process has ended.
        ready, _, _ = select.select([listener, sys.stdin], [], [], 0.005 if children else None)
        if sys.stdin in ready:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return None
        if listener in ready:
            client, _ = listener.accept()
            packet, streams, _, _ = socket.recv_fds(client, 1 << 18, 3)
            if (pid := os.fork()) == 0:
                request = Request.decode(packet)
                take_streams(streams, terminal=request.terminal)
                for one in (listener, client, *children.values()):
                    one.close()
                return request
            for descriptor in streams:
                os.close(descriptor)
            children[pid] = client
            client.send(f"pid {pid}".encode())
        reap(children)


def reap(children: dict[int, socket.socket]) -> None:
    while children and (found := os.waitpid(-1, os.WNOHANG))[0]:
        pid, status = found
        with suppress(OSError), children.pop(pid) as client:  # the client may have disconnected
            client.send(f"exit {os.waitstatus_to_exitcode(status)}".encode())


def take_streams(streams: list[int], *, terminal: bool) -> None:
    """Make these descriptors the standard streams, and a terminal the controlling one of a new session."""
    if terminal:
        os.setsid()
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = open_output(1, errors="strict")
    sys.stderr = open_output(2, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def open_output(number: int, *, errors: str) -> io.TextIOWrapper:
    stream = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    return io.TextIOWrapper(stream, encoding="utf-8", errors=errors, line_buffering=number == 2 or stream.isatty())


def run(request: Request) -> None:
    """Do what ``python WORDS`` does: ``-m module arguments`` or ``program.py arguments``."""
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    if request.terminal:
        importlib.import_module("readline")
    first, *rest = request.words
    if first == "-m":
        sys.path[0], sys.argv = os.getcwd(), rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(first)), [first, *rest]
        runpy.run_path(first, run_name="__main__")


def end(status: object) -> NoReturn:
    """End as the interpreter does, but without taking down its modules, which would take 60 ms."""
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    preload()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (request := serve(sys.argv[1])) is not None:
        try:
            run(request)
        except SystemExit as ended:
            end(ended.code)
        except Exception:
            traceback.print_exc()
            end(1)
        end(0)
