"""A Unix socket in the event loop that sends and receives frames, optionally with file descriptors."""

import asyncio
import collections
import contextlib
import os
import socket
from collections.abc import Callable

from standfast.workers.wire.frames import FrameReader, OversizedFrame, encode_frame

_ANCILLARY_SIZE = socket.CMSG_SPACE(8 * 4)
_CHUNK_SIZE = 65536


class FrameSocket:
    """One end of a socket pair.

    ``on_frame`` gets every payload in order, or an OversizedFrame in place of one that was skipped. ``on_disconnect``
    is called once, when the other side has closed. Both run in the reader callback of the loop and must not block.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_frame: Callable[[bytes | OversizedFrame], None],
        on_disconnect: Callable[[], None],
        limit: int = 16 << 20,
        accept_fds: bool = False,
    ) -> None:
        sock.setblocking(False)
        self.sock, self.limit = sock, limit
        self.fds: list[int] = []
        self._on_frame, self._on_disconnect, self._accept_fds = on_frame, on_disconnect, accept_fds
        self._reader = FrameReader(limit=limit)
        self._backlog: collections.deque[memoryview] = collections.deque()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self._paused = False
        self._loop.add_reader(sock, self.read)

    def send(self, payload: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send one frame, or queue it until the socket is writable. Raises FrameTooLarge."""
        data = encode_frame(payload, limit=self.limit)
        if self.closed:
            return
        sent = 0
        if not self._backlog:
            try:
                sent = socket.send_fds(self.sock, [data], list(fds)) if fds else self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                # The other side has closed; the reader callback reports it.
                return
            if sent == len(data):
                return
            self._loop.add_writer(self.sock, self._flush)
        self._backlog.append(memoryview(data)[sent:])

    def read(self) -> None:
        """Read once what is available. Also called outside of the reader callback, to read messages before output."""
        try:
            # A plain recv() makes the kernel close any descriptors that a worker sends along.
            data = self._receive_with_fds() if self._accept_fds else self.sock.recv(_CHUNK_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_disconnect()
            return
        for payload in self._reader.feed(data):
            self._on_frame(payload)
            if self.closed:
                return

    def pause(self) -> None:
        """Stop reading, so that the other side blocks when the socket buffer is full."""
        if not self.closed and not self._paused:
            self._paused = True
            self._loop.remove_reader(self.sock)

    def resume(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            self._loop.add_reader(self.sock, self.read)

    def _receive_with_fds(self) -> bytes:
        data, ancillary, _, _ = self.sock.recvmsg(_CHUNK_SIZE, _ANCILLARY_SIZE)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds.extend(memoryview(content).cast("i"))
        return data

    def take_fds(self) -> list[int]:
        fds, self.fds = self.fds, []
        return fds

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        self.sock.close()
        self._backlog.clear()
        for fd in self.take_fds():
            with contextlib.suppress(OSError):
                os.close(fd)

    def detach(self) -> socket.socket:
        """Return the socket, open, and stop using it. What was read in part or queued is lost."""
        sock = self.sock.dup()
        self.close()
        return sock

    def _flush(self) -> None:
        while self._backlog:
            data = self._backlog[0]
            try:
                sent = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._backlog.clear()
                break
            if sent < len(data):
                self._backlog[0] = data[sent:]
                return
            self._backlog.popleft()
        self._loop.remove_writer(self.sock)
