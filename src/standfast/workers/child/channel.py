"""The sockets of a worker process: the protocol socket, and control sockets that carry file descriptors.

Only the main thread reads; a signal can make it read while user code runs. Any thread may write, one at a time. The
main thread never blocks on the write lock, because one of its own interrupted frames may hold it: its messages are
queued, and the holder of the lock writes them. Signal handlers do not raise while a frame is being written or read,
since half a frame would break the protocol.
"""

import array
import collections
import select
import socket
import sys
import threading
from typing import Any

import msgspec

from standfast.workers.child.signals import defer_signals, pending_handlers, run_pending_handlers
from standfast.workers.wire.control import encode_control
from standfast.workers.wire.frames import FrameReader, FrameTooLarge, OversizedFrame, encode_frame
from standfast.workers.wire.messages import AckMessage, AnyMessage, ErrorMessage, Message, decode, encode

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


class HostDisconnected(Exception):
    """The host closed the socket."""


class HostChannel:
    """Sends and receives messages over the protocol socket."""

    def __init__(self, sock: socket.socket, *, limit: int) -> None:
        self.sock, self.limit = sock, limit
        self.inbox: collections.deque[AnyMessage] = collections.deque()
        self.fds: list[int] = []
        self.is_waiting_for_input = False
        self._main_thread_id = threading.get_ident()
        self._reader = FrameReader(limit=limit)
        self._write_lock = threading.Lock()
        # Frames, and the ids of executions to acknowledge.
        self._outbox: list[bytes | str] = []

    # -- writing

    @defer_signals
    def send(self, message: Message) -> None:
        """Send a message. Raises FrameTooLarge or an error of the encoder, with nothing sent."""
        data = encode_frame(encode(message), limit=self.limit)
        if threading.get_ident() != self._main_thread_id:
            with self._write_lock:
                self._write_outbox()
                self.sock.sendall(data)
            self._try_write_outbox()
            return
        self._outbox.append(data)
        self._try_write_outbox()
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))

    def queue_ack(self, execution_id: str) -> None:
        """Queue the acknowledgement of an execution. It is sent with the next message or by ``flush``."""
        self._outbox.append(execution_id)

    @defer_signals
    def send_outcome(self, outcome: Message) -> None:
        """Send the last message of an execution. It replaces the acknowledgement if that was not sent yet."""
        data = encode_frame(encode(outcome), limit=self.limit)
        if self._write_lock.acquire(blocking=False):
            try:
                if len(self._outbox) == 1 and isinstance(self._outbox[0], str):
                    self._outbox[0] = data
                else:
                    self._outbox.append(data)
                self._write_outbox()
            finally:
                self._write_lock.release()
        else:
            self._outbox.append(data)
        self._try_write_outbox()

    @defer_signals
    def flush(self) -> None:
        """Write all queued messages in one call, since each write may wake the host."""
        self._try_write_outbox()
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))

    def _try_write_outbox(self) -> None:
        while self._outbox and self._write_lock.acquire(blocking=False):
            try:
                self._write_outbox()
            finally:
                self._write_lock.release()

    def _write_outbox(self) -> None:
        while batch := self._outbox[:]:
            self.sock.sendall(batch[0] if isinstance(batch[0], bytes) and len(batch) == 1 else _join_batch(batch))
            del self._outbox[: len(batch)]

    def block_writes(self) -> None:
        """Wait until no thread writes, and block all later writes: another process takes over the socket."""
        self._write_lock.acquire()

    def reset_after_fork(self) -> None:
        """Drop queued messages after a fork. The original process sends them."""
        self._write_lock = threading.Lock()
        self._outbox.clear()

    # -- reading

    def receive(self) -> AnyMessage:
        """Wait for the next message. Raises HostDisconnected when the host has closed the socket."""
        while not self.inbox:
            self._read(0)
        return self.inbox.popleft()

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is data to read. Returns False after ``timeout`` seconds."""
        return bool(select.select([self.sock], [], [], timeout)[0])

    @defer_signals
    def read_available(self) -> None:
        """Read what has arrived, without blocking."""
        try:
            while True:
                self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return

    @property
    def unprocessed_data(self) -> bytes:
        """All messages that were read and not handled, as frames, for the process that takes over."""
        frames = b"".join(encode_frame(encode(message)) for message in self.inbox)
        return frames + self._reader.buffered

    def restore_unprocessed(self, data: bytes) -> None:
        """Replace the inbox by the ``unprocessed_data`` of the process before this one."""
        self.inbox.clear()
        self._reader = FrameReader(limit=self.limit)
        self._decode_frames(data)

    def _read(self, flags: int) -> None:
        data, ancillary, _, _ = self.sock.recvmsg(65536, ANCILLARY_SIZE, flags)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds.extend(memoryview(content).cast("i"))
        if not data:
            raise HostDisconnected
        self._decode_frames(data)

    def _decode_frames(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            if isinstance(payload, OversizedFrame):
                problem: Exception = FrameTooLarge(payload.size, self.limit)
            else:
                try:
                    self.inbox.append(decode(payload))
                    continue
                except msgspec.DecodeError as error:
                    problem = error
            self.send(ErrorMessage(exception_type=type(problem).__name__, exception_message=str(problem)))


def _join_batch(batch: list[bytes | str]) -> bytes:
    return b"".join(
        encode_frame(encode(AckMessage(of=item, execution_id=item))) if isinstance(item, str) else item
        for item in batch
    )
