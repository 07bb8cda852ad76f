"""The worker's end of the protocol socket.

Only the main thread reads, and a signal can make it look for mail while user code runs. Any thread may
write, one at a time. The main one never waits for the pen, which its own interrupted frame may hold: what
it has to say is queued, and whoever holds the pen writes it. While it writes or reads, no signal makes it
leave: half a frame would be the end of the conversation.
"""

import collections
import select
import socket
import sys
import threading

import msgspec

from standfast.workers.child.fd_messages import ANCILLARY_SIZE
from standfast.workers.child.signals import defer_signals, pending_handlers, run_pending_handlers
from standfast.workers.wire.frames import FrameReader, FrameTooLarge, OversizedFrame, encode_frame
from standfast.workers.wire.messages import AckMessage, AnyMessage, ErrorMessage, Message, decode, encode


class HostDisconnected(Exception):
    """The host closed the socket."""


class HostChannel:
    def __init__(self, sock: socket.socket, *, limit: int) -> None:
        self.sock, self.limit = sock, limit
        self.inbox: collections.deque[AnyMessage] = collections.deque()
        self.fds: list[int] = []
        self.is_waiting_for_input = False
        self._main_thread_id = threading.get_ident()
        self._reader = FrameReader(limit=limit)
        self._write_lock = threading.Lock()
        # Frames, and executions to be acknowledged.
        self._outbox: list[bytes | str] = []

    # -- writing

    @defer_signals
    def send(self, message: Message) -> None:
        """Send, or raise FrameTooLarge or the encoder's complaint with nothing sent."""
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
        """Queue the acknowledgement of an execution, which leaves with the next message, or by ``release``."""
        self._outbox.append(execution_id)

    @defer_signals
    def send_outcome(self, outcome: Message) -> None:
        """Send the last message of an execution, which stands for its acknowledgement if that has not left yet."""
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
        """Write all that is queued, at once: each write may wake the host."""
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
        """Wait for whoever writes to finish, and let nobody write any more: another process goes on."""
        self._write_lock.acquire()

    def reset_after_fork(self) -> None:
        """After a fork: what other threads had in hand is the other process's to finish."""
        self._write_lock = threading.Lock()
        self._outbox.clear()

    # -- reading

    def receive(self) -> AnyMessage:
        """The next message. Raises Gone when the host has closed."""
        while not self.inbox:
            self._read(0)
        return self.inbox.popleft()

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something to ``glance`` at; False after ``timeout`` seconds."""
        return bool(select.select([self.sock], [], [], timeout)[0])

    @defer_signals
    def read_available(self) -> None:
        """Take in what has arrived, without waiting."""
        try:
            while True:
                self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return

    @property
    def unprocessed_data(self) -> bytes:
        """Everything taken in and not acted on, as a stream of frames: what a successor must be given."""
        waiting = b"".join(encode_frame(encode(message)) for message in self.inbox)
        return waiting + self._reader.buffered

    def restore_unprocessed(self, data: bytes) -> None:
        """Go on from a predecessor's ``unread``."""
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
