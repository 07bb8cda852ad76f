"""An event loop whose clock jumps: hours pass in milliseconds, and always in the same order."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopDeadlock(RuntimeError):
    """Everything waits, and for nothing that could still happen."""


class _VirtualTimeSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise EventLoopDeadlock("every task waits for another one, and no timer is set")
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """When every task waits, the clock jumps to the next timer.

    For what happens inside one process: sockets, threads and subprocesses take time that this clock does not know.
    """

    def __init__(self) -> None:
        self._virtual_selector = _VirtualTimeSelector()
        super().__init__(self._virtual_selector)

    def time(self) -> float:
        return self._virtual_selector.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end on a loop of its own, and see that it leaves no task behind."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(work)
        left = [task.get_name() for task in asyncio.all_tasks(runner.get_loop())]
    assert not left, f"tasks were left behind: {left}"
    return result
