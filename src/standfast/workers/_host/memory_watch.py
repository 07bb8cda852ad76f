"""Watching how much memory a worker and its processes use together, while code runs.

The limit of a process ends in a MemoryError. This one is above it, for what no such limit counts: memory
that is shared, and that of many processes.
"""

import asyncio

from holdfast.workers.birth import WorkerResources
from holdfast.workers.config import MB
from holdfast.workers.core import WorkerSessionBase
from holdfast.workers.errors import Cause
from holdfast.workers.usage import estimate_resident_bytes, measure_usage

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
