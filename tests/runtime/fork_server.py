"""A process that forks others, each of which does one job: a real process in milliseconds instead of a second.

    python fork_server.py SOCKET

A client connects and sends a JSON line, ``[job, [arguments]]``, where the job is an async function of ``jobs.py``. It
receives ``pid N``, then the output of the job, and at the end ``exit STATUS`` (negative: the signal that killed it).
"""

import asyncio
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress


def serve(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    for name in ("asyncpg", "sqlalchemy.dialects.postgresql.asyncpg", "standfast.store.sqlalchemy.backend"):
        importlib.import_module(name)
    jobs, children = importlib.import_module("jobs"), dict[int, socket.socket]()
    print("ready", flush=True)
    while True:
        # The standard input ends when the parent process has ended.
        ready, _, _ = select.select([listener, sys.stdin], [], [], 0.005 if children else None)
        if sys.stdin in ready:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return
        if listener in ready:
            connection, _ = listener.accept()
            if (pid := os.fork()) == 0:
                listener.close()
                do(jobs, connection)
            children[pid] = connection
            connection.sendall(f"pid {pid}\n".encode())
        reap(children)


def do(jobs: object, connection: socket.socket) -> None:
    """Do the job that the connection asks for, and end."""
    status = 1
    try:
        name, arguments = json.loads(connection.makefile().readline())
        os.dup2(connection.fileno(), 1)
        asyncio.run(getattr(jobs, name)(*arguments))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def reap(children: dict[int, socket.socket]) -> None:
    while children and (found := os.waitpid(-1, os.WNOHANG))[0]:
        pid, status = found
        connection = children.pop(pid)
        with suppress(OSError):  # the client may have disconnected
            connection.sendall(f"exit {os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()


if __name__ == "__main__":
    serve(sys.argv[1])
