"""A process is killed while a durable run computes: another one goes on with the same variables and files."""

import random
import re
from typing import Any

from notebook import make_program, notebook
from shop import LEASE

from factories.runtime import repeat, wait_for
from standfast import Runtime
from standfast.workers import PoolConfig, SessionPool

LENGTH = 5


def normalize(text: str) -> str:
    """The output of a cell without notes about what came back, and without the number of the cell in a traceback."""
    lines = [line for line in text.split("\n") if not line.startswith("[the Python session was restored")]
    return re.sub(r"<cell \d+>", "<cell>", "\n".join(lines)) or "[no output]"


async def finish(
    url: str, seed: int, *, key: str = "k", session_id: str = "s"
) -> tuple[list[str], list[dict[str, Any]]]:
    """Drive the run to its end in this process, with a pool of its own; return its outputs and what was restored."""
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool,
        Runtime.open(url, agents=[notebook(pool, make_program(seed, LENGTH))], lease=LEASE) as runtime,
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
        expected, _ = await finish(shared_url, seed, session_id=f"e{attempt}", key=f"e{attempt}")
        point = f"{choose.choice(['before', 'after'])}:{choose.randint(4, 30)}"
        async with spawn("compute", shared_url, seed, LENGTH, point, *names.values()) as child:
            assert await child.end() in (0, -9), point
        outputs, restored = await finish(shared_url, seed, **names)
        check_agreement(expected, outputs, restored)
