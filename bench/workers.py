"""Worker sessions beside a Jupyter kernel and a bare asyncio pipe echo, in one run."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.rows import Figure, at_least, at_most, micro
from holdfast.workers import (
    ExecuteMessage,
    OutputMessage,
    PoolConfig,
    SandboxPolicy,
    SessionConfig,
    SessionPool,
    WorkerSession,
    fork_server,
)

CONFIG = SessionConfig(sandbox=SandboxPolicy(require="namespaces"), output_limit=None)
PEERS = Path(__file__).parent.parent / ".venv-peers" / "jupyter"
STARTS, CALLS, LINES, LIVE = 40, 1000, 200_000, 300
PROCESSES, ROUNDS = 9, 7
ECHO = "import os\nwhile d := os.read(0, 65536): os.write(1, d)"
SPIN = "import time\nt = time.process_time()\nn = 0\nwhile n < 3_000_000: n += 1\nprint(time.process_time() - t)"

PLAIN = f"import sys\ncode = compile({SPIN!r}, 'x', 'exec')\nfor line in sys.stdin: exec(code, {{}})"


def percentile(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def jupyter() -> dict[str, float]:
    """Measured in an environment of its own, made on first use; empty when it cannot be had."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "jupyter_client", "ipykernel"], check=True)
    script = Path(__file__).parent / "jupyter_peer.py"
    done = subprocess.run([str(python), str(script), "5", "300", str(LINES)], capture_output=True, text=True)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


async def timed(times: list[float], work: object) -> None:
    begin = time.perf_counter()
    await work  # type: ignore[misc]
    times.append(time.perf_counter() - begin)


async def starts() -> list[float]:
    times: list[float] = []
    for _ in range(STARTS):
        session = WorkerSession(CONFIG)
        await timed(times, session.start())
        await session.terminate()
    return times


async def acquires() -> list[float]:
    times: list[float] = []
    async with SessionPool(PoolConfig(session=CONFIG, min_idle=4, max_sessions=8)) as pool:
        for _ in range(STARTS):
            begin = time.perf_counter()
            session = await pool.lease()
            times.append(time.perf_counter() - begin)
            pool.release(session)
            while pool.info()["idle"] < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    return times


async def trips(session: WorkerSession) -> tuple[list[float], list[float]]:
    """``1+1`` in a worker and an echo by a bare pipe, taking turns on one loop."""
    ours: list[float] = []
    bare: list[float] = []
    async with plain_python(ECHO) as (to, back):
        for _ in range(CALLS):
            await timed(ours, session.run("1+1"))
            begin = time.perf_counter()
            to.write(b"1+1\n")
            await to.drain()
            await back.readline()
            bare.append(time.perf_counter() - begin)
    return ours, bare


@asynccontextmanager
async def plain_python(code: str) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.StreamReader]]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-u", "-c", code, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    yield process.stdin, process.stdout
    process.stdin.close()
    await process.wait()


async def rate(session: WorkerSession) -> float:
    printed, begin = 0, time.perf_counter()
    async for message in session.execute(ExecuteMessage(code=f"for _ in range({LINES}): print('y' * 99)"), None):
        if isinstance(message, OutputMessage):
            printed += len(message.data)
    assert printed == LINES * 100, "output was lost"
    return printed / 1e6 / (time.perf_counter() - begin)


async def stops(session: WorkerSession, code: str, times: int) -> list[float]:
    taken: list[float] = []
    for _ in range(times):
        going = asyncio.Event()

        async def consume(going: asyncio.Event = going) -> None:
            async for message in session.execute(ExecuteMessage(code=f"print(1)\n{code}"), None):
                if isinstance(message, OutputMessage):
                    going.set()

        task = asyncio.create_task(consume())
        await going.wait()
        await asyncio.sleep(0.01)
        await timed(taken, session.interrupt())
        await task
    return taken


async def deaths() -> list[float]:
    taken: list[float] = []
    for _ in range(10):
        async with WorkerSession(CONFIG) as session:
            result = await session.run("import os, sys, time; print(time.time()); sys.stdout.flush(); os._exit(1)")
            taken.append(time.time() - float(result.stdout))
    return taken


async def slowdown() -> float:
    """The same loop in workers and in plain, equally warm Pythons, taking turns.

    Processor time, not the clock: on a machine with other work the clock measures the others. Several processes of
    each kind, since where the kernel puts a process makes a difference of some percent; the best time of each
    process, and the median of those.
    """
    inside: list[list[float]] = []
    plain: list[list[float]] = []
    for _ in range(PROCESSES):
        inside.append([])
        plain.append([])
        async with WorkerSession(CONFIG) as session, plain_python(PLAIN) as (to, back):
            for _ in range(ROUNDS):
                inside[-1].append(float((await session.run(SPIN, timeout=60)).stdout))
                to.write(b"go\n")
                plain[-1].append(float(await back.readline()))
    return statistics.median(map(min, inside)) / statistics.median(map(min, plain))


async def crowd() -> tuple[int, float]:
    """How many sessions live at once and answer, and the private megabytes of each (10**6 bytes)."""
    sessions = [WorkerSession(CONFIG) for _ in range(LIVE)]
    try:
        for at in range(0, LIVE, 10):
            await asyncio.gather(*(session.start() for session in sessions[at : at + 10]))
        private = statistics.median(session.usage().private for session in sessions[:20]) / 1e6
        answers = await asyncio.gather(*(session.run(f"{n} + 1") for n, session in enumerate(sessions)))
        return sum(answer.value == n + 1 for n, answer in enumerate(answers)), private
    finally:
        await asyncio.gather(*(session.terminate() for session in sessions))


def limit(name: str, ours: float, most: float, unit: str = "ms") -> Figure:
    return Figure(name, f"{ours:.2f} {unit}", "", round(ours / most, 2), f"<= {most:g} {unit}", ours <= most)


async def measure() -> list[Figure]:
    figures: list[Figure] = []
    async with fork_server(CONFIG):
        begun = await starts()
        warm = await acquires()
        async with WorkerSession(CONFIG) as session:
            await trips(session)
            ours, bare = await trips(session)
            speed = await rate(session)
            loop = await stops(session, "while True: pass", 20)
            sleep = await stops(session, "import time; time.sleep(60)", 20)
            flood = await stops(session, "while True: print('y' * 99)", 20)
        slower = await slowdown()
        dead = await deaths()
        alive, private = await crowd()
    peer = await asyncio.to_thread(jupyter)
    start, trip = percentile(begun, 0.5), percentile(ours, 0.5)
    figures.append(limit("sandboxed start to ready, p50", start * 1e3, 10))
    figures.append(limit("warm acquire, p50", percentile(warm, 0.5) * 1e3, 1))
    echoed = percentile(bare, 0.5)
    figures.append(at_most("1+1 round trip beside a pipe echo, p50", micro(trip), micro(echoed), trip / echoed, 4))
    if peer:
        figures.append(
            at_least("start beside a Jupyter kernel", micro(start), micro(peer["start"]), peer["start"] / start, 40)
        )
        figures.append(
            at_least("1+1 beside a Jupyter kernel", micro(trip), micro(peer["trip"]), peer["trip"] / trip, 10)
        )
        figures.append(
            at_least(
                "output beside a Jupyter kernel",
                f"{speed:.1f} MB/s",
                f"{peer['rate']:.1f} MB/s",
                speed / peer["rate"],
                10,
            )
        )
    figures.append(limit("interrupt of a loop, p95", percentile(loop, 0.95) * 1e3, 20))
    figures.append(limit("interrupt of a sleep, p95", percentile(sleep, 0.95) * 1e3, 20))
    figures.append(limit("cancel under a flood, p95", percentile(flood, 0.95) * 1e3, 50))
    figures.append(limit("death notice, p50", percentile(dead, 0.5) * 1e3, 10))
    figures.append(limit("private memory of an idle worker", private, 4, "MB"))
    figures.append(
        Figure(f"{LIVE} sessions at once, answering", str(alive), "", alive / LIVE, f"{LIVE}", alive == LIVE)
    )
    figures.append(
        Figure(
            "processor-bound code beside plain Python",
            f"{slower:.3f}x",
            "1x",
            round(slower, 3),
            "<= 1.03x",
            slower <= 1.03,
        )
    )
    return figures


def figures() -> list[Figure]:
    return asyncio.run(measure())
