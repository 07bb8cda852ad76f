"""The events of a run: without gaps, from any point, from any process."""

import asyncio
import random

from durable_kit import Refunds, calls, only_approval, says, soon, types

from holdfast import Agent, Runtime, function_tool
from holdfast.testing import ModelStep, ScriptedModel, assistant_message


async def seen(run, after=0):
    return [event async for event in run.events(after=after)]


async def test_events_are_replayed_without_gaps_and_end_when_the_run_waits(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        found = await soon(seen(run))
        stored = [event for event in found if not event.live]
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
        assert [event.type for event in stored[:4]] == ["run.queued", "run.started", "input.taken", "model.answered"]
        assert stored[-1].type == "run.waiting"
        await runtime.decide((await only_approval(runtime)).id, "approve")
        rest = [event for event in await soon(seen(run, after=stored[-1].seq)) if not event.live]
        assert rest[0].seq == stored[-1].seq + 1
        assert rest[-1].type == "run.completed"
        assert {event.run_id for event in found} == {run.id}


async def test_a_follower_sees_what_happens_while_it_happens(store_url):
    gate = asyncio.Event()

    async def answer(call):
        await gate.wait()
        return [assistant_message("late")]

    agent = Agent("support", model=ScriptedModel([ModelStep.respond(answer)]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi")
        found = []
        async for event in run.events():
            found.append(event.type)
            if event.type == "input.taken":
                gate.set()
        assert found[-1] == "run.completed"


async def test_what_a_model_is_saying_is_live_only(store_url):
    @function_tool
    async def look() -> str:
        return "seen"

    agent = Agent("support", tools=[look], model=ScriptedModel([calls(("look", {}, "c1")), says("hello there")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        found = await soon(seen(run))
        live = [event for event in found if event.live]
        assert {(event.seq, event.type) for event in live} == {(None, "model.delta")}
        assert any(event.data["type"] == "response.output_text.delta" for event in live)
        assert not [event for event in await seen(run) if event.live]


async def test_another_runtime_follows_the_run(shared_url):
    gate = asyncio.Event()

    async def answer(call):
        await gate.wait()
        return [assistant_message("late")]

    agent = Agent("support", model=ScriptedModel([ModelStep.respond(answer)]))
    async with Runtime.open(shared_url, agents=[agent]) as one, Runtime.open(shared_url) as other:
        run = await one.start("support", "hi")
        found = []
        async for event in (await other.run(run.id)).events():
            found.append(event)
            if event.type == "input.taken":
                gate.set()
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert found[-1].type == "run.completed"
        assert (await (await other.run(run.id)).wait()).final_output == "late"


async def test_leaving_early_disturbs_nothing_and_reading_on_misses_nothing(store_url):
    @function_tool
    async def add(a: int) -> str:
        await asyncio.sleep(0.001)
        return str(a)

    turns = [calls(("add", {"a": n}, f"c{n}")) for n in range(20)]
    agent = Agent("support", tools=[add], model=ScriptedModel([*turns, says("done")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "go", session_id="s", max_turns=30)
        dice, last, found = random.Random(7), 0, []
        while not found or found[-1].type != "run.completed":
            stop = dice.randint(1, 5)
            async for event in run.events(after=last):
                if event.live:
                    continue
                found.append(event)
                last = event.seq
                stop -= 1
                if not stop:
                    break
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert (await soon(run.wait())).final_output == "done"
        assert await types(run) == [event.type for event in found]
