"""The link of a SQLite file: Unix sockets of the processes of one user on one machine.

Each runtime listens on a socket in a directory that only its user can enter, one directory for each file. A process
that was killed leaves its socket behind; the next one that fails to connect to it removes it.
"""

import asyncio
import errno
import hashlib
import os
import socket
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from standfast.base.log import get_logger
from standfast.store.links import MAX_PENDING_BYTES, LinkListener, LinkUnavailable

_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MAX_MESSAGE = 64 * 2**20
_MAX_PATH = 100  # bytes; the kernel allows 107
_CLOSE_SECONDS = 1.0
_MAX_ATTEMPTS = 5
_log = get_logger(__name__)


def get_link_folder(path: str) -> Path:
    """Return the directory of the sockets for a database file, made if necessary and private to this user."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"standfast-{os.getuid()}"
    for part in (folder, folder / name):
        try:
            part.mkdir(mode=0o700, exist_ok=True)
            found = part.lstat()
        except OSError as problem:
            raise LinkUnavailable(f"{part}: {problem.strerror}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise LinkUnavailable(f"{part} is not a directory that only this user can enter")
    return folder / name


class SocketLink:
    """A link through Unix sockets: one connection for each direction between two runtimes, made when it is needed."""

    def __init__(self, folder: Path, name: str, listener: LinkListener) -> None:
        self._folder, self.name, self.listener = folder, name, listener
        self._server: asyncio.Server | None = None
        self.incoming: set[IncomingConnection] = set()
        self.outgoing: dict[str, OutgoingConnection] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.is_closed = False

    @classmethod
    async def open(cls, path: str, name: str, listener: LinkListener) -> "SocketLink":
        if not hasattr(socket, "AF_UNIX"):
            raise LinkUnavailable("this system has no Unix sockets")
        for attempt in range(_MAX_ATTEMPTS):
            link = cls(get_link_folder(path), name, listener)
            try:
                await link._listen()
            except FileNotFoundError as problem:  # the last runtime of the file has just removed the directory
                if attempt == _MAX_ATTEMPTS - 1:
                    raise LinkUnavailable(f"{link._folder}: {problem}") from None
            else:
                return link
        raise AssertionError("unreachable")

    async def _listen(self) -> None:
        # Under a hidden name until it listens: a process that connected earlier would take it for a dead one.
        hidden, shown = self._folder / f".{self.name}", self._folder / self.name
        if len(os.fsencode(hidden)) > _MAX_PATH:
            raise LinkUnavailable(f"the path {shown} is too long for a socket")
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(lambda: IncomingConnection(self), hidden, start_serving=False)
            await self._server.start_serving()
            hidden.rename(shown)
        except FileNotFoundError:
            self._stop_listening()
            raise
        except OSError as problem:
            self._stop_listening()
            raise LinkUnavailable(f"{shown}: {problem}") from None
        except BaseException:
            self._stop_listening()
            raise

    def _stop_listening(self) -> None:
        for name in (self.name, f".{self.name}"):
            (self._folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # the last one removes the directory
            self._folder.rmdir()
        if self._server is not None:
            self._server.close()

    def send(self, to: str, data: bytes) -> None:
        peer = self.outgoing.get(to) or self._connect(to)
        if peer is not None:
            peer.write(data)

    def broadcast(self, data: bytes) -> None:
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name != self.name and not name.startswith("."):
                    self.send(name, data)

    def _connect(self, name: str) -> "OutgoingConnection | None":
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        path = self._folder / name
        try:
            raw.connect(os.fspath(path))  # at once, or never
        except OSError as problem:
            raw.close()
            if problem.errno == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)
            return None
        peer = self.outgoing[name] = OutgoingConnection(self, name)
        task = asyncio.get_running_loop().create_task(self._open_transport(peer, raw))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return peer

    async def _open_transport(self, peer: "OutgoingConnection", raw: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: peer, sock=raw)
        except OSError as problem:
            raw.close()
            self.outgoing.pop(peer.name, None)
            _log.debug("no link to %s: %s", peer.name, problem)

    async def close(self) -> None:
        self.is_closed = True
        (self._folder / self.name).unlink(missing_ok=True)
        for _ in range(3):  # asyncio loses a connection that it has accepted if the server is closed then
            await asyncio.sleep(0)
        self._stop_listening()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=_CLOSE_SECONDS)
        closing = [peer.closed for peer in self.outgoing.values()]
        for sender in list(self.incoming):
            closing.append(sender.closed)
            sender.transport.abort()
        for peer in list(self.outgoing.values()):
            peer.close()
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        for peer in list(self.outgoing.values()):
            peer.abort()
        if self._server is not None:
            await self._server.wait_closed()


class OutgoingConnection(asyncio.Protocol):
    """The messages of this runtime to one other."""

    def __init__(self, link: SocketLink, name: str) -> None:
        self._link, self.name = link, name
        self._waiting: list[bytes] = [link.name.encode()]
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._waiting.append(data)
        elif self._transport.get_write_buffer_size() < MAX_PENDING_BYTES:
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._link.outgoing.get(self.name) is self:
            del self._link.outgoing[self.name]
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class IncomingConnection(asyncio.Protocol):
    """The messages of one other runtime, the first of which is its name."""

    transport: asyncio.Transport

    def __init__(self, link: SocketLink) -> None:
        self._link, self._received, self._sender = link, bytearray(), ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.transport = transport
        self._link.incoming.add(self)
        if self._link.is_closed:  # it was accepted just before
            transport.abort()
        elif not is_same_user(transport.get_extra_info("socket")):
            _log.warning("refused a connection of another user to the link")
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        start = 0
        while len(self._received) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, start)
            if length > _MAX_MESSAGE:
                self.transport.abort()
                return
            end = start + _LENGTH.size + length
            if len(self._received) < end:
                break
            self._deliver(bytes(self._received[start + _LENGTH.size : end]))
            start = end
        del self._received[:start]

    def _deliver(self, message: bytes) -> None:
        if self._sender:
            self._link.listener.receive(self._sender, message)
        else:
            self._sender = message.decode("utf-8", "replace")

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.incoming.discard(self)
        self.closed.set_result(None)
        if self._sender:
            self._link.listener.note_loss(self._sender)


def is_same_user(raw: socket.socket) -> bool:
    """Return whether the process at the other end has the same user, as far as the system tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory admits no other user
    found = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid == os.getuid()
