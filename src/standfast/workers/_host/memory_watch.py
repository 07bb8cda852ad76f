"""The memory of a worker and its processes: measured through ``/proc``, and watched while code runs.

The memory limit of a single process ends in a MemoryError. The limit here is above it and covers what no limit of a
process counts: shared memory, and many processes together.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from standfast.workers._host.process_group import ProcessGroup
from standfast.workers._host.router import MessageRouter
from standfast.workers.config import MB
from standfast.workers.errors import Cause
from standfast.workers.results import WorkerUsage

_CHECK_INTERVAL = 0.25


class MemoryWatch:
    """Kills all processes of a worker when together they use more than ``limit_mb``."""

    def __init__(
        self,
        limit_mb: int | None,
        process_group: ProcessGroup,
        router: MessageRouter,
        *,
        create_task: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._limit = None if limit_mb is None else limit_mb * MB
        self._process_group, self._router, self._create_task = process_group, router, create_task
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check soon, and again for as long as code runs. Does nothing while a check is due already."""
        if self._timer is None and self._limit is not None:
            self._timer = self._router.loop.call_later(_CHECK_INTERVAL, self._check, self._limit)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, limit: int) -> None:
        self._timer = None
        if self._router.cause is not None:
            return
        if (cause := self._process_group.oom_cause) is not None:
            # The kernel kills the largest process, which need not be the worker itself.
            self._process_group.kill_all(cause)
        elif estimate_resident_bytes(self._process_group.supervisor_pid) > limit:
            self._create_task(self._measure(limit))
        elif self._router.execution is not None:
            self.start()

    async def _measure(self, limit: int) -> None:
        """Count exactly, in a thread because it is slow: the estimate counts shared pages once per process."""
        used = (await asyncio.to_thread(measure_usage, self._process_group.supervisor_pid)).pss
        if used > limit:
            text = f"the processes of the worker use {used // MB} MB; the limit is {limit // MB} MB"
            self._process_group.kill_all(Cause("memory-limit", text))
        else:
            self.start()


def measure_usage(root_pid: int) -> WorkerUsage:
    """Return what the supervisor and all its descendants use; zero where the system does not provide it."""
    if root_pid <= 0:
        return WorkerUsage()
    pss = private = processes = 0
    cpu = 0.0
    for pid in _list_process_tree(root_pid):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                sizes = {line.split()[0]: int(line.split()[1]) for line in file if line.endswith("kB\n")}
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        pss += sizes.get("Pss:", 0)
        private += sizes.get("Private_Clean:", 0) + sizes.get("Private_Dirty:", 0)
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        processes += 1
    return WorkerUsage(pss * 1024, private * 1024, cpu, processes)


def estimate_resident_bytes(root_pid: int) -> int:
    """Return an upper bound of the memory in use, quickly: shared pages are counted once per process."""
    if root_pid <= 0:
        return 0
    pages = 0
    for pid in _list_process_tree(root_pid):
        try:
            with open(f"/proc/{pid}/statm") as file:
                pages += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def _list_process_tree(root_pid: int) -> list[int]:
    pids, pending = [], [root_pid]
    while pending:
        pid = pending.pop()
        pids.append(pid)
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                pending += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return pids
