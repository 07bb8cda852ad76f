"""Operations at the wrong moment are refused with a reason, or have their documented effect."""

import asyncio
import random
from contextlib import suppress

import pytest

from factories.runtime import Refunds, only_approval, repeat, reply, text_agent, tool_calls, wait_for
from standfast import Agent, ApprovalSettled, InvalidDecision, InvalidInput, NotFound, RunEnded, Runtime, function_tool
from standfast.testing import ModelStep, ScriptedModel, assert_replayable, assistant_message

ENDED = ("completed", "failed", "cancelled")


def chatty(turns, *, made=None):
    """An agent that calls a tool in each of some turns, and can be run many times."""
    made = [] if made is None else made

    @function_tool
    async def step(n: int) -> str:
        made.append(n)
        await asyncio.sleep(0.001)
        return f"step {n}"

    def answer(call):
        start = max(place for place, item in enumerate(call.input) if item.get("role") == "user")
        done = sum(item.get("type") == "function_call_output" for item in call.input[start:])
        if done >= turns:
            return [assistant_message(f"did {call.input[start]['content']}")]
        return tool_calls(("step", {"n": done}, f"{call.input[start]['content']}-{done}"))

    return Agent("support", tools=[step], model=ScriptedModel([ModelStep.respond(answer) for _ in range(3000)]))


async def sound(runtime, session_id="s"):
    session = runtime.store.session(session_id)
    items = await session.get_items()
    assert (await session.check()).ok
    assert_replayable(items)
    return items


@repeat(6, 25)
@pytest.mark.parametrize("mode", ["after_turn", "immediate"])
async def test_a_cancellation_at_any_moment_ends_the_run_once(shared_url, mode, count):
    dice = random.Random(5)
    async with Runtime.open(shared_url, agents=[chatty(3)]) as runtime, Runtime.open(shared_url) as other:
        for number in range(count):
            run = await runtime.start("support", f"m{number}", session_id="s")
            await asyncio.sleep(dice.uniform(0, 0.03))
            with suppress(RunEnded):
                await dice.choice((runtime, other)).cancel(run.id, mode=mode)
            outcome = await wait_for(run.wait())
            assert outcome.status in ("completed", "cancelled")
            types = [event.type async for event in run.events()]
            assert types.count("run.completed") + types.count("run.cancelled") == 1
            if outcome.status == "cancelled" and dice.random() < 0.5:
                resumed = await wait_for((await runtime.resume(run.id)).wait())
                if resumed.status == "waiting":  # it was stopped inside the tool
                    for asked in resumed.approvals:
                        await runtime.decide(asked.id, "done", output="it happened")
                    resumed = await wait_for(run.wait())
                assert resumed.final_output == f"did m{number}"
        items = await sound(runtime)
        assert len({item["call_id"] for item in items if item.get("type") == "function_call"}) == len(
            [item for item in items if item.get("type") == "function_call"]
        )


@repeat(8, 25)
@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_interrupting_at_any_moment_loses_no_run(shared_url, on_busy, count):
    dice = random.Random(6)
    async with (
        Runtime.open(shared_url, agents=[chatty(2)], lease=2) as one,
        Runtime.open(shared_url, agents=[chatty(2)], lease=2) as two,
    ):
        runs = []
        for number in range(count):
            runtime = dice.choice((one, two))
            runs.append(await runtime.start("support", f"m{number}", session_id="s", on_busy=on_busy))
            await asyncio.sleep(dice.uniform(0, 0.04))
        outcomes = await wait_for(asyncio.gather(*(run.wait() for run in runs)))
        assert {outcome.status for outcome in outcomes} <= {"completed", "cancelled"}
        assert outcomes[-1].final_output == f"did m{count - 1}"
        items = await sound(one)
        inputs = [item["content"] for item in items if item.get("role") == "user"]
        assert len(inputs) == len(set(inputs))
        done = {f"m{number}" for number, outcome in enumerate(outcomes) if outcome.status == "completed"}
        assert done <= set(inputs)
        if on_busy == "rollback":
            assert done == set(inputs)


@repeat(3, 6)
async def test_a_decision_at_the_expiry_of_its_approval_holds_or_is_refused(shared_url, count):
    for number in range(count):
        refunds = Refunds()
        async with Runtime.open(shared_url, agents=[refunds.agent()], lease=0.2, approval_ttl=0.15) as runtime:
            run = await runtime.start("support", "refund 7", session_id=f"s{number}")
            await wait_for(run.wait())
            [asked] = await runtime.approvals(run_id=run.id)  # on a busy machine it may have expired already
            await asyncio.sleep(0.1 + 0.12 / count * number)
            expected = "expired"
            with suppress(ApprovalSettled):
                await runtime.decide(asked.id, "approve", by="ann")
                expected = "approved"
            assert (await wait_for(run.wait())).status == "completed"
            assert (await runtime.approval(asked.id)).status == expected
            assert len(refunds.made) == (expected == "approved")


async def test_invalid_decisions_are_refused_and_change_nothing(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        for decision, options in (
            ("done", {"output": "it happened"}),
            ("perhaps", {}),
            ("reject", {"output": "x"}),
            ("reject", {"arguments": {"order": "8", "amount": 1}}),
            ("approve", {"arguments": {"order": "8", "amount": "many"}}),
            ("approve", {"arguments": {"order": "8"}}),
            ("approve", {"arguments": {"order": "8", "amount": 1, "tip": 2}}),
            ("approve", {"arguments": "no json"}),
            ("approve", {"arguments": ["8", 1]}),
            ("approve", {"arguments": {"order": "8", "amount": float("nan")}}),
            ("approve", {"arguments": {"order": object(), "amount": 1}}),
        ):
            with pytest.raises(InvalidDecision):
                await runtime.decide(asked.id, decision, **options)
        assert await runtime.approvals() == [asked]
        await runtime.decide(asked.id, "approve", arguments={"order": "8", "amount": 2})
        assert (await wait_for(run.wait())).status == "completed"
        with pytest.raises(ApprovalSettled):
            await runtime.decide(asked.id, "reject")
    assert [what for what, _ in refunds.made] == ["8:2"]


async def test_what_does_not_exist_is_not_found(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hi")]) as runtime:
        for wanted in (
            runtime.run("nobody"),
            runtime.state("nobody"),
            runtime.resume("nobody"),
            runtime.cancel("nobody"),
            runtime.fork("nobody"),
            runtime.approval("nobody"),
            runtime.decide("nobody", "approve"),
        ):
            with pytest.raises(NotFound):
                await wanted


async def test_an_approval_of_a_cancelled_run_cannot_be_decided(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
        await runtime.cancel(run.id)
        with pytest.raises(ApprovalSettled) as refused:
            await runtime.decide(asked.id, "approve")
        assert refused.value.status == "withdrawn"
        await runtime.resume(run.id)
        [again] = (await wait_for(run.wait())).approvals
        assert again.id != asked.id
        await runtime.decide(again.id, "approve")
        assert (await wait_for(run.wait())).final_output == "done"
        await sound(runtime)
    assert len(refunds.made) == 1


async def test_every_step_of_a_run_can_be_forked(store_url):
    made = []
    async with Runtime.open(store_url, agents=[chatty(3, made=made)]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        await wait_for(run.wait())
        steps = (await run.info()).steps
        for at in range(1, steps + 1):
            fork = await runtime.fork(run.id, at=at, session_id=f"fork{at}")
            outcome = await wait_for(fork.wait())
            for asked in outcome.approvals:
                assert asked.kind == "uncertain"
                await runtime.decide(asked.id, "done", output="it happened")
            outcome = await wait_for(fork.wait())
            assert outcome.final_output == "did go", at
            items = await sound(runtime, f"fork{at}")
            assert len(items) == len(await runtime.store.session("s").get_items()), at
        with pytest.raises(InvalidInput):
            await runtime.fork(run.id, at=steps + 1)


async def test_big_and_strange_texts_survive(store_url):
    strange = "zero\u0000 surrogate-free 🦉 \u202e right to left, é as e\u0301, " + "x" * 3_000_000

    @function_tool
    async def fetch(what: str) -> str:
        return strange + what

    agent = Agent(
        "support", tools=[fetch], model=ScriptedModel([tool_calls(("fetch", {"what": "ü\n"}, "c1")), reply("🦉")])
    )
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "größe \u0000 🦉", session_id="sitzung ü", context={"ключ": ["🦉", None]})
        assert (await wait_for(run.wait())).final_output == "🦉"
        items = await sound(runtime, "sitzung ü")
        assert items[0]["content"] == "größe \u0000 🦉"
        assert items[2]["output"] == strange + "ü\n"


async def test_a_context_that_cannot_be_saved_is_refused_before_anything_is_written(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hi")]) as runtime:
        for context in (object(), {"a": object()}, lambda: 1, {1, 2}, {"a": float("nan")}):
            with pytest.raises(Exception, match=r"(?i)context|json|serializ") as refused:
                await runtime.start("support", "hi", context=context)
            assert getattr(refused.value, "code", None), context
        assert await runtime.runs() == []


@repeat(4, 12)
async def test_closing_at_any_moment_leaves_a_run_that_the_next_runtime_finishes(shared_url, count):
    dice, made = random.Random(9), []
    for number in range(count):
        session = f"s{number}"
        async with Runtime.open(shared_url, agents=[chatty(3, made=made)], lease=0.5) as runtime:
            run = await runtime.start("support", f"m{number}", session_id=session)
            await asyncio.sleep(dice.uniform(0, 0.03))
        async with Runtime.open(shared_url, agents=[chatty(3, made=made)], lease=0.5) as runtime:
            outcome = await wait_for((await runtime.run(run.id)).wait())
            assert outcome.final_output == f"did m{number}"
            await sound(runtime, session)
    assert len(made) == 3 * count


@repeat(40, 200)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_many_runs_in_one_runtime(tmp_path, kind, count):
    sessions = count // 4
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[chatty(2)]) as runtime:
        runs = await asyncio.gather(
            *(runtime.start("support", f"m{n}", session_id=f"s{n % sessions}") for n in range(count))
        )
        outcomes = await wait_for(asyncio.gather(*(run.wait() for run in runs)))
        assert [outcome.final_output for outcome in outcomes] == [f"did m{n}" for n in range(count)]
        for n in range(sessions):
            assert len(await sound(runtime, f"s{n}")) == 4 * 6
