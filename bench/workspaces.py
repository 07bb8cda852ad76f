"""What it costs to keep the workspace of a durable run: for the caller, in bytes, and until it is back."""

import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.captures import FRAME, FRAMES, SMALL, get_median
from bench.figures import Figure, at_most, figure_with_limit, percentile, without_target
from bench.progress import show_progress
from bench.quick import pick_size
from bench.startup import CONFIG
from standfast import Agent, FunctionModel, Runtime, open_store, python_tool
from standfast.store.sqlite.backend import SqliteBackend
from standfast.workers import PoolConfig, PythonSessions, SessionConfig, SessionPool, fork_server
from standfast.workers.cell_executors import Durability
from standfast.workspaces.retention import sweep_blobs

CALLS, LARGE_CALLS, MANY_CALLS = pick_size(100, 6), pick_size(20, 4), pick_size(1000, 10)
ROUNDS, ADDED_ROUNDS = pick_size(20, 3), pick_size(3, 1)


class Notebook:
    """A model that runs one cell a turn and thinks for ``pause`` seconds; it measures the calls in between."""

    def __init__(self, setup: str, cell: str, calls: int, pause: float) -> None:
        self.setup, self.cell, self.calls, self.pause = setup, cell, calls, pause
        self.asked: list[float] = []
        self.answered: list[float] = []

    async def decide(self, request: Any) -> Any:
        self.asked.append(time.perf_counter())
        done = len(self.answered)
        await asyncio.sleep(self.pause)
        self.answered.append(time.perf_counter())
        if done > self.calls:
            return "done"
        return FunctionModel.call("run_python", code=self.cell if done else self.setup)

    @property
    def seconds(self) -> list[float]:
        """The seconds from an answer to the next question, without those in which the worker starts."""
        return [end - start for start, end in zip(self.answered[1:], self.asked[2:], strict=False)]


async def run_calls(
    path: Path,
    config: SessionConfig,
    setup: str,
    cell: str,
    calls: int,
    durability: Durability,
    pause: float = 0.0,
) -> list[float]:
    """Make calls in a durable run; return the seconds of each."""
    book = Notebook(setup, cell, calls, pause)
    async with SessionPool(PoolConfig(session=config, min_idle=0, max_sessions=2)) as pool:
        sessions = PythonSessions(pool, durability=durability, timeout=120)
        tool = python_tool(sessions, timeout=120)
        agent = Agent("book", tools=[tool], model=FunctionModel(book.decide))
        async with Runtime.open(f"sqlite:///{path}", agents=[agent]) as runtime:
            run = await runtime.start("book", "go", session_id="s", max_turns=calls + 5)
            outcome = await run.wait()
            assert outcome.status == "completed", outcome
    return book.seconds


async def measure_added(config: SessionConfig, setup: str, calls: int, pause: float) -> tuple[float, float]:
    """Return the milliseconds that keeping adds to a call, and the kilobytes of content that a call stores.

    Calls with and without take turns, in several rounds, since other work on the machine changes from one to the next.
    """
    medians: dict[Durability, list[float]] = {"off": [], "each_call": []}
    stored = 0.0
    for _ in range(ADDED_ROUNDS):
        for durability, found in medians.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "app.db"
                found.append(get_median(await run_calls(path, config, setup, "total += 1", calls, durability, pause)))
                stored = measure_growth_per_checkpoint(path)
    added = [kept - plain for plain, kept in zip(medians["off"], medians["each_call"], strict=True)]
    return statistics.median(added), stored


async def measure_lags(path: Path) -> list[float]:
    """Return the seconds from the commit of calls that change a large frame to the commits of their checkpoints."""
    await run_calls(path, FRAMES, SMALL + FRAME, "frame += 1", LARGE_CALLS // 2, "each_call", 1.0)
    with closing(sqlite3.connect(path)) as raw:
        rows = raw.execute(
            "SELECT c.created_at - v.created_at FROM standfast_checkpoints c"
            " JOIN standfast_versions v ON v.name = c.name AND v.version = c.version ORDER BY c.version"
        )
        return [seconds for (seconds,) in rows]


def measure_growth_per_checkpoint(path: Path) -> float:
    """Return the kilobytes of blobs and manifests for each checkpoint after the first."""
    with closing(sqlite3.connect(path)) as raw:
        rows = raw.execute("SELECT blobs, LENGTH(data) FROM standfast_checkpoints ORDER BY version").fetchall()
        sizes = dict(raw.execute("SELECT digest, LENGTH(data) FROM standfast_blob_data"))
    if len(rows) < 2:
        return 0.0
    new = set(sizes) - set(json.loads(rows[0][0]))
    return (sum(sizes[digest] for digest in new) + sum(size for _, size in rows[1:])) / (len(rows) - 1) / 1e3


async def measure_restores(path: Path) -> float:
    """Return the milliseconds that a first call takes longer because its workspace is restored."""
    restored, fresh = list[float](), list[float]()
    async with (
        open_store(f"sqlite:///{path}") as store,
        fork_server(CONFIG),
        SessionPool(PoolConfig(session=CONFIG, min_idle=0, max_sessions=2)) as pool,
    ):
        first = PythonSessions(pool, store=store)
        await first.run(SMALL, key="kept")
        await first.save("kept")
        first.close()
        for number in range(ROUNDS):
            for key, seconds in (("kept", restored), (f"fresh{number}", fresh)):
                sessions = PythonSessions(pool, store=store)
                start = time.perf_counter()
                await sessions.run("1", key=key)
                seconds.append(time.perf_counter() - start)
                await sessions.save(key)
                sessions.close()
    return get_median(restored) - get_median(fresh)


async def measure_forks(path: Path) -> float:
    """Return the milliseconds to fork a run with its workspace."""
    await run_calls(path, CONFIG, SMALL, "total += 1", 10, "each_call")
    agent = Agent("book", model=FunctionModel(lambda request: "done"))
    seconds = []
    async with Runtime.open(f"sqlite:///{path}", agents=[agent]) as runtime:
        [info] = await runtime.runs()
        for _ in range(ROUNDS):
            start = time.perf_counter()
            fork = await runtime.fork(info.run_id)
            seconds.append(time.perf_counter() - start)
            await fork.wait()
    return get_median(seconds)


async def measure_live_forks(path: Path, config: SessionConfig, setup: str) -> float:
    """Return the milliseconds from forking a run whose workspace is live until a first cell of the fork was run."""
    asked: list[float] = []

    def decide(request: Any) -> Any:
        asked.append(time.perf_counter())
        outputs = sum(item.get("type") == "function_call_output" for item in request.input)
        return FunctionModel.call("run_python", code="total" if outputs else setup) if outputs < 2 else "done"

    seconds = []
    async with SessionPool(PoolConfig(session=config, min_idle=1, max_sessions=ROUNDS + 3)) as pool:
        sessions = PythonSessions(pool, live_snapshots=2, timeout=120)
        agent = Agent("book", tools=[python_tool(sessions, timeout=120)], model=FunctionModel(decide))
        async with Runtime.open(f"sqlite:///{path}", agents=[agent]) as runtime:
            run = await runtime.start("book", "go")
            outcome = await run.wait()
            assert outcome.status == "completed", outcome
            first, _ = [event.seq async for event in run.events() if event.type == "calls.made"]
            for _ in range(ROUNDS):
                while not pool.info()["idle"]:  # noqa: ASYNC110 - the pool starts the next worker
                    await asyncio.sleep(0.05)
                asked.clear()
                start = time.perf_counter()
                fork = await runtime.fork(run.id, at=first)
                outcome = await fork.wait()
                assert outcome.status == "completed", outcome
                seconds.append(asked[-1] - start)
    return get_median(seconds)


async def measure_growth(path: Path) -> tuple[list[int], float, int]:
    """Return the bytes of blobs after each tenth of many calls, how many times more a checkpoint adds in the second
    half than in the first, and the blobs that nothing refers to after a sweep.

    No checkpoint is begun while another one is written, so their number depends on the machine.
    """
    await run_calls(path, CONFIG, SMALL, "total += 1", MANY_CALLS, "each_call")
    with closing(sqlite3.connect(path)) as raw:
        sizes = dict(raw.execute("SELECT digest, LENGTH(data) FROM standfast_blob_data"))
        saved = raw.execute("SELECT version, blobs FROM standfast_checkpoints ORDER BY version").fetchall()
    curve, seen = [], set[str]()
    for tenth in range(1, 11):
        for _, blobs in (row for row in saved if row[0] <= MANY_CALLS * tenth / 10 + 1):
            seen.update(json.loads(blobs))
        curve.append(sum(sizes[digest] for digest in seen))
    backend = SqliteBackend(path)
    await sweep_blobs(backend, before=time.time() + 10)
    await backend.close()
    with closing(sqlite3.connect(path)) as raw:
        (unreferenced,) = raw.execute("SELECT COUNT(*) FROM standfast_blobs WHERE refs <= 0").fetchone()
    early = sum(version <= MANY_CALLS / 2 + 1 for version, _ in saved)
    added = (curve[-1] - curve[4]) / max(len(saved) - early, 1)
    return curve, added / max(curve[4] / max(early, 1), 1), unreferenced


async def measure() -> Iterable[Figure]:
    show_progress("workspaces")
    small, _ = await measure_added(CONFIG, SMALL, CALLS, 0.02)
    frame, kilobytes = await measure_added(FRAMES, SMALL + FRAME, LARGE_CALLS, 0.5)
    with tempfile.TemporaryDirectory() as folder:
        restore = await measure_restores(Path(folder) / "restore.db")
        fork = await measure_forks(Path(folder) / "fork.db")
        live = await measure_live_forks(Path(folder) / "live.db", CONFIG, SMALL)
        large = await measure_live_forks(Path(folder) / "large.db", FRAMES, SMALL + FRAME)
        curve, growth, unreferenced = await measure_growth(Path(folder) / "many.db")
        lags = await measure_lags(Path(folder) / "lags.db")
    return [
        figure_with_limit("Python call, each_call beyond off, p50", max(small, 0.0), 5),
        figure_with_limit("the same with an unchanged frame of 100 MB, p50", max(frame, 0.0), 10),
        figure_with_limit("the same, bytes stored by a call", kilobytes, 64, "KB"),
        figure_with_limit("restore of a small workspace, beyond a first call, p50", max(restore, 0.0), 50),
        figure_with_limit("fork of a run with its workspace, p50", fork, 50),
        figure_with_limit("fork of a run with its live workspace and a first call, p50", live, 50),
        figure_with_limit("the same with a frame of 100 MB, p50", large, 50),
        figure_with_limit(
            "checkpoint of a changed frame of 100 MB, after the call, p95", percentile(lags, 0.95) * 1e3, 1000
        ),
        at_most(
            f"bytes per checkpoint of {MANY_CALLS} calls, second half beside the first",
            f"{(curve[-1] - curve[4]) / 1e3:.0f} KB",
            f"{curve[4] / 1e3:.0f} KB",
            growth,
            1.5,
        ),
        *(
            without_target(
                f"  ... stored after {MANY_CALLS * (tenth + 1) // 10} calls",
                f"{size / 1e3:.0f} KB",
                "",
                size / curve[-1],
            )
            for tenth, size in enumerate(curve)
        ),
        figure_with_limit("blobs without a reference after a sweep", unreferenced, 0.5, ""),
    ]


def figures() -> Iterable[Figure]:
    return asyncio.run(measure())
