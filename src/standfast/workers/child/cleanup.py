"""End processes and remove directories that user code has left behind."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

_PAUSE = 0.001
_MAX_ROUNDS = 200
# Processes that are still there after so many rounds fork faster than they are found.
_STOP_ALL_AFTER = 20


def list_descendants(root: int, *, keep: Collection[int] = ()) -> list[int]:
    """Return the running processes below this one; an empty list where the system does not list them.

    Those in ``keep`` are left out, but not their descendants.
    """
    parents = _list_parents()

    def is_below(pid: int) -> bool:
        for _ in range(len(parents)):
            if pid == root:
                return True
            pid = parents.get(pid, 0)
        return False

    return [pid for pid, parent in parents.items() if pid not in keep and is_below(parent)]


def _list_parents() -> dict[int, int]:
    """Return the parent of every process that has not exited. Lists of children are kept per thread and miss some."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(name)] = int(parent)
    return parents


def signal_processes(pids: Collection[int], number: int) -> bool:
    """Send a signal to each process. Returns whether it reached any of them."""
    reached = False
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            reached = True
    return reached


def kill_descendants() -> None:
    """Kill every process below this one, and return when none is left.

    They are stopped first, since a process that forks and exits would otherwise outrun the one that kills it. Orphans
    become children of this process, which must be a subreaper. A process that may not be killed is left, and where the
    system does not list processes, all are.
    """
    own = os.getpid()
    while os.path.exists(f"/proc/{own}/task"):
        stopped: set[int] = set()
        while moving := [pid for pid in list_descendants(own) if pid not in stopped]:
            signal_processes(moving, signal.SIGSTOP)
            stopped.update(moving)
        reached = signal_processes(sorted(stopped), signal.SIGKILL)
        if not _reap_children() or not (reached or not stopped):
            return
        time.sleep(_PAUSE)


def end_processes(root: int, *, keep: Collection[int], reap: Callable[[], None], can_stop_all: bool) -> None:
    """Kill the processes below ``root`` except for ``keep``, for as long as that takes, within limits.

    ``can_stop_all`` allows stopping all processes of the namespace at once, which no process can outrun.
    """
    for number in range(_MAX_ROUNDS):
        found = list_descendants(root, keep=keep)
        if not found:
            return
        if can_stop_all and number >= _STOP_ALL_AFTER:
            signal_processes([-1], signal.SIGSTOP)
            found = list_descendants(root, keep=keep)
        signal_processes(found, signal.SIGKILL)
        if can_stop_all and number >= _STOP_ALL_AFTER:
            signal_processes(keep, signal.SIGCONT)
        reap()
        time.sleep(_PAUSE)


def _reap_children() -> bool:
    """Reap what has exited. Returns whether any child is left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def remove_tree(path: str) -> None:
    """Remove a directory of a session, also where the modes inside it forbid that. Its processes must have ended."""
    import shutil

    if os.geteuid() != 0:
        for folder, names, _ in os.walk(path):
            for name in names:
                with contextlib.suppress(OSError):
                    if not os.path.islink(inner := os.path.join(folder, name)):
                        os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)
