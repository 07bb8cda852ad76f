"""Reap the children that a signal handler's exception made user code lose.

If a handler raises an exception just after a fork, the caller does not get the pid: the child is never waited for, and
as a zombie it counts against the limit of processes. Therefore the functions that fork are wrapped. They remember a pid
that they could not return, and the ``Popen`` object that a pid was returned to. Once the object is gone, a child that
was not waited for is reaped here. No other child is touched: user code may be about to wait for it.
"""

import _posixsubprocess
import contextlib
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from standfast.workers.child import signals

_FORKING_FUNCTIONS = ("fork", "posix_spawn", "posix_spawnp")

_lost_children: set[int] = set()
_owners: dict[int, "weakref.ref[Any]"] = {}


def install() -> None:
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

    @signals.defer_signals
    def call_fork(*args: Any, **kwargs: Any) -> int:
        pid: int = fork(*args, **kwargs)
        if pid == 0:
            return pid
        caller = sys._getframe(1)
        try:
            _remember_owner(pid, caller)
            # The handlers that waited for the fork. The caller gets what they raise instead of the pid.
            signals.run_pending_handlers(caller)
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
