"""Durable turns: every step is in SQLite before the next. ``standfast NORMAL``, ``standfast FULL`` or ``langgraph``."""

import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

TURNS, LONG = 100, 200
ENOUGH_SECONDS = 4.0  # seconds, after which a measurement is not repeated


class DurableLibrary(Protocol):
    """A library that stores each step of a run: a tool call in every turn but the last."""

    def open_store(self, path: Path, turns: int) -> AbstractAsyncContextManager[Any]: ...
    async def run(self, store: Any, turns: int) -> None: ...


class Standfast:
    def __init__(self, synchronous: str) -> None:
        self.synchronous = synchronous

    @asynccontextmanager
    async def open_store(self, path: Path, turns: int) -> Any:
        from bench.competitors.runners import Runners
        from standfast import Runtime

        agent = Runners("standfast").agent(turns)
        async with Runtime.open(f"sqlite:///{path}?synchronous={self.synchronous}", agents=[agent]) as runtime:
            yield runtime

    async def run(self, store: Any, turns: int) -> None:
        outcome = await (await store.start("worker", "go", session_id="s", max_turns=turns + 1)).wait()
        assert outcome.final_output == "done", outcome


class LangGraph:
    @asynccontextmanager
    async def open_store(self, path: Path, turns: int) -> Any:
        from bench.competitors import langgraph

        library = langgraph.LangGraph()
        store = await library.open_store(path.parent, path.stem)
        yield library, library.agent(turns), store
        await library.close_store(store)

    async def run(self, store: Any, turns: int) -> None:
        library, agent, saver = store
        await library.run(agent, turns, saver)


async def measure_run(library: DurableLibrary, paths: Iterator[Path], turns: int) -> tuple[float, int]:
    """Return the seconds of a run and the size of its closed store, less the size of an empty store."""
    path, empty = next(paths), next(paths)
    async with library.open_store(empty, turns):
        pass
    async with library.open_store(path, turns) as store:
        gc.collect()
        start = time.perf_counter()
        await library.run(store, turns)
        seconds = time.perf_counter() - start
    return seconds, get_size(path) - get_size(empty)


async def measure_runs(library: DurableLibrary, paths: Iterator[Path], turns: int) -> list[tuple[float, int]]:
    """Return up to five runs, fewer if they take long."""
    results: list[tuple[float, int]] = []
    while len(results) < 5 and sum(seconds for seconds, _ in results) < ENOUGH_SECONDS:
        results.append(await measure_run(library, paths, turns))
    return results


def get_size(path: Path) -> int:
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))


async def measure(library: DurableLibrary, folder: Path) -> dict[str, float]:
    paths = (folder / f"{number}.db" for number in range(1000))
    short, long = await measure_runs(library, paths, TURNS), await measure_runs(library, paths, LONG)
    return {
        "turn": min(seconds for seconds, _ in short) / TURNS,
        "long turn": min(seconds for seconds, _ in long) / LONG,
        "bytes": long[0][1] / LONG,
        "further bytes": (long[0][1] - short[0][1]) / (LONG - TURNS),
    }


if __name__ == "__main__":
    measured_library: DurableLibrary = LangGraph() if sys.argv[1] == "langgraph" else Standfast(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(measured_library, Path(folder)))))
