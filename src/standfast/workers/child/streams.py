"""Standard output and error of a worker: unbuffered for a few lines, fast for many.

Each line is written at once, so that it is seen immediately, keeps its order with the output of subprocesses and C
code, and survives a crash. Only a burst of lines is buffered, for at most two milliseconds: a timer signal writes it
out, and so does everything that could write after it.
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

from standfast.workers.child.sandbox.syscalls import libc, set_signal
from standfast.workers.child.signals import DeferrableHandler, defer_signals, pending_handlers, run_pending_handlers

_BURST_LINES, _BURST_WINDOW, _FLUSH_DELAY = 32, 0.01, 0.002
_TIMER_SIGNAL: int = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else 0
_WRITING_AUDIT_EVENTS = frozenset(
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


@defer_signals
def flush_streams() -> None:
    """Flush ``sys.stdout`` and ``sys.stderr``, whatever user code has put there."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - objects of the user can raise anything
            continue


class CountingFileIO(io.FileIO):
    """A file that counts its writes and calls ``before_write`` ahead of each."""

    write_count = 0

    def __init__(self, fd: int, before_write: Callable[[], None]) -> None:
        super().__init__(fd, "w", closefd=False)
        self._before_write = before_write

    @defer_signals
    def write(self, data: Any, /) -> int:
        self.write_count += 1
        self._before_write()
        return super().write(data)


_buffered_flush, _buffered_write = io.BufferedWriter.flush, io.BufferedWriter.write


class BurstDetectingWriter(io.BufferedWriter):
    """A buffered writer that detects bursts in ``flush``, which a text stream calls for every line.

    Signal handlers may raise only after the data was accepted, or it would be written twice or not at all.
    """

    def __init__(self, fd: int, before_write: Callable[[], None], on_burst: Callable[[], None]) -> None:
        self.raw_file = CountingFileIO(fd, before_write)
        super().__init__(self.raw_file, 1 << 16)
        self._on_burst = on_burst
        self._window_start = 0.0
        self._line_count = 0

    @defer_signals
    def write(self, data: Any, /) -> int:
        accepted = _buffered_write(self, data)
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))
        return accepted

    @defer_signals
    def flush(self) -> None:
        write_count = self.raw_file.write_count
        _buffered_flush(self)
        # Without a write the buffer was empty: this is the flush at the end of a cell, not of a line.
        if write_count != self.raw_file.write_count:
            self._count_line()
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))

    def _count_line(self) -> None:
        now = time.monotonic()
        if now - self._window_start > _BURST_WINDOW:
            self._window_start, self._line_count = now, 0
        self._line_count += 1
        if self._line_count > _BURST_LINES:
            self._line_count = 0
            self._on_burst()


class OutputStream(io.TextIOWrapper):
    """A text file that is line buffered, except during a burst of lines."""

    def __init__(self, fd: int, timer: "FlushTimer", before_write: Callable[[], None]) -> None:
        self.writer = BurstDetectingWriter(fd, before_write, self._on_burst)
        super().__init__(self.writer, "utf-8", errors="backslashreplace", line_buffering=True)
        self._timer = timer
        self._last_write_count = 0

    def _on_burst(self) -> None:
        if self.line_buffering and self._timer.arm():
            self.reconfigure(line_buffering=False)

    def flush_held_lines(self) -> bool:
        """Write the buffered lines. Returns to line buffering, and True, if there were none since the last call."""
        if self.line_buffering:
            return True
        self.flush()
        is_over = self._last_write_count == self.writer.raw_file.write_count
        self._last_write_count = self.writer.raw_file.write_count
        if is_over:
            self.reconfigure(line_buffering=True)
        return is_over


class FlushTimer:
    """A POSIX timer that sends one signal to the process that created it."""

    def __init__(self) -> None:
        self._is_created = False
        self._timer = ctypes.c_void_p()
        self.is_armed = False
        # struct itimerspec: no interval, one delay in nanoseconds.
        self._delay = (ctypes.c_long * 4)(0, 0, 0, int(_FLUSH_DELAY * 1e9))

    def arm(self) -> bool:
        """Start the timer. Returns False where the system has no such timers."""
        if self.is_armed:
            return True
        try:
            if not self._is_created:
                self._create()
            self.is_armed = libc().timer_settime(self._timer, 0, ctypes.byref(self._delay), None) == 0
        except (OSError, AttributeError):
            self.is_armed = False
        return self.is_armed

    def _create(self) -> None:
        # struct sigevent: value, signal number, kind (0: send a signal); the kernel reads 64 bytes.
        event = (ctypes.c_int * 16)(0, 0, _TIMER_SIGNAL, 0)
        if not _TIMER_SIGNAL or libc().timer_create(1, ctypes.byref(event), ctypes.byref(self._timer)) != 0:
            raise OSError("POSIX timers are not available")
        self._is_created = True

    def reset_after_fork(self) -> None:
        """Forget the timer after a fork, since it belongs to the original process."""
        self._is_created = self.is_armed = False


class StandardStreams:
    """stdout and stderr of a worker, in order with everything else that writes to their descriptors.

    ``flush_channel`` is called before each write that can be noticed here, and when the timer fires.
    """

    def __init__(self, flush_channel: Callable[[], None]) -> None:
        self._flush_channel = flush_channel
        self.timer = FlushTimer()
        self.outputs = self._create_streams()
        self._os_write, self._os_exit = os.write, os._exit
        self._abandoned: list[OutputStream] = []

    def _create_streams(self) -> list[OutputStream]:
        return [OutputStream(number, self.timer, self.run_before_write) for number in (1, 2)]

    def install(self) -> None:
        for out, name in zip(self.outputs, ("stdout", "stderr"), strict=True):
            setattr(sys, name, out)
            setattr(sys, f"__{name}__", out)
        if _TIMER_SIGNAL:
            set_signal(_TIMER_SIGNAL, DeferrableHandler(self._on_timer_signal))
        os.register_at_fork(before=self.flush, after_in_child=self.timer.reset_after_fork)
        sys.addaudithook(self._on_audit_event)
        os.write, os._exit = self.write, self.exit

    def run_before_write(self) -> None:
        with contextlib.suppress(OSError):
            self._flush_channel()

    def replace_after_fork(self) -> None:
        """Replace the streams after a fork, since a thread that was not copied may hold the lock of one."""
        # Kept referenced, because finalizing a stream waits for its lock.
        self._abandoned += self.outputs
        self.outputs = self._create_streams()
        for old, out in zip(self._abandoned[-2:], self.outputs, strict=True):
            for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
                if getattr(sys, name) is old:
                    setattr(sys, name, out)

    @defer_signals
    def flush(self) -> None:
        self.run_before_write()
        for out in self.outputs:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                out.flush()
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))

    def write(self, fd: int, data: Any, /) -> int:
        """``os.write``, after the buffered lines were written."""
        if fd == 1 or fd == 2:
            self.flush()
        return self._os_write(fd, data)

    def exit(self, status: int) -> Any:
        """``os._exit``, after the buffered lines were written."""
        self.flush()
        self._os_exit(status)

    def _on_audit_event(self, event: str, _arguments: Any) -> None:
        if event in _WRITING_AUDIT_EVENTS:
            self.flush()

    @defer_signals
    def _on_timer_signal(self, _signum: int, _frame: Any) -> None:
        self.timer.is_armed = False
        self.run_before_write()
        for out in self.outputs:
            with contextlib.suppress(OSError, ValueError):
                if not out.flush_held_lines():
                    self.timer.arm()
