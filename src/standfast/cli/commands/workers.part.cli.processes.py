"""Which worker processes run on this machine, from what the kernel shows of them."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import Unsupported

PROC = Path("/proc")
SERVER_MODULE = b"holdfast.workers.child.server"


@dataclass(frozen=True)
class WorkerProcessInfo:
    """One process. Its parent is the program that owns it, or its fork-server."""

    pid: int
    parent: int
    role: str
    memory_mb: float
    age: str


def list_worker_processes() -> list[WorkerProcessInfo]:
    """Fork-servers and what they forked, oldest first."""
    if not PROC.joinpath("self", "stat").exists():
        raise Unsupported("worker processes can only be listed where there is a /proc (Linux)")
    marked = [pid for pid in list_pids() if SERVER_MODULE in read_proc_file(pid, "cmdline")]
    found = [read_process_info(pid, set(marked)) for pid in marked]
    return sorted((one for one in found if one is not None), key=lambda one: one.pid)


def list_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def read_proc_file(pid: int, name: str) -> bytes:
    try:
        return PROC.joinpath(str(pid), name).read_bytes()
    except OSError:  # it is gone, or not ours to see
        return b""


def read_process_info(pid: int, server_pids: set[int]) -> WorkerProcessInfo | None:
    fields = read_proc_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 22:
        return None
    parent, started, pages = int(fields[1]), int(fields[19]), int(fields[21])
    booted = time.time() - float(PROC.joinpath("uptime").read_text().split()[0])
    seconds = max(0, int(time.time() - booted - started / os.sysconf("SC_CLK_TCK")))
    role = "worker" if parent in server_pids else "fork-server"
    memory = round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    return WorkerProcessInfo(
        pid, parent, role, memory, f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
    )
