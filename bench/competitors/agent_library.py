"""The benchmark of libraries that run agents. It uses the standard library only."""

import gc
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from bench.competitors.server import serve
from bench.quick import pick_size

SHORT, LONG = 10, pick_size(400, 100)
LENGTHS = (SHORT, 50, 100, 200, 400) if LONG == 400 else (SHORT, 30, LONG)
EXCHANGES, SNAPSHOT = pick_size(500, 100), pick_size(100, 30)


class AgentLibrary(Protocol):
    """A library with a model that answers at once and a tool that adds two numbers.

    ``agent`` calls the tool in every turn but the last. ``open_store`` returns a stored conversation, or ``None`` if
    the library has none; ``run`` runs all turns, and ``exchange`` is one question and one answer.
    """

    import_statement: str

    async def open_store(self, folder: Path, name: str) -> Any: ...
    async def close_store(self, store: Any) -> None: ...
    def agent(self, turns: int) -> Any: ...
    async def run(self, agent: Any, turns: int, store: Any) -> None: ...
    async def exchange(self, agent: Any, store: Any) -> None: ...
    async def snapshot(self) -> tuple[float, int] | None:
        """Return the seconds and bytes of saving and loading a run that waits after 100 turns."""


class LibraryBenchmark:
    """The operations of the benchmark; each result is one round, ``None`` if the library does not support it."""

    def __init__(self, library: AgentLibrary, folder: Path) -> None:
        self.library, self.folder = library, folder
        self.names = (f"s{number}" for number in itertools.count())

    async def warm(self) -> None:
        await self.library.run(self.library.agent(SHORT), SHORT, None)

    async def turn(self, turns: int, stored: bool) -> float | None:
        """Return the seconds of processor time per turn.

        The number of turns between two garbage collections is the same for all lengths of runs, so that the share of
        the collector does not differ.
        """
        library, runs = self.library, LONG // turns
        agents = [library.agent(turns) for _ in range(runs)]
        stores = [await library.open_store(self.folder, next(self.names)) if stored else None for _ in range(runs)]
        if stored and stores[0] is None:
            return None
        gc.collect()
        start = time.process_time()
        for agent, store in zip(agents, stores, strict=True):
            await library.run(agent, turns, store)
        seconds = (time.process_time() - start) / (turns * runs)
        for store in stores:
            if store is not None:
                await library.close_store(store)
        return seconds

    async def exchanges(self) -> tuple[float, float] | None:
        """Return the seconds of processor time of an exchange at the start of a conversation and at its end."""
        store = await self.library.open_store(self.folder, next(self.names))
        if store is None:
            return None
        seconds = []
        for _ in range(EXCHANGES):
            agent = self.library.agent(1)
            start = time.process_time()
            await self.library.exchange(agent, store)
            seconds.append(time.process_time() - start)
        await self.library.close_store(store)
        return min(seconds[5:25]), min(seconds[-20:])

    async def snapshot(self) -> tuple[float, int] | None:
        return await self.library.snapshot()

    async def import_time(self) -> tuple[float, float]:
        """Return the seconds of the import in a new interpreter, wall-clock and processor time."""
        show = "print(time.perf_counter() - clock, time.process_time() - work)"
        start = "import time; clock, work = time.perf_counter(), time.process_time()"
        code = f"{start}; {self.library.import_statement}; {show}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)  # noqa: ASYNC221
        clock, work = map(float, done.stdout.split())
        return clock, work


def report(library: AgentLibrary) -> None:
    """Run the operations that are requested on standard input."""
    with tempfile.TemporaryDirectory() as folder:
        benchmark = LibraryBenchmark(library, Path(folder))
        names = ("warm", "turn", "exchanges", "snapshot", "import_time")
        serve({name: getattr(benchmark, name) for name in names})
