"""Watching how much memory a worker and its processes use together, while code runs.

The limit of a process ends in a MemoryError. This one is above it, for what no such limit counts: memory
that is shared, and that of many processes.
"""

import asyncio
import os

from standfast.workers._host.launcher import WorkerResources
from standfast.workers.config import MB
from standfast.workers.core import WorkerSessionBase
from standfast.workers.errors import Cause
from standfast.workers.results import WorkerUsage


def measure_usage(root_pid: int) -> WorkerUsage:
    """The keeper and everything below it. Zero where the system keeps no such books."""
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
    """At most so many bytes, read quickly: what processes share is counted for each of them."""
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
    found, waiting = [], [root_pid]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                waiting += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


_MEMORY_CHECK_INTERVAL = 0.25


class MemoryWatchMixin(WorkerSessionBase):
    def _schedule_memory_check(self) -> None:
        """Look soon, and from then on as long as code runs."""
        if self._memory_timer is None and self.config.sandbox.total_memory_mb is not None:
            self._memory_timer = asyncio.get_running_loop().call_later(_MEMORY_CHECK_INTERVAL, self._check_memory)

    def _check_memory(self) -> None:
        self._memory_timer = None
        home, talk, most = self._resources, self._router, self.config.sandbox.total_memory_mb
        if home is None or talk is None or talk.cause is not None or most is None:
            return
        if (cause := home.process_group.oom_cause) is not None:
            # The kernel kills the largest process, which need not be the one whose end would be noticed.
            home.process_group.kill_all(cause)
        elif estimate_resident_bytes(home.process_group.supervisor_pid) > most * MB:
            self._create_task(self._measure_memory(home, most * MB))
        elif talk.execution is not None:
            self._schedule_memory_check()

    async def _measure_memory(self, resources: WorkerResources, limit: int) -> None:
        """Count exactly, which takes its time: pages that processes share are in all of their books."""
        used = (await asyncio.to_thread(measure_usage, resources.process_group.supervisor_pid)).pss
        if used > limit:
            resources.process_group.kill_all(
                Cause("memory-limit", f"{used // MB} MB in all processes of the worker, {limit // MB} MB are allowed")
            )
        else:
            self._schedule_memory_check()
