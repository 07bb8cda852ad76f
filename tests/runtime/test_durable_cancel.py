"""Cancelling a run keeps its progress."""

import asyncio

import pytest

from factories.runtime import reply, tool_calls, wait_for
from standfast import Agent, FunctionModel, InvalidInput, RunEnded, Runtime, function_tool
from standfast.base.usage import Usage
from standfast.testing import ScriptedModel


class Work:
    """A quick tool and one that waits until it is released; both can be called in one turn."""

    def __init__(self, **options):
        self.quick_made, self.slow_begun, self.slow_ended = 0, asyncio.Event(), []
        self.gate = asyncio.Event()

        @function_tool
        async def quick() -> str:
            self.quick_made += 1
            return "quick"

        @function_tool(**options)
        async def slow() -> str:
            self.slow_begun.set()
            try:
                await self.gate.wait()
            finally:
                self.slow_ended.append(self.gate.is_set())
            return "slow"

        self.tools = [quick, slow]

    def agent(self, *steps):
        both = tool_calls(("quick", {}, "c1"), ("slow", {}, "c2"))
        model = ScriptedModel(
            steps or [both, reply("done"), reply("after")], default_usage=Usage(requests=1, total_tokens=9)
        )
        return Agent("support", tools=self.tools, model=model)


async def test_after_the_turn_means_that_the_turn_is_finished(store_url):
    work = Work()
    agent = work.agent()
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        await wait_for(work.slow_begun.wait())
        await runtime.cancel(run.id, mode="after_turn")
        work.gate.set()
        assert (await wait_for(run.wait())).status == "cancelled"
        assert len(agent.model.calls) == 1
        outputs = [item["output"] for item in await runtime.store.session("s").get_items() if "output" in item]
        assert sorted(outputs) == ["quick", "slow"]
        assert (await wait_for((await runtime.resume(run.id)).wait())).final_output == "done"
        assert work.quick_made == 1


async def test_immediate_stops_running_tools_and_keeps_what_was_done(store_url):
    work = Work(on_uncertain="retry")
    async with Runtime.open(store_url, agents=[work.agent()]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        await wait_for(work.slow_begun.wait())
        async for event in run.events():
            if event.type == "calls.made":
                break
        await runtime.cancel(run.id, mode="immediate")
        assert (await wait_for(run.wait())).status == "cancelled"
        assert work.slow_ended == [False]
        state = await runtime.state(run.id)
        assert [entry.item["output"] for entry in state.data.transcript if entry.kind == "output"] == ["quick"]
        assert state.context.usage.total_tokens == 9
        work.gate.set()
        assert (await wait_for((await runtime.resume(run.id)).wait())).final_output == "done"
        assert (work.quick_made, len(work.slow_ended)) == (1, 2)


async def test_the_wish_to_cancel_reaches_a_run_in_another_runtime(shared_url):
    work = Work()
    async with (
        Runtime.open(shared_url, agents=[work.agent()], lease=0.8) as one,
        Runtime.open(shared_url, agents=[], lease=0.8) as other,
    ):
        run = await one.start("support", "go", session_id="s")
        await wait_for(work.slow_begun.wait())
        await other.cancel(run.id, mode="immediate")
        assert (await wait_for((await other.run(run.id)).wait())).status == "cancelled"
        assert work.slow_ended == [False]


async def test_a_call_that_was_stopped_is_uncertain_when_the_run_continues(store_url):
    work = Work()
    async with Runtime.open(store_url, agents=[work.agent()]) as runtime:
        run = await runtime.start("support", "go")
        await wait_for(work.slow_begun.wait())
        await runtime.cancel(run.id, mode="immediate")
        await wait_for(run.wait())
        [asked] = (await wait_for((await runtime.resume(run.id)).wait())).approvals
        assert (asked.kind, asked.tool) == ("uncertain", "slow")
        await runtime.decide(asked.id, "done", output="it was slow")
        assert (await wait_for(run.wait())).final_output == "done"
        assert len(work.slow_ended) == 1


async def test_a_run_that_has_ended_cannot_be_cancelled(store_url):
    work = Work()
    async with Runtime.open(store_url, agents=[work.agent(reply("done"))]) as runtime:
        run = await runtime.start("support", "go")
        await wait_for(run.wait())
        with pytest.raises(RunEnded):
            await runtime.cancel(run.id)
        with pytest.raises(InvalidInput):
            await runtime.cancel(run.id, mode="softly")


async def test_closing_the_runtime_releases_the_run_and_the_next_one_continues(shared_url):
    work = Work()
    agent = work.agent()
    async with Runtime.open(shared_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        await wait_for(work.slow_begun.wait())
        asyncio.get_running_loop().call_later(0.1, work.gate.set)
    async with Runtime.open(shared_url) as runtime:
        info = await (await runtime.run(run.id)).info()
        assert (info.status, info.reason.code) == ("running", "suspended")
    async with Runtime.open(shared_url, agents=[agent]) as runtime:
        again = await runtime.run(run.id)
        assert (await wait_for(again.wait())).final_output == "done"
        assert (await runtime.store.session("s").check()).ok
    assert (work.quick_made, work.slow_ended) == (1, [True])


async def test_a_run_that_asks_a_person_after_it_was_to_be_cancelled_does_not_wait(store_url):
    begun, gate = asyncio.Event(), asyncio.Event()

    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    async def respond(request):
        begun.set()
        await gate.wait()
        return FunctionModel.call("pay")

    agent = Agent("support", tools=[pay], model=FunctionModel(respond))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        await wait_for(begun.wait())
        await runtime.cancel(run.id, mode="after_turn")
        gate.set()
        assert (await wait_for(run.wait())).status == "cancelled"
        assert await runtime.approvals(status="pending") == []
        resumed = await wait_for((await runtime.resume(run.id)).wait())
        assert resumed.status == "waiting"
        await runtime.cancel(run.id)
        assert (await wait_for(run.wait())).status == "cancelled"
