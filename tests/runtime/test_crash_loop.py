"""A run that crashes its process every time is retried with growing delays, and blocked in the end."""

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import crash_loop_process

import standfast
from factories.runtime import wait_for
from standfast import Agent, FunctionModel, Runtime, function_tool
from standfast.runs.core import steps
from standfast.runtime._engine.crash_loop import MAX_CRASHES, CrashCount
from standfast.runtime._engine.records import JournalEntry, LeaseLossReported, ResumeRequested, RunClaimed

SOURCE = Path(standfast.__file__).parent.parent


async def given_up(url: str, tries: Path, place: str) -> dict[str, Any]:
    """Return the run as the first process finds it that it does not crash."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, crash_loop_process.__file__, url, str(tries), place],
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_run_whose_tool_ends_its_process_waits_for_a_person(shared_url, tmp_path):
    tries = tmp_path / "tries"
    found = await given_up(shared_url, tries, "tool")
    assert found["status"] == "waiting"
    assert f"{MAX_CRASHES} times at this step: the agent 'shop' calling charge (c1)" in found["error"]
    times = [float(line) for line in tries.read_text().splitlines()]
    assert len(times) == MAX_CRASHES
    pauses = [later - earlier for earlier, later in pairwise(times)]
    # The lease has to run out each time; from the second time on there is a pause as well.
    assert all(pause >= crash_loop_process.LEASE * (1 + (2**n - 1) / 4) * 0.9 for n, pause in enumerate(pauses))
    async with Runtime.open(shared_url, agents=[crash_loop_process.shop()], lease=crash_loop_process.LEASE) as runtime:
        run = await runtime.run(found["id"])
        await asyncio.sleep(crash_loop_process.LEASE)
        assert ((await run.info()).status, (await run.info()).reason.code) == ("waiting", "process-ended")
        await runtime.resume(run.id)
        assert (await wait_for(run.wait())).final_output == "done"
        assert (await runtime.store.session("s").check()).ok


async def test_a_blocked_run_can_be_cancelled_and_frees_its_session(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    found = await given_up(url, tmp_path / "tries", "model")
    assert f"{MAX_CRASHES} times at this step: the agent 'shop' calling the model" in found["error"]
    async with Runtime.open(url, agents=[crash_loop_process.shop()], lease=crash_loop_process.LEASE) as runtime:
        following = await runtime.start("shop", "and now?", session_id="s")
        assert (await following.info()).status == "queued"
        await runtime.cancel(found["id"])
        assert (await wait_for(following.wait())).status == "completed"
        assert (await (await runtime.run(found["id"])).info()).status == "cancelled"


def test_an_owner_that_is_only_slow_has_not_ended(tmp_path):
    """Two processes take the run from each other, held up by a tool each time, until it is fast at last."""
    tries = [threading.Event() for _ in range(MAX_CRASHES + 2)]

    @function_tool(on_uncertain="retry")
    async def hold_up() -> str:
        now = next(place for place, begun in enumerate(tries) if not begun.is_set())
        tries[now].set()
        if now + 1 < len(tries):
            assert tries[now + 1].wait(30)  # the loop stands still until another has taken the run up
        return "done at last"

    def answer(request):
        return "done" if any("output" in item for item in request.input) else FunctionModel.call("hold_up")

    async def owner() -> str:
        agent = Agent("slow", tools=[hold_up], model=FunctionModel(answer))
        async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[agent], lease=0.2) as runtime:
            run = await runtime.start("slow", "go", session_id="s", key="once")
            outcome = await asyncio.wait_for(run.wait(), 300)
            assert outcome.final_output == "done", outcome.error
            return await anext(event.data["by"] async for event in run.events() if event.type == "run.lease_lost")

    with ThreadPoolExecutor(2) as pool:
        results = [found.result() for found in [pool.submit(asyncio.run, owner()) for _ in range(2)]]
    assert results[0] == results[1]


def test_only_recoveries_since_the_run_came_further_count():
    recovered = JournalEntry(RunClaimed("somebody", "recovered"))
    again = [recovered, JournalEntry(steps.Resumed()), JournalEntry(steps.CallsStarted(("c1",)))]
    lost = [*again, JournalEntry(LeaseLossReported("somebody"))]

    def counted(*entries):
        return reduce(CrashCount.advance, entries, CrashCount())

    assert counted(*again, *again, *again) == (3, 0)
    assert counted(*again, JournalEntry(steps.CallsInvoked(())), *again) == (1, 0)
    assert counted(*again, JournalEntry(ResumeRequested())) == (0, 0)
    assert counted(*again, JournalEntry(RunClaimed("somebody", "continued")), *again) == (2, 0)
    assert counted(*lost, *again, *lost) == (1, 2)
    assert not counted(*again * (MAX_CRASHES - 1), *lost * 2).limit_reached
    assert counted(*again * (MAX_CRASHES - 1), *lost * 3).limit_reached
    assert counted(*lost * 15).limit_reached
