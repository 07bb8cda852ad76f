"""The start time of our workers, of a Jupyter kernel and of a bare interpreter."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from bench.environments import Competitor
from bench.figures import Figure, Series, at_least, format_seconds, not_compared, percentile, without_target
from bench.progress import show_progress
from bench.quick import pick_size
from standfast.workers import (
    PoolConfig,
    SandboxPolicy,
    SessionConfig,
    SessionPool,
    WorkerSession,
    close_idle_fork_servers,
    fork_server,
)

CONFIG = SessionConfig(sandbox=SandboxPolicy(require="namespaces"), output_limit=None)
SPAWNED = SessionConfig(mode="spawn", sandbox=SandboxPolicy(require="namespaces"))
ROUNDS, STARTS, ACQUIRES = pick_size(10, 3), 5, pick_size(40, 10)
PROCESSOR_STARTS = pick_size(100, 5)
OURS, SPAWN, KERNEL, PLAIN = "sandboxed worker", "sandboxed worker, spawned", "Jupyter kernel", "python -c pass"
StartTimes = dict[str, list[float]]


async def start_worker(config: SessionConfig) -> float:
    session = WorkerSession(config)
    start = time.perf_counter()
    await session.start()
    seconds = time.perf_counter() - start
    await session.terminate()
    return seconds


def start_interpreter() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - start


async def measure_starts(kernel: Competitor | None) -> StartTimes:
    """Measure all starts in turns, with several of the fast ones in each round. The fork-server runs already."""
    times: StartTimes = {OURS: [], SPAWN: [], PLAIN: []} | ({KERNEL: []} if kernel else {})
    for number in range(ROUNDS):
        show_progress(f"workers: starts, round {number + 1} of {ROUNDS}")
        for _ in range(STARTS):
            times[OURS].append(await start_worker(CONFIG))
            times[PLAIN].append(start_interpreter())
        times[SPAWN].append(await start_worker(SPAWNED))
        if kernel:
            times[KERNEL].append(kernel.ask("start"))
    if kernel:
        kernel.ask("stop")
    return times


async def measure_first_start() -> float:
    """Return the seconds of a start that must start the fork-server first."""
    close_idle_fork_servers()
    start = time.perf_counter()
    async with fork_server(CONFIG):
        await start_worker(CONFIG)
        return time.perf_counter() - start


async def measure_processor_time() -> float:
    """Return the milliseconds of processor time of a start and the end of its session, in all processes together.

    Unlike the time that passes, it hardly depends on other work on the machine.
    """
    async with fork_server(CONFIG):
        await start_worker(CONFIG)
        before = time.process_time() * 1e3 + read_processor_time()
        for _ in range(PROCESSOR_STARTS):
            await start_worker(CONFIG)
        after = time.process_time() * 1e3 + read_processor_time()
    return (after - before) / PROCESSOR_STARTS


def read_processor_time() -> float:
    """Return the milliseconds that the processes below this one and those that they have reaped have used."""
    total = 0.0
    for child in list_descendants(os.getpid()):
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") * 1e3
    return total


def list_descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *list_descendants(child)]
    return found


async def measure_acquires() -> list[float]:
    seconds = []
    async with SessionPool(PoolConfig(session=CONFIG, min_idle=4, max_sessions=8)) as pool:
        for _ in range(ACQUIRES):
            start = time.perf_counter()
            session = await pool.lease()
            seconds.append(time.perf_counter() - start)
            pool.release(session)
            while pool.info()["idle"] < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    return seconds


def build_start_figures(times: StartTimes) -> Iterable[Figure | Series]:
    """Yield the figures and the plot. One figure is the fastest start: the minimum on this machine."""
    for name, seconds in times.items():
        yield Series("start", name, tuple(range(len(seconds))), tuple(seconds))
    ours, plain = percentile(times[OURS], 0.5), percentile(times[PLAIN], 0.5)
    yield Figure(
        "sandboxed start to ready, p50", format_seconds(ours), "10 ms", round(ours / 0.01, 3), "<= 10 ms", ours <= 0.01
    )
    yield without_target("  ... the fastest", format_seconds(min(times[OURS])), "10 ms", min(times[OURS]) / 0.01)
    yield without_target(
        "  ... p50 compared with python -c pass", format_seconds(ours), format_seconds(plain), plain / ours
    )
    spawned = percentile(times[SPAWN], 0.5)
    yield without_target(
        "  ... p50 without a fork-server (spawned)", format_seconds(spawned), format_seconds(plain), plain / spawned
    )
    if KERNEL in times:
        kernel = percentile(times[KERNEL], 0.5)
        yield at_least(
            "start compared with a Jupyter kernel, p50", format_seconds(ours), format_seconds(kernel), kernel / ours, 60
        )
    else:
        yield not_compared("start compared with a Jupyter kernel, p50", format_seconds(ours), ">= 60x")
