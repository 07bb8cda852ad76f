"""An event loop with virtual time: timers fire in order without waiting."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopDeadlock(RuntimeError):
    """All tasks are waiting, and there is no timer that could resume one."""


class _VirtualTimeSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise EventLoopDeadlock("all tasks are waiting and no timer is set")
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when all tasks are waiting.

    Only for code inside one process and thread: it does not wait for sockets, threads and subprocesses.
    """

    def __init__(self) -> None:
        self._virtual_selector = _VirtualTimeSelector()
        super().__init__(self._virtual_selector)

    def time(self) -> float:
        return self._virtual_selector.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end on a new loop, and assert that no task remains."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(work)
        remaining = [task.get_name() for task in asyncio.all_tasks(runner.get_loop())]
    assert not remaining, f"tasks remain: {remaining}"
    return result
