"""A new run from an earlier step."""

import pytest

from factories.runtime import Refunds, only_approval, text_agent, wait_for
from standfast import InvalidInput, NotFound, Runtime, Store, open_store
from standfast.testing.sessions.fixtures import InterferingBackend


async def test_a_fork_continues_from_an_earlier_step_with_a_session_of_its_own(store_url):
    agent = text_agent("hello", "first answer", "second answer")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        await wait_for((await runtime.start("support", "hi", session_id="s")).wait())
        run = await runtime.start("support", "question", session_id="s")
        await wait_for(run.wait())
        [asked] = [event.seq async for event in run.events() if event.type == "input.taken"]
        fork = await runtime.fork(run.id, at=asked)
        outcome = await wait_for(fork.wait())
        info = await fork.info()
        assert (outcome.final_output, info.parent) == ("second answer", run.id)
        assert info.session_id != "s"
        mine = await runtime.store.session(info.session_id).get_items()
        theirs = await runtime.store.session("s").get_items()
        assert (len(mine), mine[:3]) == (4, theirs[:3])
        assert mine[3]["content"][0]["text"] == "second answer"
    assert [item.get("content") for item in agent.model.calls[2].input if item["role"] == "user"] == ["hi", "question"]


async def test_a_fork_of_a_waiting_run_requests_again_and_has_keys_of_its_own(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, session_id="s-2")
        [asked] = (await wait_for(fork.wait())).approvals
        assert (asked.run_id, asked.session_id) == (fork.id, "s-2")
        await runtime.decide(asked.id, "approve")
        assert (await wait_for(fork.wait())).final_output == "done"
        assert (await run.info()).status == "waiting"
        assert (await only_approval(runtime)).run_id == run.id
    assert [key for _, key in refunds.made] == [f"{fork.id}:c1"]


async def test_a_step_that_there_is_not_is_refused(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        run = await runtime.start("support", "hi")
        await wait_for(run.wait())
        for step in (0, 1000, True, "x"):
            with pytest.raises(InvalidInput):
                await runtime.fork(run.id, at=step)


async def test_a_fork_of_a_fork_continues_as_well(store_url):
    agent = text_agent("one", "two", "three")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, at=3)
        await wait_for(fork.wait())
        again = await runtime.fork(fork.id, at=1)
        assert (await wait_for(again.wait())).final_output == "three"
        assert (await runtime.state(again.id)).data.input == "hi"


async def test_a_fork_that_fails_leaves_no_session_behind(store_url):
    agent = text_agent("one", "two")
    async with open_store(store_url) as store, Runtime.open(store, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        raced = InterferingBackend(store.backend, after_method="read_journal", interfere=lambda: runtime.delete(run.id))
        async with Runtime.open(Store(raced), agents=[]) as other:
            with pytest.raises(NotFound):
                await other.fork(run.id, session_id="s-2")
        assert [info.session_id for info in await store.sessions()] == ["s"]
