"""One procedure for every library that runs agents. It needs nothing but the standard library."""

import asyncio
import gc
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

SHORT, LONG, EXCHANGES, SNAPSHOT = 10, 400, 500, 100
ENOUGH = 2.0  # seconds of one measurement, after which it is not repeated


class Rival(Protocol):
    """A library with a model that answers at once and a tool that adds two numbers.

    ``agent`` calls the tool in every turn but the last. ``opened`` is a stored conversation, or ``None`` where the
    library has none; ``run`` takes one turn after the other, and ``exchange`` is one question and one answer.
    """

    imported: str

    async def opened(self, folder: Path, name: str) -> Any: ...
    async def closed(self, store: Any) -> None: ...
    def agent(self, turns: int) -> Any: ...
    async def run(self, agent: Any, turns: int, store: Any) -> None: ...
    async def exchange(self, agent: Any, store: Any) -> None: ...
    async def snapshot(self) -> tuple[float, int] | None:
        """Seconds and bytes of saving and loading a run that waits after 100 turns."""


async def best(measure: Callable[[], Awaitable[float]], *, rounds: int) -> float:
    """The best of some rounds; slow ones are not repeated as often."""
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < rounds and (not found or time.perf_counter() - begun < ENOUGH):
        found.append(await measure())
    return min(found)


async def per_turn(rival: Rival, turns: int, folder: Path | None, names: Any) -> float:
    """Seconds per turn in processor time.

    However long the runs are, there are as many turns between two collections of garbage: what differs is the cost
    of a turn, not the share of the collector.
    """
    runs = LONG // turns
    agents = [rival.agent(turns) for _ in range(runs)]
    stores = [None if folder is None else await rival.opened(folder, next(names)) for _ in range(runs)]
    gc.collect()
    begin = time.process_time()
    for agent, store in zip(agents, stores, strict=True):
        await rival.run(agent, turns, store)
    taken = (time.process_time() - begin) / (turns * runs)
    for store in stores:
        if store is not None:
            await rival.closed(store)
    return taken


async def exchanges(rival: Rival, folder: Path, name: str) -> tuple[float, float]:
    """Seconds of an exchange at the beginning of a conversation, and of the 500th."""
    store = await rival.opened(folder, name)
    taken = []
    for _ in range(EXCHANGES):
        agent = rival.agent(1)
        begin = time.process_time()
        await rival.exchange(agent, store)
        taken.append(time.process_time() - begin)
    await rival.closed(store)
    return min(taken[5:25]), min(taken[-20:])


def importing(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


async def measured(rival: Rival, folder: Path) -> dict[str, Any]:
    names = (f"s{number}" for number in itertools.count())
    await rival.run(rival.agent(SHORT), SHORT, None)
    found: dict[str, Any] = {}
    probe = await rival.opened(folder, "probe")
    for turns in (SHORT, LONG):
        found[f"turn {turns}"] = await best(lambda turns=turns: per_turn(rival, turns, None, names), rounds=5)  # type: ignore[misc]
        if probe is not None:
            found[f"turn {turns} stored"] = await best(
                lambda turns=turns: per_turn(rival, turns, folder, names),  # type: ignore[misc]
                rounds=5,
            )
    if probe is not None:
        await rival.closed(probe)
        found["first exchange"], found["exchange"] = await exchanges(rival, folder, "long")
    snapshot = await rival.snapshot()
    if snapshot is not None:
        found["snapshot"], found["bytes"] = snapshot
    found["import"] = importing(rival.imported)
    return found


def report(rival: Rival) -> None:
    """Print what was measured as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measured(rival, Path(folder)))))
