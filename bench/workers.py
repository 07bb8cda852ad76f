"""Worker sessions beside a Jupyter kernel and a bare asyncio pipe echo, in one run."""

import asyncio
import statistics
import time
from collections.abc import Iterable
from contextlib import nullcontext

from bench.echo_server import Plain, in_the_middle, placed, placements, plain_python, timed, trips
from bench.environments import JUPYTER, Peer, peers_started
from bench.progress import tell
from bench.quick import pick
from bench.figures import Figure, Series, at_least, at_most, micro, percentile, without_peer
from bench.startup import CONFIG, KERNEL, acquires, first_start, started, starts
from standfast.workers import ExecuteMessage, OutputMessage, WorkerSession, fork_server

LINES, LIVE = pick(200_000, 50_000), pick(300, 60)
STOPS, DEATHS, OUTPUTS = pick(20, 8), pick(20, 5), pick(5, 2)
PAIRS, SPINS = pick(15, 5), pick(25, 10)
# Inside a function: at the top level each variable is looked up in a dict whose layout is drawn anew for each process.
SPIN = """
def work():
    number, seen = 0, {}
    while number < 50_000:
        number += 1
        seen[number % 1000] = seen.get(number % 997, 0) + number * 3 // 7
import time
begin = time.process_time()
work()
print(time.process_time() - begin)
"""
PLAIN = f"import sys\ncode = compile({SPIN!r}, 'x', 'exec')\nfor line in sys.stdin: exec(code, {{}})"


async def rate(session: WorkerSession) -> float:
    printed, begin = 0, time.perf_counter()
    async for message in session.execute(ExecuteMessage(code=f"for _ in range({LINES}): print('y' * 99)"), None):
        if isinstance(message, OutputMessage):
            printed += len(message.data)
    assert printed == LINES * 100, "output was lost"
    return printed / 1e6 / (time.perf_counter() - begin)


async def stops(session: WorkerSession, code: str) -> list[float]:
    taken: list[float] = []
    for _ in range(STOPS):
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
    for _ in range(DEATHS):
        async with WorkerSession(CONFIG) as session:
            result = await session.run("import os, sys, time; print(time.time()); sys.stdout.flush(); os._exit(1)")
            taken.append(time.time() - float(result.stdout))
    return taken


async def spins() -> tuple[float, float, float]:
    """Seconds of the same loop in a worker and in a plain, equally warm Python, and their ratio.

    Processor time, not the clock: on a machine with other work the clock measures the others. Even so a core is half
    as fast while a neighbour uses its other half, for seconds on end; so both are on one core and take turns, and each
    turn is compared with the one beside it. Where things lie in memory makes another percent or two, drawn anew with
    each interpreter that is started, and all workers of one fork-server inherit it: so every pair has a server and a
    Python of its own. Two plain Pythons compared in this way differ by 0.0 to 0.3 %.
    """
    found = []
    places = list(placements().values())
    for number in range(PAIRS):
        tell(f"workers: processor-bound code, pair {number + 1} of {PAIRS}")
        async with fork_server(CONFIG), WorkerSession(CONFIG) as session, plain_python(PLAIN) as other:
            with placed(*places[number % len(places)]) if places else nullcontext():
                turns = [await in_turn(session, other, worker_first=turn % 2 == 0) for turn in range(SPINS)]
        found.append(in_the_middle(turns))
    ours, theirs, ratios = zip(*found, strict=True)
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


async def in_turn(session: WorkerSession, other: Plain, *, worker_first: bool) -> tuple[float, float]:
    theirs = 0.0 if worker_first else float(await other.ask())
    ours = float((await session.run(SPIN, timeout=60)).stdout)
    return ours, theirs or float(await other.ask())


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
    return Figure(name, f"{ours:.2f} {unit}", "", round(ours / most, 3), f"<= {most:g} {unit}", ours <= most)


async def echoing() -> Iterable[Figure]:
    rows = []
    for name, place in placements().items():
        tell(f"workers: 1+1 and a pipe echo, {name}")
        ours, bare, ratio = await trips(place)
        rows.append(at_most(f"1+1 beside a pipe echo, {name}, p50", micro(ours), micro(bare), ratio, 4))
    return rows


async def talking(kernel: Peer | None) -> list[Figure]:
    mine: list[float] = []
    theirs: list[float] = []
    speeds: list[float] = []
    others: list[float] = []
    async with WorkerSession(CONFIG) as session:
        if kernel:
            kernel.ask("start")
        for number in range(OUTPUTS):
            tell(f"workers: 1+1 and output, round {number + 1} of {OUTPUTS}")
            for _ in range(60):
                await timed(mine, session.run("1+1"))
            speeds.append(await rate(session))
            if kernel:
                theirs += kernel.ask("trips", calls=60)
                others.append(kernel.ask("rate", lines=LINES))
    trip, speed = percentile(mine, 0.5), max(speeds)
    asked, printed = f"1+1 beside a {KERNEL}, p50", f"output beside a {KERNEL}, best"
    if not kernel:
        return [
            without_peer(asked, micro(trip), ">= 10x"),
            without_peer(printed, f"{speed:.1f} MB/s", ">= 10x"),
        ]
    kernel.ask("stop")
    other, texts = percentile(theirs, 0.5), (f"{speed:.1f} MB/s", f"{max(others):.1f} MB/s")
    return [
        at_least(asked, micro(trip), micro(other), other / trip, 10),
        at_least(printed, *texts, speed / max(others), 10),
    ]


async def stopping() -> Iterable[Figure]:
    tell("workers: interrupts, cancels, deaths")
    async with WorkerSession(CONFIG) as session:
        loop = await stops(session, "while True: pass")
        sleep = await stops(session, "import time; time.sleep(60)")
        flood = await stops(session, "while True: print('y' * 99)")
    return [
        limit("interrupt of a loop, p95", percentile(loop, 0.95) * 1e3, 20),
        limit("interrupt of a sleep, p95", percentile(sleep, 0.95) * 1e3, 20),
        limit("cancel under a flood, p95", percentile(flood, 0.95) * 1e3, 50),
        limit("death notice, p50", percentile(await deaths(), 0.5) * 1e3, 10),
    ]


async def measure(kernel: Peer | None) -> list[Figure | Series]:
    first = await first_start()
    async with fork_server(CONFIG):
        rows = [*started(await starts(kernel))]
        rows.append(Figure("first start, with the fork-server's own", micro(first), "", None, "", None))
        rows.append(limit("warm acquire, p50", percentile(await acquires(), 0.5) * 1e3, 1))
        rows += [*await talking(kernel), *await stopping()]
        tell(f"workers: {LIVE} at once")
        alive, private = await crowd()
    rows.append(limit("private memory of an idle worker", private, 4, "MB"))
    rows.append(Figure(f"{LIVE} sessions at once, answering", str(alive), "", alive / LIVE, f"{LIVE}", alive == LIVE))
    rows += await echoing()
    inside, plain, ratio = await spins()
    return [*rows, at_most("processor-bound code, beside python", micro(inside), micro(plain), ratio, 1.03)]


def figures() -> Iterable[Figure | Series]:
    with peers_started({KERNEL: (JUPYTER, ("bench.competitors.jupyter",))}) as peers:
        yield from asyncio.run(measure(peers.get(KERNEL)))
