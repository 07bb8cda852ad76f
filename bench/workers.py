"""Worker sessions compared with a Jupyter kernel and with a bare asyncio pipe echo."""

import asyncio
import statistics
import time
from collections.abc import Iterable
from contextlib import nullcontext

from bench import captures
from bench.echo_server import (
    PlainPython,
    get_medians,
    get_placements,
    measure_round_trips,
    pin_processes,
    start_plain_python,
    time_call,
)
from bench.environments import JUPYTER, Competitor, start_competitors
from bench.figures import (
    Figure,
    Series,
    at_least,
    at_most,
    figure_with_limit,
    format_seconds,
    not_compared,
    percentile,
)
from bench.progress import show_progress
from bench.quick import pick_size
from bench.startup import (
    CONFIG,
    KERNEL,
    build_start_figures,
    measure_acquires,
    measure_first_start,
    measure_processor_time,
    measure_starts,
)
from standfast.workers import ExecuteMessage, OutputMessage, WorkerSession, fork_server

LINES, LIVE = pick_size(200_000, 50_000), pick_size(300, 60)
STOPS, DEATHS, OUTPUTS = pick_size(20, 8), pick_size(20, 5), pick_size(5, 2)
PAIRS, SPINS = pick_size(15, 5), pick_size(25, 10)
# In a function: at the top level, variables are looked up in a dict whose layout varies from process to process.
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


async def measure_output_rate(session: WorkerSession) -> float:
    printed, start = 0, time.perf_counter()
    async for message in session.execute(ExecuteMessage(code=f"for _ in range({LINES}): print('y' * 99)"), None):
        if isinstance(message, OutputMessage):
            printed += len(message.data)
    assert printed == LINES * 100, "output was lost"
    return printed / 1e6 / (time.perf_counter() - start)


async def measure_interrupts(session: WorkerSession, code: str) -> list[float]:
    times: list[float] = []
    for _ in range(STOPS):
        running = asyncio.Event()

        async def consume(running: asyncio.Event = running) -> None:
            async for message in session.execute(ExecuteMessage(code=f"print(1)\n{code}"), None):
                if isinstance(message, OutputMessage):
                    running.set()

        task = asyncio.create_task(consume())
        await running.wait()
        await asyncio.sleep(0.01)
        await time_call(times, session.interrupt())
        await task
    return times


async def measure_death_notices() -> list[float]:
    times: list[float] = []
    for _ in range(DEATHS):
        async with WorkerSession(CONFIG) as session:
            result = await session.run("import os, sys, time; print(time.time()); sys.stdout.flush(); os._exit(1)")
            times.append(time.time() - float(result.stdout))
    return times


async def measure_loops() -> tuple[float, float, float]:
    """Return the seconds of a loop in a worker and in a plain, equally warm Python, and their ratio.

    Processor time is measured, because the wall clock includes other work of the machine. Even so, a core is half as
    fast while a neighbour uses its other hyper-thread, for seconds on end; so both run on one core in turns, and each
    turn is compared with its neighbour. The memory layout makes a difference of one or two percent, which all workers
    of a fork-server share; so every pair has its own server and Python. Two plain Pythons compared in this way differ
    by 0.0 to 0.3 %.
    """
    results = []
    places = list(get_placements().values())
    for number in range(PAIRS):
        show_progress(f"workers: processor-bound code, pair {number + 1} of {PAIRS}")
        async with fork_server(CONFIG), WorkerSession(CONFIG) as session, start_plain_python(PLAIN) as other:
            with pin_processes(*places[number % len(places)]) if places else nullcontext():
                turns = [await run_pair(session, other, worker_first=turn % 2 == 0) for turn in range(SPINS)]
        results.append(get_medians(turns))
    ours, theirs, ratios = zip(*results, strict=True)
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


async def run_pair(session: WorkerSession, other: PlainPython, *, worker_first: bool) -> tuple[float, float]:
    theirs = 0.0 if worker_first else float(await other.ask())
    ours = float((await session.run(SPIN, timeout=60)).stdout)
    return ours, theirs or float(await other.ask())


async def run_many() -> tuple[int, float]:
    """Return the number of concurrent sessions that answer, and the private megabytes (10**6 bytes) of each."""
    sessions = [WorkerSession(CONFIG) for _ in range(LIVE)]
    try:
        for at in range(0, LIVE, 10):
            await asyncio.gather(*(session.start() for session in sessions[at : at + 10]))
        private = statistics.median(session.usage().private for session in sessions[:20]) / 1e6
        answers = await asyncio.gather(*(session.run(f"{n} + 1") for n, session in enumerate(sessions)))
        return sum(answer.value == n + 1 for n, answer in enumerate(answers)), private
    finally:
        await asyncio.gather(*(session.terminate() for session in sessions))


async def measure_echoes() -> Iterable[Figure]:
    rows = []
    for name, placement in get_placements().items():
        show_progress(f"workers: 1+1 and a pipe echo, {name}")
        ours, echo, ratio = await measure_round_trips(placement)
        rows.append(
            at_most(f"1+1 compared with a pipe echo, {name}, p50", format_seconds(ours), format_seconds(echo), ratio, 4)
        )
    return rows


async def compare_with_kernel(kernel: Competitor | None) -> list[Figure]:
    our_trips: list[float] = []
    their_trips: list[float] = []
    our_rates: list[float] = []
    their_rates: list[float] = []
    async with WorkerSession(CONFIG) as session:
        if kernel:
            kernel.ask("start")
        for number in range(OUTPUTS):
            show_progress(f"workers: 1+1 and output, round {number + 1} of {OUTPUTS}")
            for _ in range(60):
                await time_call(our_trips, session.run("1+1"))
            our_rates.append(await measure_output_rate(session))
            if kernel:
                their_trips += kernel.ask("trips", calls=60)
                their_rates.append(kernel.ask("rate", lines=LINES))
    trip, speed = percentile(our_trips, 0.5), max(our_rates)
    trip_label, rate_label = f"1+1 compared with a {KERNEL}, p50", f"output compared with a {KERNEL}, best"
    if not kernel:
        return [
            not_compared(trip_label, format_seconds(trip), ">= 10x"),
            not_compared(rate_label, f"{speed:.1f} MB/s", ">= 10x"),
        ]
    kernel.ask("stop")
    other, texts = percentile(their_trips, 0.5), (f"{speed:.1f} MB/s", f"{max(their_rates):.1f} MB/s")
    return [
        at_least(trip_label, format_seconds(trip), format_seconds(other), other / trip, 10),
        at_least(rate_label, *texts, speed / max(their_rates), 10),
    ]


async def measure_stops() -> Iterable[Figure]:
    show_progress("workers: interrupts, cancels, deaths")
    async with WorkerSession(CONFIG) as session:
        loop = await measure_interrupts(session, "while True: pass")
        sleep = await measure_interrupts(session, "import time; time.sleep(60)")
        flood = await measure_interrupts(session, "while True: print('y' * 99)")
    return [
        figure_with_limit("interrupt of a loop, p95", percentile(loop, 0.95) * 1e3, 20),
        figure_with_limit("interrupt of a sleep, p95", percentile(sleep, 0.95) * 1e3, 20),
        figure_with_limit("cancel under a flood, p95", percentile(flood, 0.95) * 1e3, 50),
        figure_with_limit("death notice, p50", percentile(await measure_death_notices(), 0.5) * 1e3, 10),
    ]


async def measure(kernel: Competitor | None) -> list[Figure | Series]:
    first = await measure_first_start()
    async with fork_server(CONFIG):
        rows = [*build_start_figures(await measure_starts(kernel))]
        rows.append(Figure("first start, with the fork-server's own", format_seconds(first), "", None, "", None))
        rows.append(figure_with_limit("processor time of a start and its end", await measure_processor_time(), 10))
        rows.append(figure_with_limit("warm acquire, p50", percentile(await measure_acquires(), 0.5) * 1e3, 1))
        rows += [*await compare_with_kernel(kernel), *await measure_stops()]
        show_progress(f"workers: {LIVE} at once")
        alive, private = await run_many()
    rows.append(figure_with_limit("private memory of an idle worker", private, 4, "MB"))
    rows.append(Figure(f"{LIVE} sessions at once, answering", str(alive), "", alive / LIVE, f"{LIVE}", alive == LIVE))
    rows += [*await captures.measure(), *await measure_echoes()]
    inside, plain, ratio = await measure_loops()
    return [
        *rows,
        at_most(
            "processor-bound code, compared with python", format_seconds(inside), format_seconds(plain), ratio, 1.03
        ),
    ]


def figures() -> Iterable[Figure | Series]:
    with start_competitors({KERNEL: (JUPYTER, ("bench.competitors.jupyter",))}) as competitors:
        yield from asyncio.run(measure(competitors.get(KERNEL)))
