"""Notice tools that block the event loop."""

import threading
import time
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

from standfast.base.log import get_logger

T = TypeVar("T")
_log = get_logger(__name__)

LIMIT = 1.0
"""Seconds that a tool may run without awaiting anything before that is logged."""


class _Current(threading.local):
    tool: str | None = None


_current = _Current()


def get_running_tool() -> str | None:
    """Return the tool that the event loop of this thread executes at this moment, for signal handlers."""
    return _current.tool


@types.coroutine
def watch_loop(work: Awaitable[T], tool: str) -> Generator[Any, Any, T]:
    """Await ``work`` and log a warning whenever it keeps the event loop to itself for more than ``LIMIT`` seconds."""
    steps = work.__await__()
    advance, value = steps.send, None
    while True:
        began = time.monotonic()
        outer, _current.tool = _current.tool, tool
        try:
            awaited = advance(value)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            _current.tool = outer
            if (seconds := time.monotonic() - began) > LIMIT:
                _log.warning(
                    "the tool %r blocked the event loop for %.1f s: nothing else ran meanwhile. Make it a plain "
                    "function (def instead of async def), which runs in a thread, or await what takes long",
                    tool,
                    seconds,
                )
        try:
            value, advance = (yield awaited), steps.send
        except BaseException as error:  # noqa: BLE001 - it is raised where the work waits
            value, advance = error, steps.throw
