"""Kill hosts, workers, supervisors, fork servers and checkpointing forks at any moment: variables and files agree.

Each attempt is a random program in a durable run. Processes are killed while it runs, it is resumed by other processes
with other pools and directories, and in the end its outputs are those of an undisturbed run, or the events of the run
name what could not be kept. ``make soak`` goes on where it stopped the last time, until ``STANDFAST_SOAK_KILLS``
(10,000) processes were killed or ``STANDFAST_SOAK_MINUTES`` (60) have passed.
"""

import asyncio
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kill_programs import is_lost, make_program

from standfast import Runtime

NOTES = ("[the Python session was restored", "[the variables and files could not be saved")
PROGRAMS = 200
BATCH = 8  # most of the time each of them waits for a lease to expire
KINDS = ("worker", "worker", "supervisor", "server", "twin", "twin")


def normalize(text: str) -> str:
    """Return the output of a cell without notes, and without the number of the cell in a traceback."""
    lines = [line for line in text.split("\n") if not line.startswith(NOTES)]
    return re.sub(r"<cell \d+>", "<cell>", "\n".join(lines)) or "[no output]"


class Arena:
    """Runs programs in processes, kills these, and counts both."""

    def __init__(self, url: str, spawn: Any, folder: Path) -> None:
        self.url, self.spawn, self.folder = url, spawn, folder
        self.expected: dict[int, list[str]] = {}
        self.kills: Counter[str] = Counter()

    async def compute(self, seed: int, name: str, life: int, kills: list[str], point: str) -> str:
        """Run one process to its end or death; return the status of the run that it has printed."""
        folder, status = self.folder / f"{name}-{life}", ""
        async with self.spawn("compute_killed", self.url, seed, name, str(folder), kills, point) as child:
            while (line := await child.line(120)) is not None:
                word, _, what = line.partition(" ")
                self.kills.update([what] if word == "killed" else [])
                status = what.strip() if word == "outcome" else status
            assert child.status in (0, -9), (seed, name, life, kills, point)
            self.kills.update(["host"] if child.status == -9 else [])
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return status

    async def read(self, name: str) -> tuple[list[str], set[str]]:
        """Return the outputs of the calls that were made, and the names that could not be kept."""
        outputs: list[str] = []
        restored: list[dict[str, Any]] = []
        async with Runtime.open(self.url) as runtime:
            [info] = await runtime.runs(session_id=name)
            async for event in (await runtime.run(info.run_id)).events():
                outputs += [item["output"] for item in event.data.get("items", ()) if "output" in item]
                restored += [event.data] if event.type == "workspace.restored" else []
            for report in restored:
                assert not report["differs"] or report["unkept"], f"{name}: {report} {outputs}"
                assert not report["missing"], f"{name}: {report} {outputs}"
                assert not report["refused"], f"{name}: {report} {outputs}"
            await runtime.store.delete(name)
        unkept = {one for report in restored for one in report["unkept"]}
        return [normalize(output) for output in outputs if not is_lost(output)], unkept

    async def compute_expected(self, seed: int) -> list[str]:
        name = f"expected-{seed}"
        status = await self.compute(seed, name, 0, [], "")
        assert status == "completed", (seed, status)
        return (await self.read(name))[0]

    async def attempt(self, number: int) -> None:
        """Run one program through several lives and deaths, and compare."""
        choose, seed, name = random.Random(number), number % PROGRAMS, f"attempt-{number}"
        if seed not in self.expected:
            self.expected[seed] = await self.compute_expected(seed)
        expected = self.expected[seed]
        for life in range(choose.randint(2, 5)):
            kills = choose.choices(KINDS, k=choose.randint(1, 4))
            point = f"{choose.choice(['before', 'after'])}:{choose.randint(2, 40)}"
            await self.compute(seed, name, life, kills, point)
        status = await self.compute(seed, name, 9, [], "")
        assert status == "completed", (name, status)
        outputs, unkept = await self.read(name)
        program = make_program(seed)
        assert len(outputs) == len(expected) == len(program), (name, outputs, expected)
        for (depends, code), wanted, found in zip(program, expected, outputs, strict=True):
            assert found == wanted or depends in unkept, (name, seed, code, wanted, found, unkept, outputs, expected)

    async def attempt_all(self, numbers: Iterable[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(self.attempt(number))


@pytest.fixture
def arena(shared_url, spawn):
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    folder.chmod(0o755)
    yield Arena(shared_url, spawn, folder)
    shutil.rmtree(folder, ignore_errors=True)


async def test_killed_processes_change_nothing(arena):
    await arena.attempt_all((4, 5))
    assert arena.kills.total()


@pytest.mark.soak
async def test_thousands_of_killed_processes_change_nothing(arena, request):
    """The numbers of attempts and kills are kept in pytest's cache: the next run goes on from there."""
    cache, name = request.config.cache, f"standfast/kills/{arena.url.partition(':')[0]}"
    target = int(os.environ.get("STANDFAST_SOAK_KILLS", "10000")) // 2  # for each of two databases
    until = time.monotonic() + 60 * float(os.environ.get("STANDFAST_SOAK_MINUTES", "60")) / 2
    before = cache.get(name, {"attempts": 0, "kills": {}})
    if sum(before["kills"].values()) >= target:
        before = {"attempts": 0, "kills": {}}
    arena.kills.update(before["kills"])
    done = before["attempts"]
    while time.monotonic() < until and arena.kills.total() < target:
        await arena.attempt_all(range(done, done + BATCH))
        done += BATCH
        cache.set(name, {"attempts": done, "kills": dict(arena.kills)})
    print(f"{arena.url.partition(':')[0]}: {done} attempts, {arena.kills.total()} kills {dict(arena.kills)}")
