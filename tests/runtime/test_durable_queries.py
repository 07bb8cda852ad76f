"""Queries of runs and approvals return what was requested or raise a typed error."""

import pytest

from factories.runtime import Refunds, only_approval, wait_for
from standfast import InvalidInput, Runtime, open_store

BROKEN = "\ud800"


async def test_without_a_limit_a_listing_has_everything(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        for limit in (None, 10**30):
            assert [info.run_id for info in await wait_for(runtime.runs(limit=limit))] == [run.id]
            assert [asked.run_id for asked in await wait_for(runtime.approvals(limit=limit))] == [run.id]


async def test_what_cannot_be_looked_for_is_refused(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        steps = (await run.info()).steps
        for wanted in (
            *(look(limit=limit) for look in (runtime.runs, runtime.approvals) for limit in (-1, "x", 1.5, True)),
            *(look(session_id=BROKEN) for look in (runtime.runs, runtime.approvals)),
            *(look(status="asleep") for look in (runtime.runs, runtime.approvals)),
            *(look(BROKEN) for look in (runtime.run, runtime.approval, runtime.state, runtime.cancel, runtime.resume)),
            runtime.decide(BROKEN, "approve"),
            *(runtime.state(run.id, at=step) for step in (0, -1, steps + 1, "x")),
        ):
            with pytest.raises(InvalidInput):
                await wait_for(wanted)


async def test_the_outcome_has_the_usage_of_all_processes_that_executed_the_run(store_url):
    agents = [Refunds().agent()]
    async with open_store(store_url) as store:
        async with Runtime.open(store, agents=agents) as runtime:
            run = await runtime.start("support", "refund 7", session_id="s")
            first = (await wait_for(run.wait())).usage
        async with Runtime.open(store, agents=agents) as runtime:
            await runtime.decide((await only_approval(runtime)).id, "approve")
            run = await runtime.run(run.id)
            last = (await wait_for(run.wait())).usage
            answers = [event async for event in run.events() if event.type == "model.answered"]
    assert (first.requests, last.requests) == (1, 2)
    assert last.total_tokens == sum(event.data["usage"].get("total", 0) for event in answers)
