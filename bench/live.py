"""Live events: how late the words of a model reach a reader in another process, and what they cost without readers."""

import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure, at_most, figure_with_limit, format_seconds
from bench.postgres import open_postgres
from bench.progress import show_progress
from bench.quick import pick_size
from standfast import Agent, Runtime
from standfast.base.usage import Usage
from standfast.models.interface import ModelResponse, TResponseStreamEvent, wrap_attributes
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.stream_events import ResponseEventBuilder, make_text_part, usage_to_dict

WORDS, PACE = pick_size(1000, 100), 0.01
RUNS, ROUNDS, RUN_WORDS = pick_size(200, 20), pick_size(7, 2), 50
LIMIT_MS = 150.0


class Speaker(RequestModel):
    """Says words at a pace; each word is the time at which it is said."""

    def __init__(self, words: int, pace: float) -> None:
        self._words, self._pace = words, pace

    async def respond(self, request: ModelRequest) -> ModelResponse:
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
        output = [wrap_attributes({**message, "content": [make_text_part("word " * self._words)]})]
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        builder, said = ResponseEventBuilder(None, model="speaker"), list[str]()
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
        for event in builder.begin_response():
            yield wrap_attributes(event)
        for _ in range(self._words):
            said.append(f"{time.time()!r} ")
            delta = builder.make_event("response.output_text.delta", delta=said[-1], item_id="m", output_index=0)
            yield wrap_attributes(delta)
            if self._pace:
                await asyncio.sleep(self._pace)
        output = [{**message, "content": [make_text_part("".join(said))]}]
        yield wrap_attributes(builder.end_response(output, usage=usage_to_dict(Usage(requests=1))))


def make_speaker(words: int, pace: float) -> Agent[Any]:
    return Agent("speaker", model=Speaker(words, pace))


async def drive(url: str) -> None:
    """Be the process that executes the run: start it, and tell which it is."""
    async with Runtime.open(url, agents=[make_speaker(WORDS, PACE)], live=True) as runtime:
        run = await runtime.start("speaker", "go")
        print(run.id, flush=True)
        await run.wait()
        await asyncio.sleep(1)


async def measure_delays(url: str) -> list[float]:
    """Return the seconds by which each word came later to a reader in this process than it was said in another."""
    command = [sys.executable, "-m", "bench.live", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    run_id = (await process.stdout.readline()).decode().strip()
    delays = []
    async with Runtime.open(url) as runtime:
        async for event in (await runtime.run(run_id)).events():
            arrived = time.time()
            if event.live and event.data.get("type") == "response.output_text.delta":
                delays.append(arrived - float(event.data["delta"]))
    await process.wait()
    return delays[WORDS // 10 :]  # without those that were said before the reader came


def compute_p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.95) - 1]


async def measure_latency() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        found = {"SQLite": await measure_delays(f"sqlite:///{Path(folder) / 'live.db'}")}
    show_progress("live: words through PostgreSQL")
    with open_postgres() as url:
        found["PostgreSQL"] = await measure_delays(url)
    rows = []
    for name, delays in found.items():
        label = f"a word to a reader in another process, {name}, p95 of {len(delays)}"
        rows.append(figure_with_limit(label, compute_p95(delays) * 1000, LIMIT_MS))
        rows.append(figure_with_limit("  ... the median", statistics.median(delays) * 1000, LIMIT_MS))
    return rows


@asynccontextmanager
async def open_quiet_runtime(folder: str, *, live: bool) -> AsyncIterator[Runtime]:
    url = f"sqlite:///{Path(folder) / f'{live}.db'}"
    async with Runtime.open(url, agents=[make_speaker(RUN_WORDS, 0)], live=live) as runtime:
        yield runtime


async def time_runs(runtime: Runtime) -> float:
    """Return the processor seconds of a run that nobody reads."""
    start = time.process_time()
    for _ in range(RUNS):
        await (await runtime.start("speaker", "go")).wait()
    return (time.process_time() - start) / RUNS


async def measure_cost() -> list[Figure]:
    """Compare runs without readers, with every response streamed and without; they take turns."""
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        async with open_quiet_runtime(folder, live=False) as quiet, open_quiet_runtime(folder, live=True) as live:
            for turn in range(ROUNDS):
                pair = [(False, quiet), (True, live)]
                for is_live, runtime in pair if turn % 2 else reversed(pair):
                    times[is_live].append(await time_runs(runtime))
    less, more = min(times[False]), min(times[True])
    label = f"a run of {RUN_WORDS} words without readers, live=True over live=False"
    return [at_most(label, format_seconds(more), format_seconds(less), more / less, None)]


def figures() -> list[Figure]:
    rows = asyncio.run(measure_cost())
    show_progress("live: words through SQLite")
    return rows + asyncio.run(measure_latency())


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1]))
