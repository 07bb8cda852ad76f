"""A process that dies, stalls, or returns with other code: no run is lost and no call is made twice."""

import asyncio

import pytest
from shop import LEASE, Ledger, agents

from factories.runtime import Refunds, completed, only_approval, reply, text_agent, tool_calls, wait_for, wait_until
from standfast import Agent, FunctionModel, Runtime, function_tool
from standfast.store.operations import AcquireLease, ReleaseLease
from standfast.testing import ScriptedModel


async def die_inside(spawn, url, ledger):
    """Let a process be killed inside the tool, after its effect."""
    async with spawn("charge", url, str(ledger.path), "plain", "tool:after:0") as child:
        assert await child.end() == -9


@pytest.mark.parametrize("decision", ["again", "reject", "done"])
async def test_a_tool_killed_while_running_is_not_run_again_without_a_decision(spawn, shared_url, tmp_path, decision):
    ledger = Ledger(tmp_path / "ledger")
    await die_inside(spawn, shared_url, ledger)
    async with Runtime.open(shared_url, agents=agents(ledger), lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        outcome = await wait_for(run.wait())
        [asked] = outcome.approvals
        assert (asked.kind, asked.tool, asked.arguments) == ("uncertain", "charge", '{"order":"0"}')
        assert ledger.lines() == [asked.idempotency_key]
        await runtime.decide(asked.id, decision, **({"output": "receipt 42"} if decision == "done" else {}))
        assert (await wait_for(run.wait())).final_output == "done"
        items = await runtime.store.session("s").get_items()
        assert (await runtime.store.session("s").check()).ok
    [output] = [item["output"] for item in items if "output" in item]
    made = ledger.lines()
    assert set(made) == {f"{run.id}:charge0"}
    assert (len(made), output) == {
        "again": (2, "charged 0"),
        "reject": (1, "It is not known whether the call had an effect. It was not made again."),
        "done": (1, "receipt 42"),
    }[decision]


@pytest.mark.parametrize(
    ("policy", "status", "effects"),
    [
        ({"idempotent": True}, "completed", 2),
        ({"on_uncertain": "retry"}, "completed", 2),
        ({"on_uncertain": "fail"}, "failed", 1),
    ],
)
async def test_an_uncertain_call_follows_the_policy_of_its_tool(spawn, tmp_path, policy, status, effects):
    url, ledger = f"sqlite:///{tmp_path / 'app.db'}", Ledger(tmp_path / "ledger")
    await die_inside(spawn, url, ledger)
    async with Runtime.open(url, agents=agents(ledger, **policy), lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        outcome = await wait_for(run.wait())
        assert outcome.status == status
    assert ledger.lines() == [f"{run.id}:charge0"] * effects


async def test_an_owner_that_lost_its_lease_writes_that_and_nothing_else(shared_url, caplog):
    caplog.set_level("INFO", logger="standfast.takeovers")
    begun, gate, ended = asyncio.Event(), asyncio.Event(), []

    @function_tool(on_uncertain="retry")
    async def slow() -> str:
        begun.set()
        try:
            await gate.wait()
        finally:
            ended.append(gate.is_set())
        return "slow"

    agent = Agent("support", tools=[slow], model=ScriptedModel([tool_calls(("slow", {}, "c1")), reply("done")]))
    async with Runtime.open(shared_url, agents=[agent], lease=0.6) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        await wait_for(begun.wait())
        before = (await run.info()).steps
        following = run.events(after=before - 1)
        await anext(following)  # a reader follows before it happens
        # What a stalled process finds when it continues: its leases have expired, and another owner has them.
        backend = runtime.store.backend
        for name in (f"run:{run.id}", "session:s"):
            held = await backend.get_lease(name)
            await backend.commit(
                ReleaseLease(name=name, token=held.token),
                AcquireLease(name=name, owner="somebody else", ttl=1.2),
            )
        assert "run.taken_over" in [event.type async for event in _until_passed(following)]
        assert not run.local
        assert ended == [False]
        gate.set()
        # Nobody renews the other lease, so the run is taken up again.
        assert (await wait_for(run.wait())).final_output == "done"
        written = [event.type async for event in run.events(after=before)]
        assert written[:2] == ["run.lease_lost", "run.recovered"]
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"run {run.id} of ")]
    assert "its lease expired, and another runtime executes it now" in logged[0]
    assert "taken over by runtime" in logged[1]


async def _until_passed(events):
    async for event in events:
        yield event
        if event.type == "run.taken_over":
            return


async def test_a_decision_in_another_runtime_wakes_the_run(shared_url):
    refunds = Refunds()
    async with (
        Runtime.open(shared_url, agents=[refunds.agent()], lease=0.8) as one,
        Runtime.open(shared_url, lease=0.8) as other,
    ):
        run = await one.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        await other.decide((await only_approval(other)).id, "approve", by="somebody far away")
        assert (await wait_for((await other.run(run.id)).wait())).final_output == "done"
    assert len(refunds.made) == 1


async def test_many_runtimes_that_resume_one_run_execute_it_once(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
    others = [Runtime.open(shared_url, agents=[refunds.agent(reply("done"))], lease=0.8) for _ in range(5)]
    async with others[0] as a, others[1] as b, others[2] as c, others[3] as d, others[4] as e:
        await a.decide(asked.id, "approve")
        handles = await asyncio.gather(*(one.resume(run.id) for one in (a, b, c, d, e)))
        outcomes = await wait_for(asyncio.gather(*(handle.wait() for handle in handles)))
        assert {outcome.final_output for outcome in outcomes} == {"done"}
    assert len(refunds.made) == 1


# --- deploys ------------------------------------------------------------------------------------------


async def paused(url, agent):
    async with Runtime.open(url, agents=[agent]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        [asked] = (await wait_for(run.wait())).approvals
        return run.id, asked.id


async def test_a_paused_run_continues_with_edited_instructions_and_new_tools(shared_url):
    refunds = Refunds()
    run_id, asked = await paused(shared_url, refunds.agent())
    changed = refunds.agent(reply("done with new words"))
    changed.instructions = "be kind"
    changed.tools.append(function_tool(lambda: "x", name_override="another"))
    async with Runtime.open(shared_url, agents=[changed]) as runtime:
        await runtime.decide(asked, "approve")
        assert (await wait_for((await runtime.run(run_id)).wait())).final_output == "done with new words"
    assert len(refunds.made) == 1


async def test_a_run_whose_tool_is_gone_waits_with_the_reason_and_can_continue_without_it(shared_url):
    refunds = Refunds()
    run_id, asked = await paused(shared_url, refunds.agent())
    bare = text_agent("without it")
    async with Runtime.open(shared_url, agents=[bare]) as runtime:
        run = await runtime.run(run_id)
        await runtime.decide(asked, "approve")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code) == ("waiting", "tool-missing")
        assert "refund" in outcome.error.message
        outcome = await wait_for((await runtime.resume(run_id)).wait())
        assert outcome.error.code == "tool-missing"
        outcome = await wait_for((await runtime.resume(run_id, accept_changes=True)).wait())
        assert outcome.final_output == "without it"
        assert (await runtime.store.session("s").check()).ok
    assert "no longer available" in bare.model.calls[0].input[-1]["output"]
    assert refunds.made == []


async def test_a_change_is_accepted_also_while_a_runtime_tries_the_run_by_itself(shared_url):
    run_id, asked = await paused(shared_url, Refunds().agent())
    async with Runtime.open(shared_url, agents=[]) as runtime:
        await runtime.decide(asked, "approve")
    looking, may_go_on = asyncio.Event(), asyncio.Event()

    async def enabled(context, agent):
        looking.set()
        await may_go_on.wait()
        return True

    bare = text_agent("without it")
    bare.tools.append(function_tool(lambda: "x", name_override="another", is_enabled=enabled))
    async with Runtime.open(shared_url, agents=[bare]) as runtime:
        await wait_for(looking.wait())
        run = await runtime.resume(run_id, accept_changes=True)
        may_go_on.set()
        assert (await wait_for(run.wait())).final_output == "without it"


async def test_a_run_whose_agent_was_renamed_waits_and_continues_under_the_new_name(shared_url):
    refunds = Refunds()
    run_id, asked = await paused(shared_url, refunds.agent())
    renamed = refunds.agent(reply("renamed"), name="help desk")
    async with Runtime.open(shared_url, agents=[renamed], lease=0.3) as runtime:
        run = await runtime.run(run_id)
        await runtime.decide(asked, "approve")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code) == ("waiting", "agent-unknown")
        assert (await wait_for((await runtime.resume(run_id, agent="help desk")).wait())).final_output == "renamed"
    assert len(refunds.made) == 1


async def test_a_run_that_no_longer_fits_can_be_ended(shared_url):
    run_id, asked = await paused(shared_url, Refunds().agent())
    async with Runtime.open(shared_url, agents=[text_agent("x")]) as runtime:
        await runtime.decide(asked, "approve")
        await wait_for((await runtime.run(run_id)).wait())
        await runtime.cancel(run_id)
        assert (await (await runtime.run(run_id)).info()).status == "cancelled"
        after = await runtime.start("support", "next", session_id="s")
        assert (await wait_for(after.wait())).status == "completed"


async def test_a_run_with_an_unknown_agent_continues_when_a_runtime_has_it(shared_url):
    refunds = Refunds()
    run_id, asked = await paused(shared_url, refunds.agent())
    async with Runtime.open(shared_url, lease=0.3) as runtime:
        await runtime.decide(asked, "approve")
        outcome = await wait_for((await runtime.run(run_id)).wait())
        assert (outcome.status, outcome.error.code) == ("waiting", "agent-unknown")
        async with Runtime.open(shared_url, agents=[refunds.agent(reply("at last"))], lease=0.3) as able:
            run = await able.run(run_id)
            await wait_until(completed(run))
            assert (await run.wait()).final_output == "at last"


class Unprintable(Exception):
    """Has no attributes but those of a dictionary: looking for its notes, as a traceback does, raises KeyError."""

    def __getattr__(self, name):
        raise KeyError(name)


async def test_an_exception_that_cannot_be_printed_fails_its_run_and_not_the_runtime(shared_url, caplog):
    def rules(request):
        if request.input[-1]["content"] == "fail":
            raise Unprintable("x")
        return "done"

    async with Runtime.open(shared_url, agents=[Agent("support", model=FunctionModel(rules))]) as runtime:
        failed = await wait_for((await runtime.start("support", "fail")).wait())
        assert (failed.status, failed.error.code) == ("failed", "error")
        assert (await wait_for((await runtime.start("support", "go")).wait())).final_output == "done"
    assert "(an error that cannot be printed)" in caplog.text
