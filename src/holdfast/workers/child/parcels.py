"""Blocking exchange of orders, with descriptors attached, over a stream socket."""

import array
import socket
from typing import Any

from holdfast.workers.wire.frames import FrameReader, Oversize, frame
from holdfast.workers.wire.orders import pack

MAX_DESCRIPTORS = 8
SPACE = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


def send(sock: socket.socket, order: Any, fds: tuple[int, ...] = ()) -> None:
    data = frame(pack(order))
    if fds:
        sent = sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        data = data[sent:]
    if data:
        sock.sendall(data)


class Receiver:
    """Payloads and the descriptors that came with them, from one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fds: list[int] = []
        self._reader = FrameReader()
        self._waiting: list[bytes] = []

    def receive(self) -> bytes | None:
        """The next payload; None when the other side is gone. Descriptors collect in ``fds``."""
        while not self._waiting:
            data, ancillary, _, _ = self.sock.recvmsg(65536, SPACE)
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                    self.fds.extend(numbers)
            if not data:
                return None
            self._waiting += [item for item in self._reader.feed(data) if not isinstance(item, Oversize)]
        return self._waiting.pop(0)

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def take_fds(self) -> list[int]:
        fds, self.fds = self.fds, []
        return fds
