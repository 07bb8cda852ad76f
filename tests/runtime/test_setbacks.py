"""A run that ends its process every time is not tried for ever, nor as fast as that goes."""

import asyncio
import json
import subprocess
import sys
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import doomed
from durable_kit import soon

import holdfast
from holdfast import Runtime
from holdfast.runs import steps
from holdfast.runtime.records import Called, JournalEntry, Owned
from holdfast.runtime.setbacks import MOST, counted

SOURCE = Path(holdfast.__file__).parent.parent


async def given_up(url: str, tries: Path, place: str) -> dict[str, Any]:
    """What the run says in the first process that it does not end."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, doomed.__file__, url, str(tries), place],
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_run_whose_tool_ends_its_process_waits_for_a_person(shared_url, tmp_path):
    tries = tmp_path / "tries"
    found = await given_up(shared_url, tries, "tool")
    assert found["status"] == "waiting"
    assert f"{MOST} times at this step: the agent 'shop' calling charge (c1)" in found["error"]
    times = [float(line) for line in tries.read_text().splitlines()]
    assert len(times) == MOST
    pauses = [later - earlier for earlier, later in pairwise(times)]
    # The lease has to run out each time; from the second time on there is a pause as well.
    assert all(pause >= doomed.LEASE * (1 + (2**n - 1) / 4) * 0.9 for n, pause in enumerate(pauses))
    async with Runtime.open(shared_url, agents=[doomed.shop()], lease=doomed.LEASE) as runtime:
        run = await runtime.run(found["id"])
        await asyncio.sleep(doomed.LEASE)
        assert ((await run.info()).status, (await run.info()).reason.code) == ("waiting", "process-ended")
        await runtime.resume(run.id)
        assert (await soon(run.wait())).final_output == "done"
        assert (await runtime.store.session("s").check()).ok


async def test_a_run_that_was_given_up_can_be_cancelled_and_frees_its_session(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    found = await given_up(url, tmp_path / "tries", "model")
    assert f"{MOST} times at this step: the agent 'shop' asking the model" in found["error"]
    async with Runtime.open(url, agents=[doomed.shop()], lease=doomed.LEASE) as runtime:
        following = await runtime.start("shop", "and now?", session_id="s")
        assert (await following.info()).status == "queued"
        await runtime.cancel(found["id"])
        assert (await soon(following.wait())).status == "completed"
        assert (await (await runtime.run(found["id"])).info()).status == "cancelled"


def test_only_recoveries_since_the_run_came_further_count():
    recovered = JournalEntry(Owned("somebody", "recovered"))
    again = [recovered, JournalEntry(steps.Resumed()), JournalEntry(steps.Started(("c1",)))]
    assert reduce(counted, [*again, *again, *again], 0) == 3
    assert reduce(counted, [*again, JournalEntry(steps.CallsMade(())), *again], 0) == 1
    assert reduce(counted, [*again, JournalEntry(Called())], 0) == 0
    assert reduce(counted, [*again, JournalEntry(Owned("somebody", "continued")), *again], 0) == 2
