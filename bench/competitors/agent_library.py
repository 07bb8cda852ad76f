"""One procedure for every library that runs agents. It needs nothing but the standard library."""

import gc
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from bench.competitors.server import serve
from bench.quick import pick

SHORT, LONG = 10, pick(400, 100)
LENGTHS = (SHORT, 50, 100, 200, 400) if LONG == 400 else (SHORT, 30, LONG)
EXCHANGES, SNAPSHOT = pick(500, 100), pick(100, 30)


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


class Measuring:
    """What a rival can be asked for; each answer is one round, and ``None`` where it has no such thing."""

    def __init__(self, rival: Rival, folder: Path) -> None:
        self.rival, self.folder = rival, folder
        self.names = (f"s{number}" for number in itertools.count())

    async def warm(self) -> None:
        await self.rival.run(self.rival.agent(SHORT), SHORT, None)

    async def turn(self, turns: int, stored: bool) -> float | None:
        """Seconds of processor time per turn.

        However long the runs are, there are as many turns between two collections of garbage: what differs is the
        cost of a turn, not the share of the collector.
        """
        rival, runs = self.rival, LONG // turns
        agents = [rival.agent(turns) for _ in range(runs)]
        stores = [await rival.opened(self.folder, next(self.names)) if stored else None for _ in range(runs)]
        if stored and stores[0] is None:
            return None
        gc.collect()
        begin = time.process_time()
        for agent, store in zip(agents, stores, strict=True):
            await rival.run(agent, turns, store)
        taken = (time.process_time() - begin) / (turns * runs)
        for store in stores:
            if store is not None:
                await rival.closed(store)
        return taken

    async def exchanges(self) -> tuple[float, float] | None:
        """Seconds of processor time of an exchange at the beginning of a conversation, and of the last."""
        store = await self.rival.opened(self.folder, next(self.names))
        if store is None:
            return None
        taken = []
        for _ in range(EXCHANGES):
            agent = self.rival.agent(1)
            begin = time.process_time()
            await self.rival.exchange(agent, store)
            taken.append(time.process_time() - begin)
        await self.rival.closed(store)
        return min(taken[5:25]), min(taken[-20:])

    async def snapshot(self) -> tuple[float, int] | None:
        return await self.rival.snapshot()

    async def imported(self) -> tuple[float, float]:
        """Seconds of the import in a new interpreter, by the clock and of processor time."""
        took = "print(time.perf_counter() - clock, time.process_time() - work)"
        code = f"import time; clock, work = time.perf_counter(), time.process_time(); {self.rival.imported}; {took}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)  # noqa: ASYNC221
        clock, work = map(float, done.stdout.split())
        return clock, work


def report(rival: Rival) -> None:
    """Measure what is asked for on standard input."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Measuring(rival, Path(folder))
        names = ("warm", "turn", "exchanges", "snapshot", "imported")
        serve({name: getattr(asked, name) for name in names})
