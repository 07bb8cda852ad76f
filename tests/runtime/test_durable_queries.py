"""Looking at runs and questions: everything that was asked for, or a typed error, and at once."""

import pytest

from factories.runtime import Refunds, wait_for
from standfast import InvalidInput, Runtime

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
