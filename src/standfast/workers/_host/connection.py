"""The host's end of one worker: the protocol socket and the output pipes, read in callbacks of the event loop."""

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import sys
import termios
from collections.abc import Callable
from typing import Protocol

import msgspec

from standfast.workers._host.frame_socket import FrameSocket
from standfast.workers._host.message_limits import MessageLimits, measure_weight
from standfast.workers._host.output import StreamName
from standfast.workers._host.process_group import ProcessGroup
from standfast.workers.errors import Cause
from standfast.workers.wire.frames import OversizedFrame
from standfast.workers.wire.messages import AnyMessage, Message, MessageHeader, decode, decode_header, encode

_FIONREAD = termios.FIONREAD
_SIOCOUTQ = 0x5411
_ZERO_INT = bytes(4)
_CHUNK_SIZE = 65536
_DISCONNECT_GRACE = 0.25
# A frame of this size cannot become much, whatever its parts are, and nearly all frames are smaller.
_UNMEASURED_SIZE = 16384
_MAX_PROBLEM_LENGTH = 1000
# More than a socket buffer holds.
_MAX_LAST_READS = 256


class ConnectionListener(Protocol):
    """Receives what a connection reads. The methods run in callbacks of the event loop and must not block.

    Of a frame above ``frame_weight_limit``, only the header is decoded, and a message above ``message_limits`` is
    dropped: ``on_heavy_frame`` gets what it belonged to.
    """

    frame_weight_limit: int
    message_limits: MessageLimits

    def on_message(self, message: AnyMessage) -> None: ...
    def on_output(self, stream: StreamName, data: bytes) -> None: ...
    def on_decode_error(self, problem: str) -> None: ...
    def on_oversized_frame(self, size: int) -> None: ...
    def on_heavy_frame(self, header: MessageHeader) -> None: ...
    def on_exit(self, cause: Cause) -> None: ...


class WorkerEndpoints:
    """The descriptors of a new worker: the host's ends, and the remote ends to send to the worker and close."""

    def __init__(self) -> None:
        self.protocol_socket, self._remote_socket = socket.socketpair()
        self.stdout_fd, self._remote_stdout_fd = os.pipe()
        self.stderr_fd, self._remote_stderr_fd = os.pipe()

    @property
    def remote_fds(self) -> tuple[int, int, int]:
        return self._remote_socket.fileno(), self._remote_stdout_fd, self._remote_stderr_fd

    def close_remote(self) -> None:
        """Close the remote ends, after the worker has received them."""
        self._remote_socket.close()
        for fd in (self._remote_stdout_fd, self._remote_stderr_fd):
            os.close(fd)

    def close(self) -> None:
        self.protocol_socket.close()
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)


class OutputPipe:
    """One output stream. Reads one chunk per iteration of the loop, so that much output does not block other tasks."""

    def __init__(self, fd: int, *, before_read: Callable[[], None], on_data: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self.fd, self._before_read, self._on_data = fd, before_read, on_data
        self._loop = asyncio.get_running_loop()
        self.is_reading = False
        self.is_open = True
        self.resume()

    def read(self) -> None:
        self._before_read()
        if not self.is_reading:
            return
        try:
            data = os.read(self.fd, _CHUNK_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            # All writers have closed the pipe. The exit of the worker is reported by the supervisor, not here.
            self.pause()
            self.is_open = False

    def drain(self) -> None:
        """Read what the pipe holds now, and no more: processes that write later may never stop."""
        if not self.is_open:
            return
        available = fcntl.ioctl(self.fd, _FIONREAD, _ZERO_INT)
        if available == _ZERO_INT:
            return
        remaining = int.from_bytes(available, sys.byteorder)
        while remaining > 0:
            try:
                data = os.read(self.fd, min(remaining, _CHUNK_SIZE))
            except OSError:
                return
            if not data:
                return
            remaining -= len(data)
            self._on_data(data)

    def pause(self) -> None:
        if self.is_reading:
            self.is_reading = False
            self._loop.remove_reader(self.fd)

    def resume(self) -> None:
        if self.is_open and not self.is_reading:
            self.is_reading = True
            self._loop.add_reader(self.fd, self.read)

    def close(self) -> None:
        if self.fd >= 0:
            self.pause()
            self.is_open = False
            os.close(self.fd)
            self.fd = -1


class WorkerConnection:
    """The connection to one worker, from its fork to its exit.

    ``on_exit`` is called once, after everything that the worker sent before it ended.
    """

    def __init__(
        self,
        process_group: ProcessGroup,
        token: str,
        endpoints: WorkerEndpoints,
        listener: ConnectionListener,
        *,
        limit: int,
    ) -> None:
        self.process_group, self.token, self.limit = process_group, token, limit
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.frame_socket = FrameSocket(
            endpoints.protocol_socket, on_frame=self._on_frame, on_disconnect=self._on_disconnect, limit=limit
        )
        self.pipes: dict[StreamName, OutputPipe] = {
            "stdout": self._create_pipe("stdout", endpoints.stdout_fd),
            "stderr": self._create_pipe("stderr", endpoints.stderr_fd),
        }
        self._pipes_by_fd = {pipe.fd: pipe for pipe in self.pipes.values()}
        self._output_poll = select.poll()
        for fd in self._pipes_by_fd:
            self._output_poll.register(fd, select.POLLIN)
        self._paused = self._ignores_messages = False
        self.exit_future: asyncio.Future[Cause] = self._loop.create_future()
        process_group.register(token, self._on_worker_exit)

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message. Raises FrameTooLarge, with nothing sent, when it is above the frame limit."""
        self.frame_socket.send(encode(message), fds)

    def is_send_queue_empty(self) -> bool:
        """Whether the worker has read everything that was sent; False where the system does not report it."""
        if not sys.platform.startswith("linux") or self.frame_socket.closed:
            return False
        return fcntl.ioctl(self.frame_socket.sock, _SIOCOUTQ, _ZERO_INT) == _ZERO_INT

    def wake(self) -> None:
        self.process_group.wake(self.token)

    def kill(self, reason: Cause) -> None:
        if not self.exit_future.done():
            self.process_group.kill(self.token, reason)

    async def end_processes(self, *, snapshots: int, captures: tuple[str, ...]) -> None:
        """Kill what the code has started, but not the worker, this many snapshots of it, and these captures."""
        if not self.exit_future.done():
            await self.process_group.end_processes(self.token, snapshots=snapshots, captures=captures)

    def ignore_messages(self) -> None:
        """Read and drop what the worker still sends, because it is being killed."""
        self._ignores_messages = True

    def drain_output(self) -> None:
        """Read what the worker has written so far. One poll covers both pipes, since mostly they are empty."""
        for fd, _ in self._output_poll.poll(0):
            self._pipes_by_fd[fd].drain()

    def pause(self) -> None:
        self._paused = True
        for pipe in self.pipes.values():
            pipe.pause()

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        self.frame_socket.resume()
        for pipe in self.pipes.values():
            pipe.resume()

    def close(self) -> None:
        self.frame_socket.close()
        self._output_poll = select.poll()
        for pipe in self.pipes.values():
            pipe.close()
        self.process_group.unregister(self.token)

    def _create_pipe(self, stream: StreamName, fd: int) -> OutputPipe:
        # The acknowledgement of the code that wrote this may be in the socket already, so read that first.
        return OutputPipe(
            fd, before_read=self._read_protocol, on_data=lambda data: self._listener.on_output(stream, data)
        )

    def _read_protocol(self) -> None:
        if not self.frame_socket.closed:
            self.frame_socket.read()

    def _on_disconnect(self) -> None:
        """Kill a worker that closed the protocol socket, unless the supervisor reports its exit first."""
        cause = Cause("protocol", "the worker closed its protocol socket")
        self._loop.call_later(_DISCONNECT_GRACE, self.kill, cause)

    def _on_frame(self, payload: bytes | OversizedFrame) -> None:
        if isinstance(payload, OversizedFrame):
            self._listener.on_oversized_frame(payload.size)
            return
        if self._ignores_messages:
            return
        try:
            header = decode_header(payload) if len(payload) > _UNMEASURED_SIZE else None
            if header is not None and self._is_heavy(payload):
                self._listener.on_heavy_frame(header)
                return
            message = decode(payload)
        except (msgspec.DecodeError, RecursionError, ValueError) as problem:
            self._listener.on_decode_error(str(problem)[:_MAX_PROBLEM_LENGTH])
            return
        limits = self._listener.message_limits
        if header is not None and len(payload) > limits.harmless_size and limits.are_exceeded_by(message):
            self._listener.on_heavy_frame(header)
        else:
            self._listener.on_message(message)

    def _is_heavy(self, payload: bytes) -> bool:
        limit = self._listener.frame_weight_limit
        return measure_weight(payload, limit=limit) > limit

    def mark_never_started(self) -> None:
        """Report the exit of a worker that was never created, which the supervisor will not do."""
        self._on_worker_exit(Cause("start", "the worker was not created"))

    def _on_worker_exit(self, cause: Cause) -> None:
        if self.exit_future.done():
            return
        # The last messages and output are still in the socket and the pipes. Processes that outlive the worker for a
        # moment may have the socket, too, and must not keep this loop busy.
        with contextlib.suppress(OSError):
            for _ in range(_MAX_LAST_READS):
                if self.frame_socket.closed or not self._has_pending_data():
                    break
                self.frame_socket.read()
        self.drain_output()
        self.exit_future.set_result(cause)
        self._listener.on_exit(cause)

    def _has_pending_data(self) -> bool:
        return fcntl.ioctl(self.frame_socket.sock, _FIONREAD, _ZERO_INT) != _ZERO_INT
