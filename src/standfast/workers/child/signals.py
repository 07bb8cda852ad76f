"""Let signal handlers raise only where that breaks nothing, and reap the children that this made user code lose.

Python calls a signal handler between any two instructions of the main thread, and an exception of the handler is
raised there: in user code, where it belongs, or in code of the worker, where it could leave half a frame, a line
written twice or a lost message. Therefore functions of the worker are marked, which costs nothing at run time, and a
handler first looks at the stack: the innermost marked function decides. A handler that has to wait is called later by
``run_pending_handlers``.

If a handler raises an exception just after a fork, the caller does not get the pid: the child is never waited for, and
as a zombie it counts against the limit of processes. Therefore the functions that fork are wrapped. They remember a pid
that they could not return, and the ``Popen`` object that a pid was returned to. Once the object is gone, a child that
was not waited for is reaped here. No other child is touched: user code may be about to wait for it.
"""

import _posixsubprocess
import _signal  # type: ignore[import-not-found]
import contextlib
import os
import sys
import threading
import weakref
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
"""Handlers that wait to be called, by signal. A function that defers signals must run them at its end."""
_FORKING_FUNCTIONS = ("fork", "posix_spawn", "posix_spawnp")
_lost_children: set[int] = set()
_owners: dict[int, "weakref.ref[Any]"] = {}


def defer_signals(function: _F) -> _F:
    """Mark a function in which, and in whose callees, no signal handler raises."""
    return _mark(function, "ours")


def interruptible(function: _F) -> _F:
    """Mark a function that runs user code, in which handlers may raise. Its caller handles every exception."""
    return _mark(function, "code")


def report_signal_errors(function: _F) -> _F:
    """Mark a function in which no user code runs: handlers are called, and their exceptions are printed."""
    return _mark(function, "idle")


def _mark(function: _F, zone: Zone) -> _F:
    _zones[id(function.__code__)] = zone
    return function


def find_zone(frame: FrameType | None) -> Zone:
    """Return the zone of the innermost marked function. A stack without one, as of a greenlet, is user code."""
    while frame is not None:
        zone = _zones.get(id(frame.f_code))
        if zone is not None:
            return zone
        frame = frame.f_back
    return "code"


class DeferrableHandler:
    """Wraps a signal handler so that it is called only when it may raise."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    @defer_signals
    def __call__(self, signum: int, frame: FrameType | None) -> None:
        pending_handlers[signum] = self.handler
        run_pending_handlers(frame)


@defer_signals
def run_pending_handlers(frame: FrameType | None) -> None:
    """Call the pending handlers, if the code at ``frame`` allows it."""
    if not pending_handlers or threading.get_ident() != _main_thread_id:
        return
    zone = find_zone(frame)
    if zone == "ours":
        return
    signum, handler = pending_handlers.popitem()
    try:
        if zone == "code":
            _call_handler(handler, signum, frame)
        else:
            _call_handler_reporting_errors(handler, signum, frame)
    finally:
        run_pending_handlers(frame)


@interruptible
def _call_handler(handler: Handler, signum: int, frame: FrameType | None) -> None:
    handler(signum, frame)


def was_raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised this exception, not the code in which it appeared."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is _call_handler.__code__:
            return True
        step = step.tb_next
    return False


def _call_handler_reporting_errors(handler: Handler, signum: int, frame: FrameType | None) -> None:
    try:
        _call_handler(handler, signum, frame)
    except BaseException as error:  # noqa: BLE001 - no user code runs that could handle it
        with contextlib.suppress(Exception):
            sys.stderr.write(format_traceback(error, limit=10_000))


def install() -> None:
    """Wrap every handler that user code sets from now on. User code still sees its own handler."""
    global _main_thread_id
    _main_thread_id = threading.get_ident()

    def signal(signalnum: int, handler: Any, /) -> Any:
        return _unwrap_handler(set_signal(signalnum, DeferrableHandler(handler) if callable(handler) else handler))

    def getsignal(signalnum: int, /) -> Any:
        return _unwrap_handler(_get_signal(signalnum))

    _signal.signal, _signal.getsignal = signal, getsignal


def _unwrap_handler(handler: Any) -> Any:
    return handler.handler if isinstance(handler, DeferrableHandler) else handler


def wrap_fork_functions() -> None:
    """Wrap the functions that fork, for the modules that user code imports and for those that are imported already."""
    _wrap(_posixsubprocess, "fork_exec")
    for name in _FORKING_FUNCTIONS:
        if hasattr(os, name):
            _wrap(os, name)
    if subprocess := sys.modules.get("subprocess"):
        subprocess._fork_exec = _posixsubprocess.fork_exec  # type: ignore[attr-defined]


def reap_lost_children() -> None:
    """Reap the lost children that have ended. The others are looked at again by the next call."""
    for pid in tuple(_lost_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _lost_children.discard(pid)


def _wrap(module: Any, name: str) -> None:
    fork: Callable[..., int] = getattr(module, name)

    @defer_signals
    def call_fork(*args: Any, **kwargs: Any) -> int:
        pid: int = fork(*args, **kwargs)
        if pid == 0:
            return pid
        caller = sys._getframe(1)
        try:
            _remember_owner(pid, caller)
            # The handlers that waited for the fork. The caller gets what they raise instead of the pid.
            run_pending_handlers(caller)
        except BaseException:
            _lost_children.add(pid)
            raise
        return pid

    call_fork.__name__ = call_fork.__qualname__ = name
    call_fork.__doc__ = fork.__doc__
    setattr(module, name, call_fork)


def _remember_owner(pid: int, caller: FrameType) -> None:
    """Remember the Popen object of subprocess or multiprocessing that is starting this process, if it is one."""
    _lost_children.discard(pid)
    _owners.pop(pid, None)
    frame: FrameType | None = caller
    while frame is not None and _is_library(frame.f_globals.get("__name__")):
        owner = frame.f_locals.get("self")
        if owner is not None:
            _owners[pid] = weakref.ref(owner, lambda reference: _forget_owner(pid, reference))
            return
        frame = frame.f_back


def _is_library(module: object) -> bool:
    return isinstance(module, str) and (module == "subprocess" or module.startswith("multiprocessing."))


def _forget_owner(pid: int, reference: "weakref.ref[Any]") -> None:
    if _owners.get(pid) is reference:
        del _owners[pid]
        _lost_children.add(pid)
