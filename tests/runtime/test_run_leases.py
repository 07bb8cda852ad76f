"""Who owns a run: leases are renewed, given back and lost, and clocks do not agree."""

import asyncio
import logging
import time

import pytest
from shop import LEASE, Ledger, agents, echo

from factories.runtime import reply, tool_calls, wait_for
from standfast import Agent, Runtime, function_tool
from standfast.testing import ScriptedModel


async def test_a_run_that_ends_is_not_logged_as_lost(shared_url, caplog):
    caplog.set_level(logging.WARNING, "standfast")
    async with Runtime.open(shared_url, agents=[echo()], lease=0.03) as runtime:
        for _ in range(3):
            runs = [await runtime.start("echo", "hi", session_id=f"s{n}") for n in range(6)]
            await wait_for(asyncio.gather(*(run.wait() for run in runs)))
    assert [record.message for record in caplog.records if record.name.startswith(("standfast", "asyncio"))] == []


@pytest.mark.parametrize("skew", [-3600, 3600])
async def test_a_clock_that_is_wrong_does_not_keep_a_run_from_being_recovered(
    spawn, postgres_tables_url, tmp_path, skew
):
    ledger = Ledger(tmp_path / "ledger")
    async with spawn("charge", postgres_tables_url, str(ledger.path), "plain", "tool:after:0") as child:
        assert await child.end() == -9
    known = agents(ledger, on_uncertain="retry")
    async with Runtime.open(postgres_tables_url, agents=known, lease=LEASE) as runtime:
        runtime._ctx.clock = lambda: time.time() + skew
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        assert (await wait_for(run.wait())).final_output == "done"


def working(seconds, made, *, how):
    """An agent with a tool that takes its time: it awaits, it blocks a thread, or it blocks the event loop."""

    @function_tool
    async def work() -> str:
        made.append("begun")
        if how == "awaits":
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - this is what is tested
        made.append("ended")
        return "worked"

    @function_tool(name_override="work")
    def in_a_thread() -> str:
        made.append("begun")
        time.sleep(seconds)
        made.append("ended")
        return "worked"

    script = ScriptedModel([tool_calls(("work", {}, "c1")), reply("done")])
    return Agent("support", tools=[in_a_thread if how == "thread" else work], model=script)


@pytest.mark.parametrize("skew", [0, 3600])
@pytest.mark.parametrize("how", ["awaits", "thread"])
async def test_a_tool_that_takes_longer_than_the_lease_keeps_its_run(shared_url, how, skew):
    if skew and shared_url.startswith("sqlite"):
        pytest.skip("processes that share a file share a clock")
    made = []
    async with (
        Runtime.open(shared_url, agents=[working(4.0, made, how=how)], lease=2) as owner,
        Runtime.open(shared_url, agents=[working(4.0, made, how=how)], lease=2) as other,
    ):
        other._ctx.clock = lambda: time.time() + skew
        run = await owner.start("support", "go", session_id="s")
        assert (await wait_for(run.wait())).final_output == "done"
        assert "run.recovered" not in [event.type async for event in run.events()]
    assert made == ["begun", "ended"]


async def test_a_tool_that_blocks_the_event_loop_beyond_the_lease_is_not_run_again(spawn, shared_url, tmp_path):
    ledger, passed = Ledger(tmp_path / "ledger"), tmp_path / "passed"
    async with spawn("block", shared_url, str(ledger.path), str(passed)) as blocked:
        assert await blocked.line() == "inside the tool"
        async with Runtime.open(shared_url, agents=agents(ledger), lease=LEASE) as runtime:
            run = await runtime.start("shop", "charge", session_id="s", key="order-7")
            [asked] = (await wait_for(run.wait())).approvals
            assert asked.kind == "uncertain"
            passed.touch()
            assert await blocked.line() == "passed on"
            assert (await (await runtime.run(run.id)).wait()).approvals == (asked,)
            await runtime.decide(asked.id, "done", output="charged 0")
            assert (await wait_for(run.wait())).final_output == "done"
            assert (await runtime.store.session("s").check()).ok
    assert ledger.lines() == [asked.idempotency_key]
