"""Watch the memory and the processor time of a worker and its processes, and kill them above a limit.

The limits of a single process end in a MemoryError or a signal. The limits here cover what no limit of a process
counts: shared memory, page tables, and many processes together.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from standfast.workers._host.process_group import ProcessGroup
from standfast.workers._host.router import MessageRouter
from standfast.workers._host.usage import ProcessSample, measure_usage, sample_processes
from standfast.workers.captures import Capture
from standfast.workers.config import MB, SandboxPolicy
from standfast.workers.errors import CaptureFailed, Cause

_CHECK_INTERVAL = 0.25
# Between executions, while the processes do not compute.
_IDLE_INTERVAL = 5.0
_IDLE_CPU = 0.02


class CpuMeter:
    """The processor time of all processes of a worker, including those that have exited."""

    def __init__(self) -> None:
        self.total = 0.0
        self._seen: dict[tuple[int, int], float] = {}
        self._exited = 0.0

    def update(self, samples: list[ProcessSample]) -> float:
        """Take the figures of all processes now, and return how much time they have used since the last call.

        The kernel adds the time of a process to that of its parent, unless the parent ignores its children. What was
        seen of each process counts in that case.
        """
        alive = {sample.key: sample.cpu for sample in samples}
        self._exited += sum(cpu for key, cpu in self._seen.items() if key not in alive)
        self._seen = alive
        reported = sum(sample.cpu + sample.children_cpu for sample in samples)
        previous, self.total = self.total, max(self.total, reported, self._exited + sum(alive.values()))
        return self.total - previous


class ResourceWatch:
    """Kills all processes of a worker when together they exceed the limits of its policy.

    It checks four times a second while code runs, processes compute or the workspace is captured, otherwise every five
    seconds. It starts with the first execution. Captures are cancelled before anything is killed for memory.
    """

    def __init__(
        self,
        policy: SandboxPolicy,
        process_group: ProcessGroup,
        router: MessageRouter,
        *,
        create_task: Callable[[Coroutine[Any, Any, None]], object],
        captures: Mapping[str, Capture],
        shared_files: Collection[tuple[int, int]],
    ) -> None:
        self._memory_limit = None if policy.total_memory_mb is None else policy.total_memory_mb * MB
        self._cpu_limit = policy.cpu_seconds
        self._process_group, self._router, self._create_task = process_group, router, create_task
        self._captures, self._shared_files = captures, shared_files
        self._cpu_meter = CpuMeter()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due_soon = False

    def start(self) -> None:
        """Check soon. Called when code or a capture starts."""
        if not self._is_due_soon and (self._memory_limit is not None or self._cpu_limit is not None):
            self._schedule(_CHECK_INTERVAL)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, delay: float) -> None:
        self.stop()
        self._is_due_soon = delay == _CHECK_INTERVAL
        self._timer = self._router.loop.call_later(delay, self._check)

    def _check(self) -> None:
        self._timer, self._is_due_soon = None, False
        if self._router.cause is not None:
            return
        if (cause := self._process_group.oom_cause) is not None:
            # The kernel kills the largest process, which need not be the worker itself.
            self._process_group.kill_all(cause)
            return
        samples = sample_processes(self._process_group.supervisor_pid)
        used = self._cpu_meter.update(samples)
        if self._cpu_limit is not None and (total := self._measure_cpu()) > self._cpu_limit:
            text = f"the processes of the worker have used {total:.1f} s; the limit is {self._cpu_limit} s"
            self._process_group.kill_all(Cause("cpu-limit", text))
        elif self._memory_limit is not None and sum(item.memory_bound for item in samples) > self._memory_limit:
            self._is_due_soon = True
            self._create_task(self._check_memory(self._memory_limit))
        else:
            is_active = self._router.execution is not None or used > _IDLE_CPU or bool(self._captures)
            self._schedule(_CHECK_INTERVAL if is_active else _IDLE_INTERVAL)

    def _measure_cpu(self) -> float:
        return max(self._cpu_meter.total, self._process_group.cgroups.cpu_seconds)

    async def _check_memory(self, limit: int) -> None:
        """Count exactly, in a thread because it is slow."""
        shared = frozenset(self._shared_files)
        used = (await asyncio.to_thread(measure_usage, self._process_group.supervisor_pid, shared)).memory
        if used > limit and self._captures:
            for capture in list(self._captures.values()):
                capture.fail(CaptureFailed("worker", "the worker and the copy of it use more memory than allowed"))
            self._schedule(_CHECK_INTERVAL)
        elif used > limit:
            text = f"the processes of the worker use {used // MB} MB; the limit is {limit // MB} MB"
            self._process_group.kill_all(Cause("memory-limit", text))
        else:
            self._schedule(_CHECK_INTERVAL)
