"""The host's end of one worker: protocol, output pipes, keeper. The loop's callbacks here are the reader."""

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

from holdfast.workers.errors import Cause
from holdfast.workers.family import Family
from holdfast.workers.line import Line
from holdfast.workers.outlet import Stream
from holdfast.workers.wire.frames import Oversize
from holdfast.workers.wire.messages import AnyMessage, Message, decode, encode

_FIONREAD = termios.FIONREAD
_SIOCOUTQ = 0x5411
_NONE = bytes(4)
_CHUNK = 65536
_HANG_UP_GRACE = 0.25


class Listener(Protocol):
    """What a link reports to."""

    def heard(self, message: AnyMessage) -> None: ...
    def wrote(self, stream: Stream, data: bytes) -> None: ...
    def garbled(self, problem: str) -> None: ...
    def overlong(self, size: int) -> None: ...
    def ended(self, cause: Cause) -> None: ...


class Endpoints:
    """The descriptors of a worker to be: ours to keep, theirs to pass on and close."""

    def __init__(self) -> None:
        self.protocol, self._theirs = socket.socketpair()
        self.out, self._out = os.pipe()
        self.err, self._err = os.pipe()

    @property
    def theirs(self) -> tuple[int, int, int]:
        return self._theirs.fileno(), self._out, self._err

    def passed(self) -> None:
        """The worker has them now."""
        self._theirs.close()
        for fd in (self._out, self._err):
            os.close(fd)

    def close(self) -> None:
        self.protocol.close()
        os.close(self.out)
        os.close(self.err)


class Pipe:
    """One output stream. Reads one chunk per turn of the loop, so that a flood starves nobody."""

    def __init__(self, fd: int, *, before: Callable[[], None], wrote: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self.fd, self._before, self._wrote = fd, before, wrote
        self._loop = asyncio.get_running_loop()
        self.reading = False
        self.open = True
        self.resume()

    def read(self) -> None:
        self._before()
        if not self.reading:
            return
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._wrote(data)
        else:
            # Every writer is gone. The worker's end is told by its keeper, not by this.
            self.pause()
            self.open = False

    def drain(self) -> None:
        """Read what is in the pipe now, and no more: later writers may never stop."""
        if not self.open:
            return
        held = fcntl.ioctl(self.fd, _FIONREAD, _NONE)
        if held == _NONE:
            return
        left = int.from_bytes(held, sys.byteorder)
        while left > 0:
            try:
                data = os.read(self.fd, min(left, _CHUNK))
            except OSError:
                return
            if not data:
                return
            left -= len(data)
            self._wrote(data)

    def pause(self) -> None:
        if self.reading:
            self.reading = False
            self._loop.remove_reader(self.fd)

    def resume(self) -> None:
        if self.open and not self.reading:
            self.reading = True
            self._loop.add_reader(self.fd, self.read)

    def close(self) -> None:
        if self.fd >= 0:
            self.pause()
            self.open = False
            os.close(self.fd)
            self.fd = -1


class Link:
    """Open from fork to farewell. ``ended`` is reported once, after everything the worker had said."""

    def __init__(self, family: Family, token: str, endpoints: Endpoints, listener: Listener, *, limit: int) -> None:
        self.family, self.token, self.limit = family, token, limit
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.line = Line(endpoints.protocol, heard=self._heard, gone=self._hung_up, limit=limit)
        self.pipes: dict[Stream, Pipe] = {
            "stdout": self._pipe("stdout", endpoints.out),
            "stderr": self._pipe("stderr", endpoints.err),
        }
        self._by_fd = {pipe.fd: pipe for pipe in self.pipes.values()}
        self._written = select.poll()
        for fd in self._by_fd:
            self._written.register(fd, select.POLLIN)
        self._paused = False
        self.gone: asyncio.Future[Cause] = self._loop.create_future()
        family.join(token, self._farewell)

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Raises FrameTooLarge, with nothing sent, for a message the worker would not take."""
        self.line.send(encode(message), fds)

    def taken(self) -> bool:
        """Whether the worker has read all that was sent to it; False where the system does not tell."""
        if not sys.platform.startswith("linux") or self.line.closed:
            return False
        return fcntl.ioctl(self.line.sock, _SIOCOUTQ, _NONE) == _NONE

    def ring(self) -> None:
        self.family.ring(self.token)

    def kill(self, reason: Cause) -> None:
        if not self.gone.done():
            self.family.kill(self.token, reason)

    def drain(self) -> None:
        """Read what the worker has written so far. One look for both pipes: mostly there is nothing."""
        for fd, _ in self._written.poll(0):
            self._by_fd[fd].drain()

    def pause(self) -> None:
        self._paused = True
        for pipe in self.pipes.values():
            pipe.pause()

    def resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        self.line.resume()
        for pipe in self.pipes.values():
            pipe.resume()

    def close(self) -> None:
        self.line.close()
        self._written = select.poll()
        for pipe in self.pipes.values():
            pipe.close()
        self.family.leave(self.token)

    def _pipe(self, stream: Stream, fd: int) -> Pipe:
        # The acknowledgement of what wrote this is already in the socket: look there before each read.
        return Pipe(fd, before=self._look, wrote=lambda data: self._listener.wrote(stream, data))

    def _look(self) -> None:
        if not self.line.closed:
            self.line.read()

    def _hung_up(self) -> None:
        """The protocol was closed. A dying worker is reported by its keeper; one that lives on is killed."""

        def enough() -> None:
            self.kill(Cause("protocol", "the worker closed its end of the protocol"))

        self._loop.call_later(_HANG_UP_GRACE, enough)

    def _heard(self, payload: bytes | Oversize) -> None:
        if isinstance(payload, Oversize):
            self._listener.overlong(payload.size)
            return
        try:
            message = decode(payload)
        except (msgspec.DecodeError, RecursionError, ValueError) as problem:
            self._listener.garbled(str(problem))
            return
        self._listener.heard(message)

    def never_was(self) -> None:
        """The worker to be at the other end was not made, and nobody will report its end."""
        self._farewell(Cause("start", "no worker was made"))

    def _farewell(self, cause: Cause) -> None:
        if self.gone.done():
            return
        # Its last words are still in the socket and the pipes.
        with contextlib.suppress(OSError):
            while not self.line.closed and self._pending():
                self.line.read()
        self.drain()
        self.gone.set_result(cause)
        self._listener.ended(cause)

    def _pending(self) -> bool:
        return fcntl.ioctl(self.line.sock, _FIONREAD, _NONE) != _NONE
