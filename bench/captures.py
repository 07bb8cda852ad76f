"""What captures of a workspace cost the caller, how long they take, and how long it takes to restore one."""

import time
from collections.abc import Iterable

from bench.figures import Figure, figure_with_limit, percentile
from bench.progress import show_progress
from bench.quick import pick_size
from bench.startup import CONFIG, start_worker
from standfast.workers import (
    SandboxPolicy,
    SessionConfig,
    WorkerSession,
    WorkspaceManifest,
    close_idle_fork_servers,
    fork_server,
)

ROUNDS, LARGE_ROUNDS = pick_size(40, 8), pick_size(20, 4)
FRAMES = SessionConfig(preload=("numpy", "pandas"), sandbox=SandboxPolicy(require="namespaces", memory_mb=2048))
SMALL = (
    "import random\nrows = [{'n': n, 'square': n * n} for n in range(100)]\ntotal = sum(r['square'] for r in rows)\n"
)
FRAME = "import numpy, pandas\nframe = pandas.DataFrame(numpy.random.default_rng(1).random((1_000_000, 13)))\n"
"""104 MB that hardly can be compressed."""


class Measured:
    """A session whose captures are measured: seconds until code may run again, and until the last chunk is there."""

    def __init__(self, session: WorkerSession) -> None:
        self.session = session
        self.chunks: dict[bytes, bytes] = {}
        self.manifest: WorkspaceManifest | None = None
        self.waits: list[float] = []
        self.lags: list[float] = []
        self.stored: list[int] = []

    async def run(self, setup: str, cell: str, rounds: int) -> None:
        """Capture after each of several cells, with a first round that is not measured."""
        result = await self.session.run(setup, timeout=120)
        assert result.error is None, result.error
        for _ in range(rounds + 1):
            await self.session.run(cell, timeout=120)
            before = sum(map(len, self.chunks.values()))
            start = time.perf_counter()
            capture = await self.session.capture(known=self.manifest or ())
            self.waits.append(time.perf_counter() - start)
            async for digest, data in capture:
                self.chunks[digest] = data
            self.lags.append(time.perf_counter() - start)
            self.manifest = capture.manifest
            self.stored.append(sum(map(len, self.chunks.values())) - before)
        for figures in (self.waits, self.lags, self.stored):
            del figures[0]

    async def fetch(self, digest: bytes) -> bytes:
        return self.chunks[digest]


async def measure_restores(small: Measured) -> list[float]:
    seconds = []
    assert small.manifest is not None
    for _ in range(ROUNDS):
        async with WorkerSession(CONFIG) as session:
            start = time.perf_counter()
            report = await session.restore_workspace(small.manifest, small.fetch)
            seconds.append(time.perf_counter() - start)
            assert not report.lost
    return seconds


async def measure_sequence() -> list[float]:
    """Measure starts of sessions that are used one after the other, without a fork server that is held."""
    close_idle_fork_servers()
    return [await start_worker(CONFIG) for _ in range(ROUNDS + 1)][1:]


async def measure() -> Iterable[Figure]:
    show_progress("workers: captures")
    async with fork_server(CONFIG), WorkerSession(CONFIG) as session:
        small = Measured(session)
        await small.run(SMALL, "total += 1", ROUNDS)
        restores = await measure_restores(small)
    async with WorkerSession(FRAMES) as session:
        unchanged = Measured(session)
        await unchanged.run(SMALL + FRAME, "total += 1", LARGE_ROUNDS)
        changed = Measured(session)
        changed.chunks, changed.manifest = unchanged.chunks, unchanged.manifest
        await changed.run("pass", "frame += 1", LARGE_ROUNDS)
    sequence = await measure_sequence()
    frame = "frame of 100 MB"
    return [
        figure_with_limit("capture of a small namespace, caller waits, p50", get_median(small.waits), 5),
        figure_with_limit(f"capture with an unchanged {frame}, caller waits, p50", get_median(unchanged.waits), 10),
        figure_with_limit(f"capture with an unchanged {frame}, new bytes, most", max(unchanged.stored) / 1e3, 64, "KB"),
        figure_with_limit(
            f"capture of a changed {frame}, to the last chunk, p95", percentile(changed.lags, 0.95) * 1e3, 1000
        ),
        figure_with_limit("restore of a small workspace, p50", get_median(restores), 50),
        figure_with_limit("sessions one after the other, start to ready, p50", get_median(sequence), 10),
    ]


def get_median(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return percentile(seconds, 0.5) * 1e3
