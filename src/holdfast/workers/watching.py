"""Watching how much memory a worker and its processes use together, while code runs.

The limit of a process ends in a MemoryError. This one is above it, for what no such limit counts: memory
that is shared, and that of many processes.
"""

import asyncio

from holdfast.workers.birth import Home
from holdfast.workers.config import MB
from holdfast.workers.core import SessionCore
from holdfast.workers.errors import Cause
from holdfast.workers.usage import resident_of, usage_of

_INTERVAL = 0.25


class Watching(SessionCore):
    def _watch_memory(self) -> None:
        """Look soon, and from then on as long as code runs."""
        if self._watch is None and self.config.sandbox.whole_memory_mb is not None:
            self._watch = asyncio.get_running_loop().call_later(_INTERVAL, self._look_at_memory)

    def _look_at_memory(self) -> None:
        self._watch = None
        home, talk, most = self._home, self._talk, self.config.sandbox.whole_memory_mb
        if home is None or talk is None or talk.cause is not None or most is None:
            return
        if (cause := home.family.out_of_memory) is not None:
            # The kernel kills the largest process, which need not be the one whose end would be noticed.
            home.family.kill_all(cause)
        elif resident_of(home.family.host_pid) > most * MB:
            self._spawn(self._weigh(home, most * MB))
        elif talk.execution is not None:
            self._watch_memory()

    async def _weigh(self, home: Home, most: int) -> None:
        """Count exactly, which takes its time: pages that processes share are in all of their books."""
        used = (await asyncio.to_thread(usage_of, home.family.host_pid)).pss
        if used > most:
            home.family.kill_all(
                Cause("memory-limit", f"{used // MB} MB in all processes of the worker, {most // MB} MB are allowed")
            )
        else:
            self._watch_memory()
