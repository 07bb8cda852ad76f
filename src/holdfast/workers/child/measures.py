"""What a worker can say about itself: what it uses, and what an error says."""

import os
import resource
import sys
import time

from holdfast.workers.child.signals import undisturbed
from holdfast.workers.wire.messages import ErrorMessage, Usage


def message_of(error: BaseException) -> str:
    try:
        return str(error)[:10_000].encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the report
        return "<the exception's str() failed>"


def failure(request: str, problem: BaseException) -> ErrorMessage:
    """The answer to a request that failed."""
    name, text = type(problem).__name__, message_of(problem)
    return ErrorMessage(execution_id=request, exception_type=name, exception_message=text)


@undisturbed
def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - the user may have put anything there
            continue


def cpu() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_of(spent: resource.struct_rusage) -> int:
    """Bytes; Linux counts kilobytes."""
    return spent.ru_maxrss * (1024 if sys.platform.startswith("linux") else 1)


def peak() -> int:
    return peak_of(resource.getrusage(resource.RUSAGE_SELF))


def resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak()


class Meter:
    """Counts what is spent between two looks at it."""

    def __init__(self) -> None:
        self._looked, self._spent = time.monotonic(), cpu()
        self._reaped, self._peak = 0.0, 0

    def execution(self, spent: float, took: float) -> Usage:
        """What one execution cost: its own processor time, and that of the children it waited for."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        reaped = children.ru_utime + children.ru_stime
        before, self._reaped = self._reaped, reaped
        # A cell of microseconds does not move the peak, and asking costs as much as the cell.
        if took > 0.001 or not self._peak:
            self._peak = peak()
        return Usage(spent + reaped - before, self._peak)

    def since_last(self) -> tuple[float, float]:
        """The processor seconds so far, and how many percent of one processor since the last call."""
        now, spent = time.monotonic(), cpu()
        percent = 100 * (spent - self._spent) / max(now - self._looked, 1e-6)
        self._looked, self._spent = now, spent
        return spent, round(percent, 2)
