"""A round trip to a worker beside one to a bare Python that echoes through a pipe."""

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

from bench.quick import pick
from bench.figures import percentile
from bench.startup import CONFIG
from standfast.workers import WorkerSession, fork_server

SERVERS, BLOCKS, BLOCK = pick(9, 3), pick(8, 3), 50
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ECHO = "import os\nwhile d := os.read(0, 65536): os.write(1, d)"


async def timed(times: list[float], work: Awaitable[object]) -> None:
    begin = time.perf_counter()
    await work
    times.append(time.perf_counter() - begin)


@asynccontextmanager
async def plain_python(code: str) -> AsyncIterator["Plain"]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-u", "-c", code, stdin=pipe, stdout=pipe)
    try:
        yield Plain(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Plain:
    """A bare interpreter that answers a line with a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.to, self.back = process.stdin, process.stdout

    async def ask(self) -> bytes:
        self.to.write(b"1+1\n")
        await self.to.drain()
        return await self.back.readline()


@contextmanager
def placed(own: int, children: int) -> Iterator[None]:
    """This process on one core; all processes below it on another, or on the same one."""
    before = os.sched_getaffinity(0)
    move(os.getpid(), {own}, {children})
    try:
        yield
    finally:
        move(os.getpid(), before, before)


def move(process: int, own: set[int], children: set[int]) -> None:
    os.sched_setaffinity(process, own)
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        move(int(child), children, children)


def placements() -> dict[str, tuple[int, int]]:
    """Which core is ours and which is theirs. Only Linux can be told."""
    if not hasattr(os, "sched_getaffinity"):
        return {}
    first, *others = sorted(os.sched_getaffinity(0))
    return {"same core": (first, first)} | ({"two cores": (first, others[0])} if others else {})


async def trips(place: tuple[int, int]) -> tuple[float, float, float]:
    """``1+1`` in a worker, an echo by a bare pipe, and the first by the second: medians over several fork-servers.

    Both stay where they are put: what a bare echo takes depends threefold on whether its process shares our core, and
    the kernel decides that anew for every process. In alternating blocks, so that each of them finds the caches as it
    left them. Several servers, since one whose libraries lie as ours do but for the upper bits of their addresses
    spoils the processor's memory of branches for us, and we for it: about one in eight.
    """
    read_through_the_heap()
    found = []
    for _ in range(SERVERS):
        ours: list[float] = []
        bare: list[float] = []
        async with fork_server(CONFIG), WorkerSession(CONFIG) as session, plain_python(ECHO) as echo:
            with placed(*place):
                for _ in range(BLOCKS + 1):
                    for _ in range(BLOCK):
                        await timed(ours, session.run("1+1"))
                    for _ in range(BLOCK):
                        await timed(bare, echo.ask())
        found.append((percentile(ours[BLOCK:], 0.5), percentile(bare[BLOCK:], 0.5)))
    return in_the_middle(found)


def in_the_middle(found: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The median of ours, of theirs, and of ours by theirs, pair by pair: a slow minute of the machine slows both."""
    ours, theirs = zip(*found, strict=True)
    return statistics.median(ours), statistics.median(theirs), statistics.median(a / b for a, b in found)


def read_through_the_heap() -> None:
    """From now on let this process have large blocks from its heap, for the sake of the echo.

    asyncio reads a pipe into a block of 256 KB. glibc has it from the heap or maps it anew for every read, as the heap
    happens to lie, and that doubles what a bare echo takes. This is the faster way, always.
    """
    with contextlib.suppress(AttributeError, OSError):
        for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, 16 << 20)
