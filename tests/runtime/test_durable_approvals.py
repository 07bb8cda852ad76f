"""Approvals: what they show, every decision, and that each is decided once."""

import asyncio
import hashlib

import pytest

from factories.runtime import Refunds, completed, event_types, only_approval, reply, tool_calls, wait_for, wait_until
from standfast import (
    Agent,
    ApprovalSettled,
    InvalidDecision,
    NotFound,
    Runtime,
    UncertainCall,
    function_tool,
    open_store,
)
from standfast.history.store import Store
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import ScriptedModel
from standfast.testing.faults import FakeClock


async def test_an_approval_shows_the_exact_call(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()], approval_ttl=60) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        outcome = await wait_for(run.wait())
        [approval] = outcome.approvals
        assert outcome.status == "waiting"
        assert approval == await only_approval(runtime)
        assert (approval.kind, approval.status, approval.tool, approval.agent) == (
            "approval",
            "pending",
            "refund",
            "support",
        )
        assert (approval.run_id, approval.session_id, approval.call_id) == (run.id, "s", "c1")
        assert approval.digest == hashlib.sha256(approval.arguments.encode()).hexdigest()
        assert approval.expires_at == pytest.approx(approval.requested_at + 60)


async def test_an_approved_call_is_made_once_and_the_decision_is_on_record(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve", by="ann", message="fine")
        assert (await wait_for(run.wait())).final_output == "done"
        [settled] = await runtime.approvals(status="approved")
        assert (settled.decided_by, settled.message) == ("ann", "fine")
        assert settled.decided_at >= settled.requested_at
        [event] = [event async for event in run.events() if event.type == "approval.decided"]
        assert (event.data["by"], event.data["verdict"]) == ("ann", "approve")
    assert refunds.made == [("7:5", f"{run.id}:c1")]


@pytest.mark.parametrize(
    "wrong", [{"by": 42}, {"by": ["ann"]}, {"message": 5}, {"always": "no"}, {"always": 1}, {"by": b"ann"}], ids=str
)
async def test_a_decision_of_another_type_than_declared_is_refused_before_it_is_stored(store_url, wrong):
    """What is written in a journal must be readable: an id of a user is not always a text."""
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        with pytest.raises(InvalidDecision, match=next(iter(wrong))):
            await runtime.decide(asked.id, "approve", **wrong)
        await runtime.decide(asked.id, "approve", by="42")
        assert (await wait_for(run.wait())).status == "completed"


async def test_a_decision_with_half_a_character_is_stored_with_a_replacement(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        decided = await runtime.decide((await only_approval(runtime)).id, "reject", by="a\ud800", message="no \ud83d")
        assert (decided.decided_by, decided.message) == ("a\ufffd", "no \ufffd")
        assert (await wait_for(run.wait())).status == "completed"


async def test_edited_arguments_are_checked_and_used(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        for wrong in (
            {"order": "7"},
            {"order": "7", "amount": "much"},
            {"order": "7", "amount": 1, "x": 2},
            "nonsense",
        ):
            with pytest.raises(InvalidDecision):
                await runtime.decide(asked.id, "approve", arguments=wrong)
        await runtime.decide(asked.id, "approve", arguments={"order": "7", "amount": 3})
        assert (await wait_for(run.wait())).status == "completed"
    assert [made for made, _ in refunds.made] == ["7:3"]


async def test_the_model_receives_a_rejection(store_url):
    refunds = Refunds()
    agent = refunds.agent()
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        await runtime.decide((await only_approval(runtime)).id, "reject", message="not this one")
        assert (await wait_for(run.wait())).status == "completed"
    assert refunds.made == []
    assert agent.model.calls[1].input[-1]["output"] == "not this one"


async def test_a_second_decision_is_refused_with_the_first_one(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        answers = await asyncio.gather(
            *(runtime.decide(asked.id, "approve", by=f"person {number}") for number in range(5)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, ApprovalSettled)]
        assert len(refused) == 4
        assert {answer.status for answer in refused} == {"approved"}
        await wait_for(run.wait())
        with pytest.raises(ApprovalSettled):
            await runtime.decide(asked.id, "reject")
        with pytest.raises(NotFound):
            await runtime.decide("approval_unknown", "approve")


async def test_a_decision_after_the_run_has_ended_is_refused(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        await runtime.cancel(run.id)
        with pytest.raises(ApprovalSettled) as refused:
            await runtime.decide(asked.id, "approve")
        assert refused.value.status == "withdrawn"
        assert (await runtime.approval(asked.id)).status == "withdrawn"


async def test_done_is_refused_for_a_call_that_was_not_started(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        for wrong in (
            ("done", {"output": "x"}),
            ("perhaps", {}),
            ("reject", {"arguments": {}}),
            ("approve", {"output": 1}),
        ):
            with pytest.raises(InvalidDecision):
                await runtime.decide(asked.id, wrong[0], **wrong[1])


async def test_always_holds_for_the_tool_in_that_session_only(store_url):
    refunds = Refunds()
    one = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))
    agent = refunds.agent(one, reply("first"), one, reply("second"), one)
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        first = await runtime.start("support", "refund", session_id="s")
        await wait_for(first.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve", always=True)
        assert (await wait_for(first.wait())).final_output == "first"
        second = await runtime.start("support", "again", session_id="s")
        assert (await wait_for(second.wait())).final_output == "second"
        elsewhere = await runtime.start("support", "again", session_id="other")
        assert (await wait_for(elsewhere.wait())).status == "waiting"
        assert len(await runtime.approvals()) == 2
    assert len(refunds.made) == 2


async def test_always_ends_with_the_session(store_url):
    refunds = Refunds()
    one = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))
    async with Runtime.open(store_url, agents=[refunds.agent(one, reply("first"), one)]) as runtime:
        run = await runtime.start("support", "refund", session_id="s")
        await wait_for(run.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve", always=True)
        await wait_for(run.wait())
        await runtime.store.delete("s")
        run = await runtime.start("support", "again", session_id="s")
        assert (await wait_for(run.wait())).status == "waiting"
    assert len(refunds.made) == 1


async def test_standing_decisions_take_no_place_in_a_listing(store_url):
    refunds = Refunds()
    one = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))
    async with Runtime.open(store_url, agents=[refunds.agent(one, reply("ok"), one, reply("ok"))]) as runtime:
        for session_id in ("s", "t"):
            run = await runtime.start("support", "refund", session_id=session_id)
            await wait_for(run.wait())
            await runtime.decide((await only_approval(runtime)).id, "approve", always=True)
            await wait_for(run.wait())
        [first] = await runtime.approvals(limit=1)
        [second] = await runtime.approvals(limit=1, after=first.id)
        assert (first.session_id, second.session_id) == ("s", "t")
        assert await runtime.approvals(limit=1, after=second.id) == []
        assert await runtime.approvals(status="approved", limit=2) == [first, second]


async def test_several_approvals_are_decided_in_any_order(store_url):
    refunds = Refunds()
    three = tool_calls(*(("refund", {"order": str(number), "amount": 1}, f"c{number}") for number in range(3)))
    async with Runtime.open(store_url, agents=[refunds.agent(three, reply("all done"))]) as runtime:
        run = await runtime.start("support", "refund all", session_id="s")
        await wait_for(run.wait())
        asked = {approval.call_id: approval for approval in await runtime.approvals(status="pending")}
        for call_id in ("c2", "c0", "c1"):
            await runtime.decide(asked[call_id].id, "approve")
        assert (await wait_for(run.wait())).final_output == "all done"
        report = await runtime.store.session("s").check()
        assert report.ok, report
    assert sorted(made for made, _ in refunds.made) == ["0:1", "1:1", "2:1"]


async def test_an_expired_approval_resumes_the_run_with_a_rejection(store_url):
    refunds = Refunds()
    agent = refunds.agent()
    async with Runtime.open(store_url, agents=[agent], lease=0.4, approval_ttl=0.3) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_until(completed(run))
        [asked] = await runtime.approvals(run_id=run.id)
        assert asked.status == "expired"
        with pytest.raises(ApprovalSettled):
            await runtime.decide(asked.id, "approve")
        assert "approval.decided" in await event_types(run)
    assert refunds.made == []
    assert "in time" in agent.model.calls[1].input[-1]["output"]


async def test_an_approval_expires_by_the_clock_of_the_store(tmp_path):
    clock = FakeClock()
    backend = SqliteBackend(str(tmp_path / "app.db"), clock=clock)
    agents = [Refunds().agent()]
    async with Runtime.open(Store(backend), agents=agents, lease=1000, approval_ttl=600) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        [asked] = (await wait_for(run.wait())).approvals
        assert asked.expires_at == pytest.approx(clock.now + 600, abs=60)
        clock.advance(300)
        async with Runtime.open(Store(backend), lease=1000) as other:
            clock.advance(400)
            with pytest.raises(ApprovalSettled) as refused:
                await other.decide(asked.id, "approve")
        assert refused.value.status == "expired"
    await backend.close()


class Counting:
    """A store that counts the questions which are read from it."""

    def __init__(self, backend):
        self.backend, self.indexes_words, self.location = backend, backend.indexes_words, backend.location
        self.looks = self.questions = 0

    async def list_approvals(self, **where):
        return self.counted(await self.backend.list_approvals(**where))

    async def list_due_approvals(self, **where):
        self.looks += 1
        return self.counted(await self.backend.list_due_approvals(**where))

    def counted(self, found):
        self.questions += len(found)
        return found

    def __getattr__(self, name):
        return getattr(self.backend, name)


async def test_expiry_reads_only_the_approvals_that_are_due(store_url):
    async with open_store(store_url) as store:
        counting = Counting(store.backend)
        agent = Refunds().agent(*[tool_calls(("refund", {"order": "7", "amount": 5}, "c1")) for _ in range(3)])
        async with Runtime.open(Store(counting), agents=[agent], lease=0.1, approval_ttl=600) as runtime:
            for _ in range(3):
                await wait_for((await runtime.start("support", "refund 7")).wait())
            counting.looks = counting.questions = 0

            async def looked_twice():
                return counting.looks >= 2

            await wait_until(looked_twice)
            assert counting.questions == 0


async def test_a_nested_agent_asks_and_continues(store_url):
    refunds, counted = Refunds(), []

    @function_tool
    async def look(order: str) -> str:
        counted.append(order)
        return "seen"

    steps = [
        tool_calls(("look", {"order": "7"}, "n1")),
        tool_calls(("refund", {"order": "7", "amount": 5}, "n2")),
        reply("nested done"),
    ]
    clerk = Agent("clerk", tools=[look, refunds.tool], model=ScriptedModel(steps))
    outer = Agent(
        "support",
        tools=[clerk.as_tool("clerk", "does it")],
        model=ScriptedModel([tool_calls(("clerk", {"input": "refund 7"}, "c1")), reply("done")]),
    )
    async with Runtime.open(store_url, agents=[outer]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        [asked] = (await wait_for(run.wait())).approvals
        assert (asked.agent, asked.tool, asked.route) == ("clerk", "refund", ("c1",))
        await runtime.decide(asked.id, "approve")
        assert (await wait_for(run.wait())).final_output == "done"
    assert (counted, [made for made, _ in refunds.made]) == (["7"], ["7:5"])


async def test_a_decision_while_other_calls_are_still_made_is_not_lost(store_url):
    refunds, gate, begun = Refunds(), asyncio.Event(), asyncio.Event()

    @function_tool
    async def slow() -> str:
        begun.set()
        await gate.wait()
        return "slow"

    both = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"), ("slow", {}, "c2"))
    agent = Agent("support", tools=[refunds.tool, slow], model=ScriptedModel([both, reply("done")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "both", session_id="s")
        await wait_for(begun.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve")
        assert refunds.made == []
        gate.set()
        assert (await wait_for(run.wait())).final_output == "done"
        assert (await runtime.store.session("s").check()).ok
    assert len(refunds.made) == 1


async def test_concurrent_nested_approvals_are_decided_one_by_one(store_url):
    refunds = Refunds()

    def clerk(number):
        script = [tool_calls(("refund", {"order": str(number), "amount": 1}, f"n{number}")), reply(f"clerk {number}")]
        agent = Agent(f"clerk{number}", tools=[refunds.tool], model=ScriptedModel(script))
        return agent.as_tool(f"clerk{number}", "refunds")

    both = tool_calls(("clerk1", {"input": "go"}, "c1"), ("clerk2", {"input": "go"}, "c2"))
    agent = Agent("support", tools=[clerk(1), clerk(2)], model=ScriptedModel([both, reply("done")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "both", session_id="s")
        await wait_for(run.wait())
        asked = {approval.call_id: approval for approval in await runtime.approvals(status="pending")}
        await runtime.decide(asked["n2"].id, "approve")
        [left] = (await wait_for(run.wait())).approvals
        await runtime.decide(left.id, "reject", message="no")
        assert (await wait_for(run.wait())).final_output == "done"
        outputs = [item["output"] for item in await runtime.store.session("s").get_items() if "output" in item]
    assert sorted(outputs) == ["clerk 1", "clerk 2"]
    assert [made for made, _ in refunds.made] == ["2:1"]


async def test_always_decides_pending_approvals_too_and_holds_for_nested_agents(store_url):
    refunds = Refunds()
    two = tool_calls(*(("refund", {"order": str(number), "amount": 1}, f"n{number}") for number in range(2)))
    one = tool_calls(("refund", {"order": "3", "amount": 1}, "n3"))
    clerk = Agent("clerk", tools=[refunds.tool], model=ScriptedModel([two, reply("both"), one, reply("third")]))
    script = [
        tool_calls(("clerk", {"input": "go"}, "c1")),
        reply("first"),
        tool_calls(("clerk", {"input": "go"}, "c2")),
        reply("second"),
    ]
    agent = Agent("support", tools=[clerk.as_tool("clerk", "refunds")], model=ScriptedModel(script))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        asked = (await wait_for(run.wait())).approvals
        assert len(asked) == 2
        await runtime.decide(asked[0].id, "approve", by="ann", always=True)
        assert (await wait_for(run.wait())).final_output == "first"
        assert [(one.status, one.decided_by) for one in await runtime.approvals()] == [("approved", "ann")] * 2
        again = await runtime.start("support", "again", session_id="s")
        assert (await wait_for(again.wait())).final_output == "second"
    assert sorted(made for made, _ in refunds.made) == ["0:1", "1:1", "3:1"]


async def test_edited_arguments_hold_when_the_call_has_to_be_made_again(store_url):
    made, begun, gate = [], asyncio.Event(), asyncio.Event()

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        made.append(amount)
        begun.set()
        await gate.wait()
        return "paid"

    agent = Agent(
        "support", tools=[pay], model=ScriptedModel([tool_calls(("pay", {"amount": 500}, "c1")), reply("done")])
    )
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "pay")
        await wait_for(run.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve", arguments={"amount": 5})
        await wait_for(begun.wait())
        await runtime.cancel(run.id, mode="immediate")
        await wait_for(run.wait())
        gate.set()
        [asked] = (await wait_for((await runtime.resume(run.id)).wait())).approvals
        assert (asked.kind, asked.arguments) == ("uncertain", '{"amount": 5}')
        with pytest.raises(UncertainCall, match="'again'"):
            await runtime.decide(asked.id, "approve")
        assert made == [5]
        assert (await runtime.approval(asked.id)).status == "pending"
        await runtime.decide(asked.id, "again")
        assert (await wait_for(run.wait())).final_output == "done"
    assert made == [5, 5]
