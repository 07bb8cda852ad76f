"""A round trip to a worker beside one to a bare Python that echoes through a pipe."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bench.effort import pick
from bench.starting import CONFIG
from holdfast.workers import WorkerSession

BLOCKS, BLOCK = pick(30, 6), 50
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


async def trips(place: tuple[int, int]) -> tuple[list[float], list[float]]:
    """``1+1`` in a worker and an echo by a bare pipe, in alternating blocks.

    Both stay where they are put: what a bare echo takes depends threefold on whether its process shares our core, and
    the kernel decides that anew for every process. In blocks, so that each of them finds the caches as it left them.
    """
    ours: list[float] = []
    bare: list[float] = []
    async with WorkerSession(CONFIG) as session, plain_python(ECHO) as echo:
        with placed(*place):
            for _ in range(BLOCKS + 1):
                for _ in range(BLOCK):
                    await timed(ours, session.run("1+1"))
                for _ in range(BLOCK):
                    await timed(bare, echo.ask())
    return ours[BLOCK:], bare[BLOCK:]
