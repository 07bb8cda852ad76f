"""The owner of a session is the owner of its runs and approvals. It selects; it does not protect."""

import pytest

from factories.runtime import Refunds, wait_for
from standfast import InvalidInput, NotFound, Runtime


async def test_runs_and_approvals_are_listed_by_the_owner_of_their_session(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "hi", session_id="a", owner="ann")
        await wait_for(run.wait())
        other = await runtime.start("support", "hi", session_id="b", owner="bob")
        alone = await runtime.start("support", "hi")
        assert (await runtime.store.describe("a")).owner == "ann"

        async def list_ids(owner):
            runs = [info.run_id for info in await runtime.runs(owner=owner)]
            waiting = [info.run_id for info in await runtime.runs(owner=owner, status="waiting")]
            return runs, waiting, [approval.run_id for approval in await runtime.approvals(owner=owner)]

        assert await list_ids("ann") == ([run.id], [run.id], [run.id])
        assert (await list_ids("bob"))[0] == [other.id]
        assert (await list_ids("cleo")) == ([], [], [])
        assert (await list_ids(None))[0] == [run.id, other.id, alone.id]
        assert (await runtime.store.set_owner("a", "cleo")).owner == "cleo"
        assert await list_ids("ann") == ([], [], [])
        assert await list_ids("cleo") == ([run.id], [run.id], [run.id])


async def test_a_session_keeps_its_owner_until_that_is_changed(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        await runtime.store.session("s", owner="ann").add_items([{"role": "user", "content": "hi"}])
        with pytest.raises(InvalidInput, match="set_owner"):
            await runtime.start("support", "hi", session_id="s", owner="bob")
        with pytest.raises(InvalidInput, match="session_id"):
            await runtime.start("support", "hi", owner="bob")
        with pytest.raises(NotFound):
            await runtime.store.set_owner("missing", "bob")
        with pytest.raises(InvalidInput):
            await runtime.store.set_owner("s", None)
        assert await runtime.runs() == []
        await runtime.start("support", "hi", session_id="s", owner="ann")
        assert (await runtime.store.describe("s")).owner == "ann"
