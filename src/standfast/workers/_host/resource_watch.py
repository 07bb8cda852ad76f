"""Read what the processes of a worker use from ``/proc``, and kill them above a limit of memory or processor time.

The limits of a single process end in a MemoryError or a signal. The limits here cover what no limit of a process
counts: shared memory, page tables, and many processes together.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

from standfast.workers._host.process_group import ProcessGroup
from standfast.workers._host.router import MessageRouter
from standfast.workers.captures import Capture
from standfast.workers.config import MB, SandboxPolicy
from standfast.workers.errors import CaptureFailed, Cause
from standfast.workers.results import WorkerUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SHARED_ANONYMOUS = ("/dev/zero", "/memfd:", "/SYSV")
_CHECK_INTERVAL = 0.25
# Between executions, while the processes do not compute.
_IDLE_INTERVAL = 5.0
_IDLE_CPU = 0.02


class ProcessSample(NamedTuple):
    """Cheap figures of one process. ``key`` distinguishes it from a later process with the same pid.

    ``children_cpu`` is the time of the children that it has waited for. ``memory_bound`` is above what it uses:
    shared pages are counted for each process, and mapped pages whether they are in use or not.
    """

    key: tuple[int, int]
    cpu: float
    children_cpu: float
    memory_bound: int


def sample_processes(root_pid: int) -> list[ProcessSample]:
    """Return figures of the supervisor and all its descendants; none where the system does not provide them."""
    return [sample for pid in list_process_tree(root_pid) if (sample := _sample_process(pid)) is not None]


def measure_usage(root_pid: int, shared_files: frozenset[tuple[int, int]] = frozenset()) -> WorkerUsage:
    """Return what the supervisor and all its descendants use; zero where the system does not provide it.

    ``shared_files`` are the devices and inodes of memory files of the host, of which only the mapped part counts.
    """
    pss = private = shmem = tables = processes = 0
    cpu = 0.0
    shared: dict[tuple[int, int], int] = {}
    for pid in list_process_tree(root_pid):
        sample = _sample_process(pid)
        try:
            sizes = _read_sizes(pid, "smaps_rollup")
            tables += _read_sizes(pid, "status").get("VmPTE:", 0)
            _add_shared_memory(pid, shared, shared_files)
        except (OSError, ValueError):
            continue
        pss += sizes.get("Pss:", 0)
        shmem += sizes.get("Pss_Shmem:", 0)
        private += sizes.get("Private_Clean:", 0) + sizes.get("Private_Dirty:", 0)
        cpu += sample.cpu + sample.children_cpu if sample is not None else 0.0
        processes += 1
    # Shared memory takes its size, whether it is mapped completely or its pages are mapped at this moment.
    memory = max(pss, pss - shmem + sum(shared.values())) + tables
    return WorkerUsage(pss, private, cpu, processes, memory)


def list_process_tree(root_pid: int) -> list[int]:
    """Return the pids of a process and its descendants."""
    pids: list[int] = []
    pending = [root_pid] if root_pid > 0 else []
    while pending:
        pid = pending.pop()
        pids.append(pid)
        with contextlib.suppress(OSError):
            # Children belong to the thread that forked them.
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    pending += [int(word) for word in file.read().split()]
    return pids


def _sample_process(pid: int) -> ProcessSample | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        sizes = _read_sizes(pid, "status")
        user, system, children_user, children_system = (int(field) / _TICKS_PER_SECOND for field in fields[11:15])
        key = pid, int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    # Of mappings that are neither private and writable nor code, only the size is known here.
    mapped = sizes.get("VmSize:", 0) - sum(sizes.get(name, 0) for name in ("VmData:", "VmStk:", "VmExe:", "VmLib:"))
    memory_bound = sizes.get("RssAnon:", 0) + sizes.get("RssFile:", 0) + max(mapped, 0) + sizes.get("VmPTE:", 0)
    return ProcessSample(key, user + system, children_user + children_system, memory_bound)


def _read_sizes(pid: int, name: str) -> dict[str, int]:
    """Return the sizes in a file of ``/proc/PID``, in bytes."""
    with open(f"/proc/{pid}/{name}") as file:
        return {line.split()[0]: int(line.split()[1]) << 10 for line in file if line.endswith("kB\n")}


def _add_shared_memory(pid: int, shared: dict[tuple[int, int], int], ignored: frozenset[tuple[int, int]]) -> None:
    """Add the shared anonymous memory that a process has mapped, once per inode."""
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            addresses, _, offset, device, inode, *path = line.split(maxsplit=5)
            if path and path[0].startswith(_SHARED_ANONYMOUS):
                start, _, end = addresses.partition("-")
                size = int(offset, 16) + int(end, 16) - int(start, 16)
                major, _, minor = device.partition(":")
                file_id = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                if file_id not in ignored:
                    shared[file_id] = max(shared.get(file_id, 0), size)


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
