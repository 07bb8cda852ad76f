"""Send and receive control messages with file descriptors over a blocking stream socket."""

import array
import socket
from typing import Any

from standfast.workers.wire.control import encode_control
from standfast.workers.wire.frames import FrameReader, OversizedFrame, encode_frame

MAX_DESCRIPTORS = 8
ANCILLARY_SIZE = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


def send_control(sock: socket.socket, message: Any, fds: tuple[int, ...] = ()) -> None:
    data = encode_frame(encode_control(message))
    if fds:
        sent = sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        data = data[sent:]
    if data:
        sock.sendall(data)


class ControlReceiver:
    """Reads payloads, and the descriptors that come with them, from one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fds: list[int] = []
        self._reader = FrameReader()
        self._payloads: list[bytes] = []

    def receive(self) -> bytes | None:
        """Return the next payload, or None when the other side has closed. Descriptors are added to ``fds``."""
        while not self._payloads:
            data, ancillary, _, _ = self.sock.recvmsg(65536, ANCILLARY_SIZE)
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                    self.fds.extend(numbers)
            if not data:
                return None
            self._payloads += [item for item in self._reader.feed(data) if not isinstance(item, OversizedFrame)]
        return self._payloads.pop(0)

    @property
    def has_pending(self) -> bool:
        return bool(self._payloads)

    def take_fds(self) -> list[int]:
        fds, self.fds = self.fds, []
        return fds
