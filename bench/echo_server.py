"""Round trips to a worker compared with round trips to a bare Python that echoes through a pipe."""

import asyncio
import contextlib
import ctypes
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bench.figures import percentile
from bench.quick import pick_size
from bench.startup import CONFIG
from standfast.workers import WorkerSession, fork_server

SERVERS, BLOCKS, BLOCK = pick_size(9, 3), pick_size(8, 3), 50
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ECHO = "import os\nwhile d := os.read(0, 65536): os.write(1, d)"


async def time_call(times: list[float], work: Awaitable[object]) -> None:
    start = time.perf_counter()
    await work
    times.append(time.perf_counter() - start)


@asynccontextmanager
async def start_plain_python(code: str) -> AsyncIterator["PlainPython"]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-u", "-c", code, stdin=pipe, stdout=pipe)
    try:
        yield PlainPython(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class PlainPython:
    """A bare interpreter that answers each line with a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    async def ask(self) -> bytes:
        self.stdin.write(b"1+1\n")
        await self.stdin.drain()
        return await self.stdout.readline()


@contextmanager
def pin_processes(own: int, children: int) -> Iterator[None]:
    """Pin this process to one core, and all its child processes to another or to the same one."""
    previous = os.sched_getaffinity(0)
    set_affinity(os.getpid(), {own}, {children})
    try:
        yield
    finally:
        set_affinity(os.getpid(), previous, previous)


def set_affinity(process: int, own: set[int], children: set[int]) -> None:
    os.sched_setaffinity(process, own)
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        set_affinity(int(child), children, children)


def get_placements() -> dict[str, tuple[int, int]]:
    """Return the cores of this process and of its children for each placement; empty if pinning is not supported."""
    if not hasattr(os, "sched_getaffinity"):
        return {}
    first, *others = sorted(os.sched_getaffinity(0))
    return {"same core": (first, first)} | ({"two cores": (first, others[0])} if others else {})


async def measure_round_trips(placement: tuple[int, int]) -> tuple[float, float, float]:
    """Return the median seconds of ``1+1`` in a worker and of an echo, and of their ratios, over several fork-servers.

    All processes are pinned: a bare echo takes three times as long if its process is not on our core, and the kernel
    chooses anew for every process. Calls alternate in blocks, so that each kind finds warm caches. Several servers are
    used, because a server whose libraries have similar addresses to ours, about one in eight, spoils the branch
    prediction of both processes.
    """
    keep_large_blocks_on_heap()
    pairs = []
    for _ in range(SERVERS):
        worker_times: list[float] = []
        echo_times: list[float] = []
        async with fork_server(CONFIG), WorkerSession(CONFIG) as session, start_plain_python(ECHO) as echo:
            with pin_processes(*placement):
                for _ in range(BLOCKS + 1):
                    for _ in range(BLOCK):
                        await time_call(worker_times, session.run("1+1"))
                    for _ in range(BLOCK):
                        await time_call(echo_times, echo.ask())
        pairs.append((percentile(worker_times[BLOCK:], 0.5), percentile(echo_times[BLOCK:], 0.5)))
    return get_medians(pairs)


def get_medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the medians of ours, of theirs and of the ratios of the pairs: a slow minute slows both of a pair."""
    ours, theirs = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(theirs), statistics.median(a / b for a, b in pairs)


def keep_large_blocks_on_heap() -> None:
    """Make malloc take large blocks from the heap from now on, for the benefit of the echo.

    asyncio reads a pipe into a block of 256 KB. Depending on the layout of the heap, glibc takes it from the heap or
    maps it anew for every read, which doubles the time of a bare echo. This selects the faster way.
    """
    with contextlib.suppress(AttributeError, OSError):
        for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, 16 << 20)
