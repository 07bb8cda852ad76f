"""What the processes of a worker use, read from ``/proc``."""

import contextlib
import os
from typing import NamedTuple

from standfast.workers.results import WorkerUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SHARED_ANONYMOUS = ("/dev/zero", "/memfd:", "/SYSV")


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
