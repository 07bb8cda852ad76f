"""The worker's end of the protocol socket.

Only the main thread reads, and a signal can make it look for mail while user code runs. Any thread may
write; whoever holds the pen also writes what was queued meanwhile, so a signal handler never waits for a
lock that the interrupted frame holds.
"""

import collections
import select
import socket
import threading
import time

import msgspec

from holdfast.workers.child.parcels import SPACE
from holdfast.workers.wire.frames import FrameReader, FrameTooLarge, Oversize, frame
from holdfast.workers.wire.messages import AnyMessage, ErrorMessage, Message, decode, encode


class Gone(Exception):
    """The host closed the socket."""


class Post:
    def __init__(self, sock: socket.socket, *, limit: int) -> None:
        self.sock, self.limit = sock, limit
        self.inbox: collections.deque[AnyMessage] = collections.deque()
        self.fds: list[int] = []
        self.reading = False
        self._reader = FrameReader(limit=limit)
        self._pen = threading.Lock()
        self._outbox: list[bytes] = []

    # -- writing

    def send(self, message: Message) -> None:
        """Send, or raise FrameTooLarge or the encoder's complaint with nothing sent."""
        self.hold(message)
        self.release()

    def hold(self, message: Message) -> None:
        """Queue a message that leaves with the next one, or by ``release``."""
        self._outbox.append(frame(encode(message), limit=self.limit))

    def release(self) -> None:
        """Write all that is queued, at once: each write may wake the host."""
        while self._outbox and self._pen.acquire(blocking=False):
            try:
                while batch := self._outbox[:]:
                    self.sock.sendall(batch[0] if len(batch) == 1 else b"".join(batch))
                    # Not before: an interrupt of the running code may strike while its output is written.
                    del self._outbox[: len(batch)]
            finally:
                self._pen.release()

    # -- reading

    def receive(self, timeout: float | None = None) -> AnyMessage | None:
        """The next message; None after ``timeout`` seconds. Raises Gone when the host has closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.inbox:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                    return None
            self.reading = True
            try:
                self._read(0)
            finally:
                self.reading = False
        return self.inbox.popleft()

    def glance(self) -> None:
        """Take in what has arrived, without waiting. For the signal handler, when nobody is reading."""
        try:
            while True:
                self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return

    @property
    def unread(self) -> bytes:
        """Everything taken in and not acted on, as a stream of frames: what a successor must be given."""
        waiting = b"".join(frame(encode(message)) for message in self.inbox)
        return waiting + self._reader.buffered

    def take_up(self, unread: bytes) -> None:
        """Go on from a predecessor's ``unread``."""
        self.inbox.clear()
        self._reader = FrameReader(limit=self.limit)
        self._accept(unread)

    def _read(self, flags: int) -> None:
        data, ancillary, _, _ = self.sock.recvmsg(65536, SPACE, flags)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds.extend(memoryview(content).cast("i"))
        if not data:
            raise Gone
        self._accept(data)

    def _accept(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            if isinstance(payload, Oversize):
                problem: Exception = FrameTooLarge(payload.size, self.limit)
            else:
                try:
                    self.inbox.append(decode(payload))
                    continue
                except msgspec.DecodeError as error:
                    problem = error
            self.send(ErrorMessage(exception_type=type(problem).__name__, exception_message=str(problem)))
