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
ENOUGH = 4.0  # seconds, after which a measurement is not repeated


class Durable(Protocol):
    """A library that stores a run while it runs: a call of a tool in every turn but the last."""

    def opened(self, path: Path, turns: int) -> AbstractAsyncContextManager[Any]: ...
    async def run(self, opened: Any, turns: int) -> None: ...


class Standfast:
    def __init__(self, synchronous: str) -> None:
        self.synchronous = synchronous

    @asynccontextmanager
    async def opened(self, path: Path, turns: int) -> Any:
        from bench.competitors.runners import Runners
        from standfast import Runtime

        agent = Runners("standfast").agent(turns)
        async with Runtime.open(f"sqlite:///{path}?synchronous={self.synchronous}", agents=[agent]) as runtime:
            yield runtime

    async def run(self, opened: Any, turns: int) -> None:
        outcome = await (await opened.start("worker", "go", session_id="s", max_turns=turns + 1)).wait()
        assert outcome.final_output == "done", outcome


class LangGraph:
    @asynccontextmanager
    async def opened(self, path: Path, turns: int) -> Any:
        from bench.competitors import langgraph

        rival = langgraph.LangGraph()
        store = await rival.opened(path.parent, path.stem)
        yield rival, rival.agent(turns), store
        await rival.closed(store)

    async def run(self, opened: Any, turns: int) -> None:
        rival, agent, store = opened
        await rival.run(agent, turns, store)


async def taken(rival: Durable, paths: Iterator[Path], turns: int) -> tuple[float, int]:
    """Seconds of a run, and the bytes on the disk when it is closed, beyond those of an empty store."""
    path, empty = next(paths), next(paths)
    async with rival.opened(empty, turns):
        pass
    async with rival.opened(path, turns) as opened:
        gc.collect()
        begin = time.perf_counter()
        await rival.run(opened, turns)
        seconds = time.perf_counter() - begin
    return seconds, size(path) - size(empty)


async def repeated(rival: Durable, paths: Iterator[Path], turns: int) -> list[tuple[float, int]]:
    """Some rounds, as many as there is time for."""
    found: list[tuple[float, int]] = []
    while len(found) < 5 and sum(seconds for seconds, _ in found) < ENOUGH:
        found.append(await taken(rival, paths, turns))
    return found


def size(path: Path) -> int:
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))


async def measured(rival: Durable, folder: Path) -> dict[str, float]:
    paths = (folder / f"{number}.db" for number in range(1000))
    short, long = await repeated(rival, paths, TURNS), await repeated(rival, paths, LONG)
    return {
        "turn": min(seconds for seconds, _ in short) / TURNS,
        "long turn": min(seconds for seconds, _ in long) / LONG,
        "bytes": long[0][1] / LONG,
        "further bytes": (long[0][1] - short[0][1]) / (LONG - TURNS),
    }


if __name__ == "__main__":
    one: Durable = LangGraph() if sys.argv[1] == "langgraph" else Standfast(sys.argv[2])
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asyncio.run(measured(one, Path(place)))))
