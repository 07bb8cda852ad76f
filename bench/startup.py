"""How long it takes until a Python is there to be used: workers of ours, a Jupyter kernel, a bare interpreter."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterable

from bench.environments import Peer
from bench.progress import tell
from bench.quick import pick
from bench.figures import Figure, Series, at_least, compared, micro, percentile, without_peer
from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, SessionPool, WorkerSession, fork_server

CONFIG = SessionConfig(sandbox=SandboxPolicy(require="namespaces"), output_limit=None)
SPAWNED = SessionConfig(mode="spawn", sandbox=SandboxPolicy(require="namespaces"))
ROUNDS, STARTS, ACQUIRES = pick(10, 3), 5, pick(40, 10)
OURS, SPAWN, KERNEL, PLAIN = "sandboxed worker", "sandboxed worker, spawned", "Jupyter kernel", "python -c pass"
Taken = dict[str, list[float]]


async def worker(config: SessionConfig) -> float:
    session = WorkerSession(config)
    begin = time.perf_counter()
    await session.start()
    taken = time.perf_counter() - begin
    await session.terminate()
    return taken


def interpreter() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - begin


async def starts(kernel: Peer | None) -> Taken:
    """Everybody's starts in turns; of the quick ones several in each round. A fork-server is there already."""
    found: Taken = {OURS: [], SPAWN: [], PLAIN: []} | ({KERNEL: []} if kernel else {})
    for number in range(ROUNDS):
        tell(f"workers: starts, round {number + 1} of {ROUNDS}")
        for _ in range(STARTS):
            found[OURS].append(await worker(CONFIG))
            found[PLAIN].append(interpreter())
        found[SPAWN].append(await worker(SPAWNED))
        if kernel:
            found[KERNEL].append(kernel.ask("start"))
    if kernel:
        kernel.ask("stop")
    return found


async def first_start() -> float:
    """A start that has to start the fork-server first."""
    begin = time.perf_counter()
    async with fork_server(CONFIG):
        await worker(CONFIG)
        return time.perf_counter() - begin


async def acquires() -> list[float]:
    taken = []
    async with SessionPool(PoolConfig(session=CONFIG, min_idle=4, max_sessions=8)) as pool:
        for _ in range(ACQUIRES):
            begin = time.perf_counter()
            session = await pool.lease()
            taken.append(time.perf_counter() - begin)
            pool.release(session)
            while pool.info()["idle"] < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    return taken


def started(found: Taken) -> Iterable[Figure | Series]:
    """The lines and the plot. One line says what the fastest start took: the least that the machine allows."""
    for name, taken in found.items():
        yield Series("start", name, tuple(range(len(taken))), tuple(taken))
    ours, plain = percentile(found[OURS], 0.5), percentile(found[PLAIN], 0.5)
    yield Figure("sandboxed start to ready, p50", micro(ours), "10 ms", round(ours / 0.01, 3), "<= 10 ms", ours <= 0.01)
    yield compared("  ... the fastest", micro(min(found[OURS])), "10 ms", min(found[OURS]) / 0.01)
    yield compared("  ... p50 beside python -c pass", micro(ours), micro(plain), plain / ours)
    spawned = percentile(found[SPAWN], 0.5)
    yield compared("  ... p50 without a fork-server (spawned)", micro(spawned), micro(plain), plain / spawned)
    if KERNEL in found:
        kernel = percentile(found[KERNEL], 0.5)
        yield at_least("start beside a Jupyter kernel, p50", micro(ours), micro(kernel), kernel / ours, 40)
    else:
        yield without_peer("start beside a Jupyter kernel, p50", micro(ours), ">= 40x")
