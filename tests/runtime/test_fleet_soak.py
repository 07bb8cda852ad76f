"""A fleet of runtimes whose processes are killed all the time: nothing is lost, nothing is done twice."""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fleet_process
import pytest

import standfast
from standfast import Runtime

SOURCE = Path(standfast.__file__).parent.parent
RUNS, SESSIONS, PROCESSES = 30, 5, 3


def begin(url, effects):
    command = [sys.executable, fleet_process.__file__, url, str(effects), str(RUNS), str(SESSIONS)]
    return subprocess.Popen(command, env={"PYTHONPATH": str(SOURCE), "PATH": ""}, stderr=subprocess.DEVNULL)


def end(process):
    process.kill()
    process.wait()


@pytest.mark.soak
async def test_processes_that_are_killed_all_the_time_finish_every_run(shared_url, tmp_path):
    effects, dice = tmp_path / "effects", random.Random(11)
    effects.touch()
    async with Runtime.open(shared_url, lease=fleet_process.LEASE) as runtime:
        fleet = [begin(shared_url, effects) for _ in range(PROCESSES)]
        try:
            for beat in range(400):
                await asyncio.sleep(dice.uniform(0, 0.8))
                found = Counter(info.status for info in await runtime.runs(limit=RUNS + 1))
                if found == {"completed": RUNS}:
                    break
                if beat < 60:
                    unlucky = dice.randrange(PROCESSES)
                    await asyncio.to_thread(end, fleet[unlucky])
                    fleet[unlucky] = begin(shared_url, effects)
            assert found == {"completed": RUNS}
        finally:
            for process in fleet:
                await asyncio.to_thread(end, process)
        made = effects.read_text().splitlines()
        assert len(made) == len(set(made))
        for number in range(SESSIONS):
            session = runtime.store.session(f"s{number}")
            items = await session.get_items()
            assert (await session.check()).ok
            assert max(Counter(map(repr, items)).values()) == 1
            assert [item["content"] for item in items if item.get("role") == "user"] == [
                f"u{n}" for n in range(number, RUNS, SESSIONS)
            ]
