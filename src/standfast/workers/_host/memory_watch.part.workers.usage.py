"""What a family of processes uses, read from the kernel's books; nothing is asked of the workers."""

import os

from holdfast.workers.result import WorkerUsage


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
