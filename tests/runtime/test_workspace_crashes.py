"""A process is killed while a durable run computes: another one continues with the same variables and files."""

import asyncio
import contextlib
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

from notebook_job import make_program, notebook
from shop import LEASE

from factories.runtime import repeat, wait_for
from standfast import Runtime
from standfast.workers import PoolConfig, SessionPool

LENGTH = 5
NOTES = ("[the Python session was restored", "[the variables and files could not be saved")
NOT_RUN = ("[the Python session was lost", "An error occurred")


def normalize(text: str) -> str:
    """The output of a cell without notes about what came back, and without the number of the cell in a traceback."""
    lines = [line for line in text.split("\n") if not line.startswith(NOTES)]
    return re.sub(r"<cell \d+>", "<cell>", "\n".join(lines)) or "[no output]"


async def finish(
    url: str, program: list[str], *, key: str = "k", session_id: str = "s"
) -> tuple[list[str], list[dict[str, Any]]]:
    """Drive the run to its end in this process, with a pool of its own; return its outputs and what was restored."""
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool,
        Runtime.open(url, agents=[notebook(pool, program)], lease=LEASE) as runtime,
    ):
        run = await runtime.start("notebook", "go", session_id=session_id, key=key)
        outcome = await wait_for(run.wait())
        assert outcome.status == "completed", outcome
        outputs, restored = [], []
        async for event in run.events():
            outputs += [one["output"] for one in event.data.get("items", ()) if "output" in one]
            restored += [event.data] if event.type == "workspace.restored" else []
        return outputs, restored


def check_agreement(expected: list[str], outputs: list[str], restored: list[dict[str, Any]]) -> None:
    differs = any(one["differs"] or one["unkept"] or one["missing"] for one in restored)
    assert [*map(normalize, outputs)] == [*map(normalize, expected)] or differs, restored
    assert not differs, restored  # nothing in these programs is beyond recall


@repeat(4, 400)
async def test_a_killed_host_loses_no_variable_and_no_file(spawn, shared_url, count):
    choose = random.Random(7)
    for attempt in range(count):
        seed = choose.randrange(10**6)
        names = {"session_id": f"s{attempt}", "key": f"k{attempt}"}
        expected, _ = await finish(shared_url, make_program(seed, LENGTH), session_id=f"e{attempt}", key=f"e{attempt}")
        point = f"{choose.choice(['before', 'after'])}:{choose.randint(4, 30)}"
        async with spawn("compute", shared_url, seed, LENGTH, point, *names.values()) as child:
            assert await child.end() in (0, -9), point
        outputs, restored = await finish(shared_url, make_program(seed, LENGTH), **names)
        check_agreement(expected, outputs, restored)


@repeat(4, 400)
async def test_killed_processes_of_workers_lose_only_the_call_under_way(shared_url, count):
    """Kill the worker, its supervisor, the fork that writes a checkpoint, or the fork server: whichever it is."""
    choose = random.Random(8)
    for attempt in range(count):
        program = make_program(choose.randrange(10**6), LENGTH)
        killer = asyncio.create_task(kill_one_worker_process(choose))
        outputs, restored = await finish(shared_url, program, session_id=f"s{attempt}", key=f"s{attempt}")
        killer.cancel()
        await asyncio.wait([killer])
        assert not any(one["differs"] or one["unkept"] or one["missing"] for one in restored), restored
        done = [index for index, text in enumerate(outputs) if not any(mark in text for mark in NOT_RUN)]
        if 0 not in done:  # without the cell that seeds it, random is random
            continue
        alone = [program[index] for index in done]
        expected, _ = await finish(shared_url, alone, session_id=f"e{attempt}", key=f"e{attempt}")
        assert [normalize(outputs[index]) for index in done] == [*map(normalize, expected)], outputs


async def kill_one_worker_process(choose: random.Random) -> None:
    await asyncio.sleep(choose.random() * 0.4)
    while not (found := list_worker_processes(os.getpid())):  # noqa: ASYNC110 - it depends on other processes
        await asyncio.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(choose.choice(found), signal.SIGKILL)


def list_worker_processes(parent: int) -> list[int]:
    """The fork server below this process, and everything below it."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if words[1:4] == [b"-I", b"-X", b"utf8"]:
                    found += [child, *list_worker_processes(child)]
    return found
