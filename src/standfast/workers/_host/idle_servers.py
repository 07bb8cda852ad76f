"""Fork servers that no session uses, kept for a while for the next session, in whichever event loop that is.

An idle server is a process and a socket: no task and no timer of a loop belong to it, so that it neither keeps a
program from exiting nor a loop from closing. It exits by itself after its time, and when this process ends.
"""

import atexit
import contextlib
import os
import socket
import subprocess
from collections.abc import Hashable
from typing import NamedTuple

_MAX_SERVERS = 4


class IdleForkServer(NamedTuple):
    """A process that waits for the next session, and the number of the descriptor of its socket."""

    pid: int
    descriptor: int


class IdleServer(NamedTuple):
    """The process and the socket of a fork server that no session uses."""

    process: "subprocess.Popen[bytes]"
    sock: socket.socket

    def close(self) -> None:
        """End the process and wait for it, which takes milliseconds."""
        self.sock.close()
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()


# Several threads may have event loops: entries are added and taken with single operations of the dictionary.
_servers: dict[Hashable, IdleServer] = {}


def add_idle_server(key: Hashable, server: IdleServer) -> None:
    """Keep a server. The one that has waited the longest is ended when there are too many."""
    if (previous := _servers.pop(key, None)) is not None:
        previous.close()
    _servers[key] = server
    _end_exited()
    while len(_servers) > _MAX_SERVERS:
        with contextlib.suppress(StopIteration, RuntimeError, KeyError):
            _servers.pop(next(iter(_servers))).close()


def take_idle_server(key: Hashable) -> IdleServer | None:
    """Return a server that is still running, and remove it here."""
    _end_exited()
    return _servers.pop(key, None)


def list_idle_fork_servers() -> list[IdleForkServer]:
    """Return the fork servers that are kept for the next session."""
    _end_exited()
    return [IdleForkServer(server.process.pid, server.sock.fileno()) for server in list(_servers.values())]


def close_idle_fork_servers() -> None:
    """End the fork servers that are kept for the next session, now. Those that sessions use are not affected."""
    for key in list(_servers):
        if (server := _servers.pop(key, None)) is not None:
            server.close()


def _end_exited() -> None:
    for key, server in list(_servers.items()):
        if server.process.poll() is not None and _servers.pop(key, None) is server:
            server.close()


def _forget_after_fork() -> None:
    """A fork of this process must not use the sockets: the servers belong to this process."""
    for server in _servers.values():
        server.sock.close()
        # It is not a child of the fork, which must neither wait for it nor warn that it is running.
        server.process.returncode = 0
    _servers.clear()


atexit.register(close_idle_fork_servers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
