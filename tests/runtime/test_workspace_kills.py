"""Kill hosts, workers, supervisors, fork servers and checkpointing forks at any moment: variables and files agree.

Each attempt is a random program in a durable run. Several of them share a process, which is killed while processes
below it are killed one after the other; others resume the runs, with other pools and directories. Then each run is
forked, or its session rewound, and continued in the same way. In the end the outputs of each are those of an
undisturbed run, or its events name what could not be kept. ``make soak`` continues where it stopped, until
``STANDFAST_SOAK_KILLS`` (10,000) processes were killed or ``STANDFAST_SOAK_MINUTES`` (60) have passed.
"""

import asyncio
import hashlib
import os
import random
import re
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from kill_programs import is_lost, make_program

from standfast import Runtime
from standfast.runtime.types import RunInfo
from standfast.workspaces.retention import sweep_blobs

NOTES = ("[the Python session was restored", "[the variables and files could not be saved")
PROGRAMS = 400
PROGRAMS_DIGEST = hashlib.sha256(repr([make_program(seed) for seed in range(PROGRAMS)]).encode()).hexdigest()
BATCH = 8
KINDS = ("worker", "worker", "worker", "supervisor", "supervisor", "server", "twin", "twin", "twin")


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

    async def compute(
        self,
        programs: dict[str, int],
        life: str,
        kills: Sequence[str] = (),
        point: str = "",
        origins: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Run one process to its end or death; return the names of the runs that have ended, which it has printed."""
        folder, ended = self.folder / life, list[str]()
        given = self.url, programs, str(folder), list(kills), point, dict(origins)
        async with self.spawn("compute_killed", *given) as child:
            while (line := await child.line(300)) is not None:
                word, _, what = line.partition(" ")
                self.kills.update([what] if word == "killed" else [])
                if word == "outcome":
                    name, status, *_ = what.split()
                    assert status == "completed", (life, line)
                    ended.append(name)
            assert child.status in (0, -9), (life, kills, point)
            self.kills.update(["host"] if child.status == -9 else [])
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return ended

    async def read(self, runtime: Runtime, name: str) -> tuple[list[str], set[str]]:
        """Return the outputs that a session has, and the names that could not be kept in its runs."""
        restored: list[dict[str, Any]] = []
        info: RunInfo
        for info in await runtime.runs(session_id=name):
            assert info.status == "completed", info
            events = (await runtime.run(info.run_id)).events()
            restored += [event.data async for event in events if event.type == "workspace.restored"]
        items = await runtime.store.session(name).get_items()
        outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
        for report in restored:
            assert not report["differs"] or report["unkept"], f"{name}: {report} {outputs}"
            assert not report["missing"], f"{name}: {report} {outputs}"
            assert not report["refused"], f"{name}: {report} {outputs}"
        unkept = {one for report in restored for one in report["unkept"]}
        return [normalize(output) for output in outputs if not is_lost(output)], unkept

    async def compute_expected(self, seeds: Iterable[int]) -> None:
        programs = {f"expected-{seed}": seed for seed in sorted(set(seeds)) if seed not in self.expected}
        if programs:
            await self.compute(programs, "expected")
            async with Runtime.open(self.url) as runtime:
                for name, seed in programs.items():
                    self.expected[seed], _ = await self.read(runtime, name)
            await self.delete(programs)

    async def delete(self, names: Iterable[str]) -> None:
        """Delete the sessions with their runs and workspaces: no content is left behind."""
        async with Runtime.open(self.url) as runtime:
            for name in names:
                await runtime.store.delete(name)
            await sweep_blobs(runtime.store.backend, before=time.time() + 60)
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as raw:
                assert raw.execute("SELECT COUNT(*) FROM standfast_blob_data").fetchone() == (0,)
                assert raw.execute("SELECT COUNT(*) FROM standfast_checkpoints").fetchone() == (0,)

    async def attempt(self, numbers: range) -> None:
        """Run programs through several lives and deaths of their process, fork or rewind them, and compare."""
        programs = {f"attempt-{number}": number % PROGRAMS for number in numbers}
        await self.compute_expected(programs.values())
        choose = random.Random(numbers[0])
        await self.live(programs, f"{numbers[0]}", choose)
        known = {name: unkept for name, (_, unkept) in (await self.check(programs, {})).items()}
        origins: dict[str, str] = {}
        async with Runtime.open(self.url) as runtime:
            for name in programs:
                origins[f"{name}-fork"] = name
                if choose.random() < 0.5:
                    origins[name] = origins.pop(f"{name}-fork")
                    session = runtime.store.session(name)
                    items = await session.get_items()
                    ends = [end for end, item in enumerate(items, 1) if item.get("type") == "function_call_output"]
                    await session.rewind(choose.choice(ends))
        branches = {name: programs[origin] for name, origin in origins.items()}
        await self.live(branches, f"{numbers[0]}-branches", choose, origins)
        await self.check(branches, {name: known[origin] for name, origin in origins.items()})
        await self.delete({**branches, **programs})  # a fork before its origin

    async def live(
        self, programs: dict[str, int], name: str, choose: random.Random, origins: Mapping[str, str] | None = None
    ) -> None:
        """Run programs to their end, in several processes one after the other."""
        rest = dict(programs)
        for life in range(choose.randint(3, 5)):
            kills = choose.choices(KINDS, k=choose.randint(10, 60))
            point = f"{choose.choice(['before', 'after'])}:{choose.randint(2, 100) * choose.choice([1, len(programs)])}"
            for ended in await self.compute(rest, f"{name}-{life}", kills, point, origins or {}):
                del rest[ended]
            if not rest:
                return
        await self.compute(rest, f"{name}-last", origins=origins or {})

    async def check(
        self, programs: dict[str, int], known: Mapping[str, set[str]]
    ) -> dict[str, tuple[list[str], set[str]]]:
        """Compare outputs; ``known`` are names that could not be kept before."""
        found = {}
        async with Runtime.open(self.url) as runtime:
            for name, seed in programs.items():
                outputs, unkept = found[name] = await self.read(runtime, name)
                self.compare(name, seed, outputs, unkept | known.get(name, set()))
        return found

    def compare(self, name: str, seed: int, outputs: list[str], unkept: set[str]) -> None:
        program, expected = make_program(seed), self.expected[seed]
        assert len(outputs) == len(expected) == len(program), (name, outputs, expected)
        for (depends, code), wanted, found in zip(program, expected, outputs, strict=True):
            assert found == wanted or depends in unkept, (name, seed, code, wanted, found, unkept, outputs, expected)


@pytest.fixture
def arena(shared_url, spawn):
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    folder.chmod(0o755)
    yield Arena(shared_url, spawn, folder)
    shutil.rmtree(folder, ignore_errors=True)


async def test_killed_processes_change_nothing(arena):
    await arena.attempt(range(4, 8))
    assert arena.kills.total()


@pytest.mark.soak
async def test_thousands_of_killed_processes_change_nothing(arena, request):
    """The numbers of attempts and kills are kept in pytest's cache: the next run continues from there.

    So are the outputs of undisturbed runs, as long as the programs are the same.
    """
    cache, name = request.config.cache, f"standfast/kills/{arena.url.partition(':')[0]}"
    expected: dict[str, list[str]] = cache.get(f"standfast/kills-expected/{PROGRAMS_DIGEST}", {})
    arena.expected = {int(seed): outputs for seed, outputs in expected.items()}
    target = int(os.environ.get("STANDFAST_SOAK_KILLS", "10000")) // 2  # for each of two databases
    until = time.monotonic() + 60 * float(os.environ.get("STANDFAST_SOAK_MINUTES", "60")) / 2
    before = cache.get(name, {"attempts": 0, "kills": {}})
    if sum(before["kills"].values()) >= target:
        before = {"attempts": 0, "kills": {}}
    arena.kills.update(before["kills"])
    done = before["attempts"]
    while time.monotonic() < until and arena.kills.total() < target:
        await arena.attempt(range(done, done + BATCH))
        done += BATCH
        cache.set(name, {"attempts": done, "kills": dict(arena.kills)})
        cache.set(f"standfast/kills-expected/{PROGRAMS_DIGEST}", arena.expected)
    print(f"{arena.url.partition(':')[0]}: {done} attempts, {arena.kills.total()} kills {dict(arena.kills)}")
