"""Standard streams that are truthful for a few lines and fast for many.

Each line is written at once, so that it is seen at once, stands in order with what subprocesses and C code
write, and survives a crash. Only in a flood are lines held back, for at most two milliseconds: a timer
signal writes them out, and so does everything that could write after them.
"""

import contextlib
import ctypes
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast.workers.child.signals import Guarded, due, settle, undisturbed
from holdfast.workers.child.syscalls import libc, set_signal

_BURST, _WINDOW, _DELAY = 32, 0.01, 0.002
_ALARM: int = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else 0
_WRITERS = frozenset(
    {
        "subprocess.Popen",
        "os.system",
        "os.posix_spawn",
        "os.spawn",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "pty.spawn",
    }
)


class Raw(io.FileIO):
    """A descriptor that counts its writes, and calls ``before`` ahead of each."""

    writes = 0

    def __init__(self, fd: int, before: Callable[[], None]) -> None:
        super().__init__(fd, "w", closefd=False)
        self._before = before

    @undisturbed
    def write(self, data: Any, /) -> int:
        self.writes += 1
        self._before()
        return super().write(data)


_flush, _write = io.BufferedWriter.flush, io.BufferedWriter.write


class Held(io.BufferedWriter):
    """Its ``flush``, which a text stream calls for every line, notices a flood.

    A handler raises after what was given has been taken, or it would be written twice or not at all.
    """

    def __init__(self, fd: int, before: Callable[[], None], flooded: Callable[[], None]) -> None:
        self.descriptor = Raw(fd, before)
        super().__init__(self.descriptor, 1 << 16)
        self._flooded = flooded
        self._window = 0.0
        self._lines = 0

    @undisturbed
    def write(self, data: Any, /) -> int:
        taken = _write(self, data)
        if due:
            settle(sys._getframe(1))
        return taken

    @undisturbed
    def flush(self) -> None:
        written = self.descriptor.writes
        _flush(self)
        # Otherwise nothing was held: the end of a cell, not a line.
        if written != self.descriptor.writes:
            self._count_line()
        if due:
            settle(sys._getframe(1))

    def _count_line(self) -> None:
        now = time.monotonic()
        if now - self._window > _WINDOW:
            self._window, self._lines = now, 0
        self._lines += 1
        if self._lines > _BURST:
            self._lines = 0
            self._flooded()


class Out(io.TextIOWrapper):
    """A real text file over a descriptor, line by line until a flood comes."""

    def __init__(self, fd: int, timer: "Timer", before: Callable[[], None]) -> None:
        self.held = Held(fd, before, self._flooded)
        super().__init__(self.held, "utf-8", errors="backslashreplace", line_buffering=True)
        self._timer = timer
        self._seen = 0

    def _flooded(self) -> None:
        if self.line_buffering and self._timer.arm():
            self.reconfigure(line_buffering=False)

    def settle(self) -> bool:
        """Write out what is held; back to single lines if nothing came since the last time."""
        if self.line_buffering:
            return True
        self.flush()
        quiet = self._seen == self.held.descriptor.writes
        self._seen = self.held.descriptor.writes
        if quiet:
            self.reconfigure(line_buffering=True)
        return quiet


class Timer:
    """A POSIX timer that signals this process once; it belongs to the process that made it."""

    def __init__(self) -> None:
        self._made = False
        self._timer = ctypes.c_void_p()
        self.armed = False
        # struct itimerspec: no interval, one delay in nanoseconds.
        self._delay = (ctypes.c_long * 4)(0, 0, 0, int(_DELAY * 1e9))

    def arm(self) -> bool:
        """Whether the signal will come."""
        if self.armed:
            return True
        try:
            if not self._made:
                self._make()
            self.armed = libc().timer_settime(self._timer, 0, ctypes.byref(self._delay), None) == 0
        except (OSError, AttributeError):
            self.armed = False
        return self.armed

    def _make(self) -> None:
        # struct sigevent: value, signal number, kind (0: send a signal); the kernel reads 64 bytes.
        event = (ctypes.c_int * 16)(0, 0, _ALARM, 0)
        if not _ALARM or libc().timer_create(1, ctypes.byref(event), ctypes.byref(self._timer)) != 0:
            raise OSError("no timers here")
        self._made = True

    def forget(self) -> None:
        """After a fork: the timer belongs to the process that made it."""
        self._made = self.armed = False


class Streams:
    """stdout and stderr of a worker, and what keeps them in order with other writers.

    ``release`` is called before anything is written that is seen from here, and when the timer goes off.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self.timer = Timer()
        self.outs = self._made()
        self._write, self._exit = os.write, os._exit
        self._abandoned: list[Out] = []

    def _made(self) -> list[Out]:
        return [Out(number, self.timer, self.before) for number in (1, 2)]

    def install(self) -> None:
        for out, name in zip(self.outs, ("stdout", "stderr"), strict=True):
            setattr(sys, name, out)
            setattr(sys, f"__{name}__", out)
        if _ALARM:
            set_signal(_ALARM, Guarded(self._alarm))
        os.register_at_fork(before=self.flush, after_in_child=self.timer.forget)
        sys.addaudithook(self._audit)
        os.write, os._exit = self.write, self.exit

    def before(self) -> None:
        with contextlib.suppress(OSError):
            self._release()

    def renew(self) -> None:
        """After a fork: a thread that is not here may hold the lock of a stream. New ones take their places."""
        # Kept, for to collect them is to wait for their locks.
        self._abandoned += self.outs
        self.outs = self._made()
        for old, out in zip(self._abandoned[-2:], self.outs, strict=True):
            for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
                if getattr(sys, name) is old:
                    setattr(sys, name, out)

    @undisturbed
    def flush(self) -> None:
        self.before()
        for out in self.outs:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                out.flush()
        if due:
            settle(sys._getframe(1))

    def write(self, fd: int, data: Any, /) -> int:
        """``os.write``, after what was printed before it."""
        if fd == 1 or fd == 2:
            self.flush()
        return self._write(fd, data)

    def exit(self, status: int) -> Any:
        """``os._exit``, with nothing that was printed lost."""
        self.flush()
        self._exit(status)

    def _audit(self, event: str, _arguments: Any) -> None:
        if event in _WRITERS:
            self.flush()

    @undisturbed
    def _alarm(self, _signum: int, _frame: Any) -> None:
        self.timer.armed = False
        self.before()
        for out in self.outs:
            with contextlib.suppress(OSError, ValueError):
                if not out.settle():
                    self.timer.arm()
