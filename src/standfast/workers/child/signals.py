"""Signals leave the code of a worker only where leaving breaks nothing.

Python calls a signal's handler between any two instructions of the main thread, and what the handler raises
appears there: in the user's code, where it belongs, or in ours, where half a frame, a line written twice or a
lost message would be left behind. So functions are marked, which costs them nothing, and a handler first looks
at the stack: the innermost marked function says what may be done. What has to wait is called by ``settle``.
"""

import _signal  # type: ignore[import-not-found]
import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, TypeVar

from standfast.workers.child.cells import format_traceback
from standfast.workers.child.sandbox.syscalls import set_signal

Handler = Callable[[int, FrameType | None], Any]
Zone = Literal["code", "ours", "idle"]
_F = TypeVar("_F", bound=Callable[..., Any])

_zones: dict[int, Zone] = {}
_get_signal = _signal.getsignal
_main_thread_id = 0

pending_handlers: dict[int, Handler] = {}
"""What waits to be called, by signal. Whoever marks a function as undisturbed settles it at the end."""


def defer_signals(function: _F) -> _F:
    """Nothing is raised in this function, nor in what it calls, by a handler."""
    return _mark(function, "ours")


def interruptible(function: _F) -> _F:
    """This function runs the user's code, which handlers may make leave; its caller takes whatever it raises."""
    return _mark(function, "code")


def report_signal_errors(function: _F) -> _F:
    """No code runs that an exception could belong to: handlers are called, and what they raise is shown."""
    return _mark(function, "idle")


def _mark(function: _F, zone: Zone) -> _F:
    _zones[id(function.__code__)] = zone
    return function


def find_zone(frame: FrameType | None) -> Zone:
    """Where the main thread stands. A stack without a mark, a greenlet's, is the user's."""
    while frame is not None:
        found = _zones.get(id(frame.f_code))
        if found is not None:
            return found
        frame = frame.f_back
    return "code"


class DeferrableHandler:
    """A handler that is called when it may raise."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    @defer_signals
    def __call__(self, signum: int, frame: FrameType | None) -> None:
        pending_handlers[signum] = self.handler
        run_pending_handlers(frame)


@defer_signals
def run_pending_handlers(frame: FrameType | None) -> None:
    """Call what is due, if the code that goes on at ``frame`` allows it."""
    if not pending_handlers or threading.get_ident() != _main_thread_id:
        return
    where = find_zone(frame)
    if where == "ours":
        return
    signum, handler = pending_handlers.popitem()
    try:
        if where == "code":
            _call_handler(handler, signum, frame)
        else:
            _call_handler_reporting_errors(handler, signum, frame)
    finally:
        run_pending_handlers(frame)


@interruptible
def _call_handler(handler: Handler, signum: int, frame: FrameType | None) -> None:
    handler(signum, frame)


def was_raised_by_handler(error: BaseException) -> bool:
    """Whether a handler raised this, so that it is no fault of the code in which it appeared."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is _call_handler.__code__:
            return True
        step = step.tb_next
    return False


def _call_handler_reporting_errors(handler: Handler, signum: int, frame: FrameType | None) -> None:
    try:
        _call_handler(handler, signum, frame)
    except BaseException as error:  # noqa: BLE001 - nothing is running that it could end
        with contextlib.suppress(Exception):
            sys.stderr.write(format_traceback(error, limit=10_000))


def install() -> None:
    """From now on every handler that the user's code sets is a guarded one, and looks to it as it was set."""
    global _main_thread_id
    _main_thread_id = threading.get_ident()

    def signal(signalnum: int, handler: Any, /) -> Any:
        return _unwrap_handler(set_signal(signalnum, DeferrableHandler(handler) if callable(handler) else handler))

    def getsignal(signalnum: int, /) -> Any:
        return _unwrap_handler(_get_signal(signalnum))

    _signal.signal, _signal.getsignal = signal, getsignal


def _unwrap_handler(handler: Any) -> Any:
    return handler.handler if isinstance(handler, DeferrableHandler) else handler
