"""Measure the CPU time, memory and threads of the worker process."""

import os
import resource
import sys
import time

from standfast.workers.wire.messages import ExecutionUsage


def count_threads() -> int:
    """Return the number of threads, including those that were not started by Python."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def get_cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_rss_from_rusage(rusage: resource.struct_rusage) -> int:
    """Return the peak resident memory in bytes. Linux reports it in kilobytes."""
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
    """Measures the resources that were used since the previous measurement."""

    def __init__(self) -> None:
        self._last_checked, self._last_cpu_seconds = time.monotonic(), get_cpu_seconds()
        self._children_cpu_seconds, self._peak_rss = 0.0, 0

    def measure_execution(self, cpu_seconds: float, elapsed: float) -> ExecutionUsage:
        """Return the usage of one execution, including the CPU time of child processes that it waited for."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        reaped = children.ru_utime + children.ru_stime
        before, self._children_cpu_seconds = self._children_cpu_seconds, reaped
        # A cell of microseconds hardly changes the peak, and measuring it costs as much as the cell.
        if elapsed > 0.001 or not self._peak_rss:
            self._peak_rss = get_peak_rss()
        return ExecutionUsage(cpu_seconds + reaped - before, self._peak_rss)

    def measure_cpu(self) -> tuple[float, float]:
        """Return the CPU seconds so far, and the CPU usage since the last call in percent of one CPU."""
        now, cpu_seconds = time.monotonic(), get_cpu_seconds()
        percent = 100 * (cpu_seconds - self._last_cpu_seconds) / max(now - self._last_checked, 1e-6)
        self._last_checked, self._last_cpu_seconds = now, cpu_seconds
        return cpu_seconds, round(percent, 2)
