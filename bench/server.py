"""``standfast serve``: runs over HTTP beside other servers, many open event streams, and connections that are cut."""

import asyncio
import json
import math
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.environments import ROOT, CompetitorUnavailable, Environment, prepare_environment
from bench.figures import Figure, at_least, at_most, figure_with_limit, format_seconds, not_compared, percentile
from bench.http_load import Server, serve, serve_competitor
from bench.postgres import open_postgres
from bench.progress import show_progress
from bench.quick import is_quick, pick_size
from standfast import Agent, FunctionModel

CLIENTS = pick_size(100, 10)
RUNS, ROUNDS = pick_size(1000, 40), pick_size(3, 1)
COMPETITOR_RUNS = pick_size(200, 20)
STREAMS, PACE = pick_size(1000, 50), 0.05
SIDE_RUNS, SIDE_RATE = pick_size(60, 6), 200 / 60
ALONE_SECONDS = SIDE_RUNS / SIDE_RATE
WORDS = int((ALONE_SECONDS + pick_size(25.0, 4.0)) / PACE)
WORDS_ELSEWHERE = pick_size(400, 40)
CUTS, CUTTERS = pick_size(10_000, 50), pick_size(10, 5)

ADK = Environment("adk", ("google-adk",))
LANGGRAPH = Environment("langgraph-dev", ("langgraph-cli[inmem]", "langgraph"))
COMPETITOR_FOLDER = ROOT / "bench" / "competitors"


class Speaker(FunctionModel):
    """Says words at a pace; each word is the time at which it is said."""

    async def stream(self, request):  # type: ignore[no-untyped-def]
        from bench.live import Speaker as Timed

        async for event in Timed(WORDS, PACE).stream(request):
            yield event


instant = Agent("instant", model=FunctionModel(lambda request: "done"))
speaker = Agent("speaker", model=Speaker(lambda request: "unused"))


# --- runs ------------------------------------------------------------------------------------------------


async def start_run(server: Server, agent: str) -> str:
    answer = await server.request("POST", "/runs", {"agent": agent, "input": "go"})
    found = re.search(rb'"run_id":"(\w+)"', answer)
    assert found is not None, answer
    return found[1].decode()


async def run_ours(server: Server) -> None:
    """Start a run and read its events to the end, in one request."""
    reader, writer = await server.open("POST", "/runs", {"agent": "instant", "input": "go"}, accept="text/event-stream")
    events = await reader.read()
    writer.close()
    assert b"event: end" in events, events


async def run_adk(server: Server) -> None:
    """Create a session and stream a run in it: the run has no other place."""
    answer = await server.request("POST", "/apps/instant/users/ann/sessions", {})
    found = re.search(rb'"id":\s*"([\w-]+)"', answer)
    assert found is not None, answer
    message = {"role": "user", "parts": [{"text": "go"}]}
    body = {"app_name": "instant", "user_id": "ann", "session_id": found[1].decode(), "new_message": message}
    answer = await server.request("POST", "/run_sse", body | {"streaming": True})
    assert b'"done"' in answer, answer


async def run_langgraph(server: Server) -> None:
    """Stream a run without a thread, in one request."""
    messages = {"messages": [{"role": "user", "content": "go"}]}
    body = {"assistant_id": "instant", "input": messages, "stream_mode": ["values"]}
    answer = await server.request("POST", "/runs/stream", body)
    assert b'"done"' in answer, answer


@dataclass(frozen=True)
class CompetitorServer:
    """A server of another library: how it is started, and one run on it."""

    environment: Environment
    folder: str
    arguments: tuple[str, ...]
    ready: str
    run: Callable[[Server], Awaitable[None]]
    settings: tuple[tuple[str, str], ...] = ()

    @asynccontextmanager
    async def start(self, name: str) -> AsyncIterator[Server]:
        python = await asyncio.to_thread(prepare_environment, self.environment)
        command = [str(Path(python).parent / self.arguments[0]), *self.arguments[1:]]
        with tempfile.TemporaryDirectory() as folder:  # they write files beside the agents
            shutil.copytree(COMPETITOR_FOLDER / self.folder, folder, dirs_exist_ok=True)
            async with serve_competitor(name, command, Path(folder), self.ready, dict(self.settings)) as server:
                await self.run(server)
                yield server


COMPETITORS = {
    "google-adk api_server": CompetitorServer(
        ADK,
        "adk",
        (
            *("adk", "api_server", "--host", "127.0.0.1", "--port", "{port}", "--log_level", "error"),
            *("--session_service_uri", "memory://", "--artifact_service_uri", "memory://", "."),
        ),
        "/list-apps",
        run_adk,
    ),
    "langgraph dev": CompetitorServer(
        LANGGRAPH,
        "langgraph_server",
        (
            *("langgraph", "dev", "--host", "127.0.0.1", "--port", "{port}", "--no-browser", "--no-reload"),
            *("--n-jobs-per-worker", str(CLIENTS), "--server-log-level", "ERROR"),
        ),
        "/ok",
        run_langgraph,
        (("LANGSMITH_TRACING", "false"), ("LANGGRAPH_CLI_NO_ANALYTICS", "1"), ("NO_COLOR", "1")),
    ),
}


async def time_runs(server: Server, run: Callable[[Server], Awaitable[None]], count: int) -> tuple[float, list[float]]:
    """Return the runs per second of many clients, and the seconds of each run."""
    pending, taken = iter(range(count)), list[float]()

    async def work() -> None:
        for _ in pending:
            began = time.perf_counter()
            await run(server)
            taken.append(time.perf_counter() - began)

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return count / (time.perf_counter() - start), taken


async def measure_runs(ours: Server) -> list[Figure]:
    """Measure runs over HTTP; the servers take turns."""
    rates: dict[str, list[float]] = {"ours": []}
    taken: list[float] = []
    await time_runs(ours, run_ours, CLIENTS)
    async with AsyncExitStack() as stack:
        running: dict[str, Server] = {}
        for name, competitor in COMPETITORS.items():
            try:
                running[name] = await stack.enter_async_context(competitor.start(name))
            except (CompetitorUnavailable, AssertionError, OSError) as error:
                show_progress(f"without {name}: {error}")
        for number in range(ROUNDS):
            show_progress(f"server: runs, round {number + 1} of {ROUNDS}")
            rate, seconds = await time_runs(ours, run_ours, RUNS)
            rates["ours"].append(rate)
            taken += seconds
            for name, server in running.items():
                rate, _ = await time_runs(server, COMPETITORS[name].run, COMPETITOR_RUNS)
                rates.setdefault(name, []).append(rate)
    return [*compare_rates(rates), compare_percentiles(taken)]


def compare_rates(rates: dict[str, list[float]]) -> list[Figure]:
    figures, ours = [], statistics.median(rates["ours"])
    for name in COMPETITORS:
        label, target = f"runs over HTTP to their ends per second, {CLIENTS} clients, {name}", 5.0
        if name not in rates:
            figures.append(not_compared(label, f"{ours:.0f}", f">= {target:g}x"))
            continue
        theirs = statistics.median(rates[name])
        figures.append(at_least(label, f"{ours:.0f}", f"{theirs:.0f}", ours / theirs, get_target(target)))
    return figures


def compare_percentiles(taken: list[float]) -> Figure:
    median, p99 = statistics.median(taken), percentile(taken, 0.99)
    label = f"  ... p99 over p50 of ours, of {len(taken)}"
    return at_most(label, format_seconds(p99), format_seconds(median), p99 / median, 5.0)


def get_target(limit: float) -> float | None:
    """Return the target, which applies to the full sizes only."""
    return None if is_quick() else limit


# --- streams ---------------------------------------------------------------------------------------------


async def follow_words(
    server: Server, run_id: str, delays: list[float], opened: asyncio.Semaphore, *, limit: float = math.inf
) -> None:
    """Read the words of a run, at most ``limit`` of them, and note how much later each came than it was said."""
    reader, writer = await server.open("GET", f"/runs/{run_id}/events")
    await reader.readuntil(b"\n\n")  # the stream has begun
    opened.release()
    while len(delays) < limit and (line := await reader.readline()):
        if line.startswith(b"data: ") and b"output_text.delta" in line:
            delays.append(time.time() - float(json.loads(line[6:])["data"]["delta"]))
    writer.close()


async def pace_runs(server: Server) -> tuple[float, list[float]]:
    """Start runs at a steady rate; return how many ended per minute, and the seconds of each."""
    start, taken = time.perf_counter(), list[float]()

    async def run_at(moment: float) -> None:
        await asyncio.sleep(start + moment - time.perf_counter())
        began = time.perf_counter()
        await run_ours(server)
        taken.append(time.perf_counter() - began)

    await asyncio.gather(*(run_at(number / SIDE_RATE) for number in range(SIDE_RUNS)))
    return 60 * SIDE_RUNS / max(time.perf_counter() - start, ALONE_SECONDS), taken


async def measure_streams(server: Server) -> list[Figure]:
    """Open many streams of one run; other runs go on meanwhile."""
    show_progress(f"server: {STREAMS} streams")
    _, alone = await pace_runs(server)
    before = server.read_memory()
    run_id = await start_run(server, "speaker")
    delays, opened = list[float](), asyncio.Semaphore(0)
    readers = [asyncio.create_task(follow_words(server, run_id, delays, opened)) for _ in range(STREAMS)]
    for _ in range(STREAMS):
        await opened.acquire()
    memory = (server.read_memory() - before) / STREAMS
    delays.clear()  # of what was said before all had come
    rate, beside = await pace_runs(server)
    await asyncio.gather(*readers)
    return [
        figure_with_limit(f"words to {STREAMS} streams of one process, p95", percentile(delays, 0.95) * 1000, 250.0),
        figure_with_limit("  ... memory per stream", memory / 1000, 100.0, "KB"),
        at_least("  ... runs per minute beside them", f"{rate:.0f}", "200", rate / 200, 0.98),
        at_most(
            "  ... the median of such a run over one alone",
            format_seconds(statistics.median(beside)),
            format_seconds(statistics.median(alone)),
            statistics.median(beside) / statistics.median(alone),
            None,
        ),
    ]


# --- words through another process -----------------------------------------------------------------------


async def measure_words(store: str, name: str) -> Figure:
    """Read the words of a run from a server that does not execute it."""
    show_progress(f"server: words through another process, {name}")
    delays, opened = list[float](), asyncio.Semaphore(0)
    async with serve(store) as driving, serve(store) as reading:
        run_id = await start_run(driving, "speaker")
        await follow_words(reading, run_id, delays, opened, limit=WORDS_ELSEWHERE)
        executing = [await server.request("GET", "/overview") for server in (driving, reading)]
        assert [b'"executing":1' in answer for answer in executing] == [True, False], executing
    later = delays[len(delays) // 10 :]  # without those that were said before the reader came
    label = f"a word through a server of another process, {name}, p95 of {len(later)}"
    return figure_with_limit(label, percentile(later, 0.95) * 1000, 150.0)


# --- cuts ------------------------------------------------------------------------------------------------


class CutReader:
    """Reads runs over connections that it cuts after a few events, each time at another place."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.chance = server, random.Random(seed)
        self.cuts = self.received = self.wrong = 0

    async def read_runs(self, cuts: int) -> None:
        while self.cuts < cuts:
            run_id = await start_run(self.server, "instant")
            numbers, last, is_complete = list[int](), "0", False
            while not is_complete:
                new, last, is_complete = await self.read_some(run_id, last)
                numbers += new
            info = await self.server.request("GET", f"/runs/{run_id}")
            steps = re.search(rb'"steps":(\d+)', info)
            assert steps is not None, info
            self.wrong += numbers != list(range(1, int(steps[1]) + 1))
            self.received += len(numbers)

    async def read_some(self, run_id: str, last: str) -> tuple[list[int], str, bool]:
        """Read until the connection is cut; return the numbers of stored events, the last id, and whether it ended."""
        reader, writer = await self.server.open("GET", f"/runs/{run_id}/events", **{"last-event-id": last})
        numbers, budget, event_id, is_complete = list[int](), self.chance.randrange(1, 12), "", False
        while budget and (line := await reader.readline()):
            if line == b"\n":
                event_id = ""
            elif line.startswith(b"id: "):
                event_id = line[4:].strip().decode()
            elif line.startswith(b"event: end"):
                is_complete = True
            elif line.startswith(b"data: ") and event_id:
                last = event_id
                numbers += [int(event_id)] if event_id.isdigit() else []
                budget -= 1
        writer.transport.abort()
        self.cuts += 1
        return numbers, last, is_complete


async def measure_cuts(server: Server) -> list[Figure]:
    """Cut connections at random until each reader has everything; compare with the journals."""
    show_progress(f"server: {CUTS} cut connections")
    readers = [CutReader(server, seed) for seed in range(CUTTERS)]
    await asyncio.gather(*(reader.read_runs(-(-CUTS // CUTTERS)) for reader in readers))
    cuts, received, wrong = (sum(getattr(one, name) for one in readers) for name in ("cuts", "received", "wrong"))
    label = f"runs of which an event was lost or repeated over {cuts} cut connections, of {received} events"
    return [Figure(label, str(wrong), "0", None, "0", wrong == 0)]


async def measure() -> AsyncIterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        async with serve(f"sqlite:///{folder}/bench.db") as server:
            for part in (measure_runs, measure_streams, measure_cuts):
                for figure in await part(server):
                    yield figure
        yield await measure_words(f"sqlite:///{folder}/words.db", "SQLite")
    with open_postgres() as url:
        yield await measure_words(url, "PostgreSQL")


async def collect() -> list[Figure]:
    return [figure async for figure in measure()]


def figures() -> list[Figure]:
    return asyncio.run(collect())
