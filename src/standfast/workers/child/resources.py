"""What a worker can say about itself: what it uses, and what an error says."""

import os
import resource
import sys
import time

from standfast.workers.child.signals import defer_signals
from standfast.workers.wire.messages import ErrorMessage, ExecutionUsage


def format_exception_message(error: BaseException) -> str:
    try:
        return str(error)[:10_000].encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the report
        return "<the exception's str() failed>"


def make_error_reply(request_id: str, problem: BaseException) -> ErrorMessage:
    """The answer to a request that failed."""
    name, text = type(problem).__name__, format_exception_message(problem)
    return ErrorMessage(execution_id=request_id, exception_type=name, exception_message=text)


@defer_signals
def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - the user may have put anything there
            continue


def get_cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_rss_from_rusage(rusage: resource.struct_rusage) -> int:
    """Bytes; Linux counts kilobytes."""
    return rusage.ru_maxrss * (1024 if sys.platform.startswith("linux") else 1)


def get_peak_rss() -> int:
    return peak_rss_from_rusage(resource.getrusage(resource.RUSAGE_SELF))


def get_resident_size() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return get_peak_rss()


class UsageMeter:
    """Counts what is spent between two looks at it."""

    def __init__(self) -> None:
        self._last_checked, self._last_cpu_seconds = time.monotonic(), get_cpu_seconds()
        self._children_cpu_seconds, self._peak_rss = 0.0, 0

    def measure_execution(self, cpu_seconds: float, elapsed: float) -> ExecutionUsage:
        """What one execution cost: its own processor time, and that of the children it waited for."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        reaped = children.ru_utime + children.ru_stime
        before, self._children_cpu_seconds = self._children_cpu_seconds, reaped
        # A cell of microseconds does not move the peak, and asking costs as much as the cell.
        if elapsed > 0.001 or not self._peak_rss:
            self._peak_rss = get_peak_rss()
        return ExecutionUsage(cpu_seconds + reaped - before, self._peak_rss)

    def measure_cpu(self) -> tuple[float, float]:
        """The processor seconds so far, and how many percent of one processor since the last call."""
        now, spent = time.monotonic(), get_cpu_seconds()
        percent = 100 * (spent - self._last_cpu_seconds) / max(now - self._last_checked, 1e-6)
        self._last_checked, self._last_cpu_seconds = now, spent
        return spent, round(percent, 2)
