"""The events of a run: without gaps, from any point, from any process."""

import asyncio
import random

import pytest

from factories.runtime import Refunds, event_types, only_approval, repeat, reply, tool_calls, wait_for
from standfast import Agent, FunctionModel, InvalidInput, Runtime, Store, function_tool, open_store
from standfast.testing import ModelStep, ScriptedModel, assistant_message


async def seen(run, after=0):
    return [event async for event in run.events(after=after)]


async def test_events_are_replayed_without_gaps_and_end_when_the_run_waits(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        found = await wait_for(seen(run))
        stored = [event for event in found if not event.live]
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
        assert [event.type for event in stored[:4]] == ["run.queued", "run.started", "input.taken", "model.answered"]
        assert stored[-1].type == "run.waiting"
        await runtime.decide((await only_approval(runtime)).id, "approve")
        rest = [event for event in await wait_for(seen(run, after=stored[-1].seq)) if not event.live]
        assert rest[0].seq == stored[-1].seq + 1
        assert rest[-1].type == "run.completed"
        assert {event.run_id for event in found} == {run.id}


async def test_events_until_the_end_continue_after_a_decision_in_another_process(store_url):
    agents = [Refunds().agent()]
    async with (
        open_store(store_url) as store,
        Runtime.open(store, agents=agents) as here,
        Runtime.open(store, agents=agents) as elsewhere,
    ):
        run = await here.start("support", "refund 7", session_id="s")
        found = []

        async def follow():
            async for event in run.events(until="end"):
                found.append(event)
                if event.type == "run.waiting":
                    await elsewhere.decide((await only_approval(elsewhere)).id, "approve")

        await wait_for(follow())
        stored = [event for event in found if not event.live]
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
        assert "run.waiting" in [event.type for event in stored[:-1]]
        assert stored[-1].type == "run.completed"


async def test_events_until_the_end_of_a_run_that_waits_end_with_its_cancelling(store_url):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        async for event in run.events(until="end"):
            if event.type == "run.waiting":
                await run.cancel()
        assert event.type == "run.cancelled"
        with pytest.raises(InvalidInput, match="'pause'"):
            [event async for event in run.events(until="never")]


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


async def test_live_events_come_before_the_complete_response(store_url):
    async with Runtime.open(
        store_url, agents=[Agent("text_agent", model=FunctionModel(lambda request: "hello"))]
    ) as rt:
        for _ in range(20):
            seen = await wait_for(event_types(await rt.start("text_agent", "hi")))
            assert "model.delta" not in seen[seen.index("model.answered") :]


async def test_what_a_model_is_saying_is_live_only(store_url):
    @function_tool
    async def look() -> str:
        return "seen"

    agent = Agent("support", tools=[look], model=ScriptedModel([tool_calls(("look", {}, "c1")), reply("hello there")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        found = await wait_for(seen(run))
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
        stored = [event for event in found if not event.live]
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
        assert found[-1].type == "run.completed"
        assert (await (await other.run(run.id)).wait()).final_output == "late"


async def test_another_process_follows_the_run_while_it_continues(spawn, shared_url):
    gate = asyncio.Event()

    async def answer(call):
        await gate.wait()
        return [assistant_message("late")]

    agent = Agent("support", model=ScriptedModel([ModelStep.respond(answer)]))
    async with Runtime.open(shared_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi")
        async with spawn("follow", shared_url, run.id) as follower:
            found = []
            while (line := await follower.line()) is not None:
                found.append(line.split())
                if line.endswith("input.taken"):
                    assert (await run.info()).status == "running"
                    gate.set()
        stored = [int(seq) for seq, _ in found if seq != "None"]
        assert stored == list(range(1, (await run.info()).steps + 1))
        assert found[-1][1] == "run.completed"


async def test_leaving_early_disturbs_nothing_and_reading_on_misses_nothing(store_url):
    @function_tool
    async def add(a: int) -> str:
        await asyncio.sleep(0.001)
        return str(a)

    turns = [tool_calls(("add", {"a": n}, f"c{n}")) for n in range(20)]
    agent = Agent("support", tools=[add], model=ScriptedModel([*turns, reply("done")]))
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
        assert (await wait_for(run.wait())).final_output == "done"
        assert await event_types(run) == [event.type for event in found]


class Sluggish:
    """A backend whose reads take their time, and not always the same."""

    def __init__(self, backend):
        self.backend, self.indexes_words, self.dice = backend, backend.indexes_words, random.Random(3)
        self.location = backend.location

    async def commit(self, *ops):
        return await self.backend.commit(*ops)

    def __getattr__(self, name):
        read = getattr(self.backend, name)

        async def late(*args, **kwargs):
            found = await read(*args, **kwargs)
            await asyncio.sleep(self.dice.choice((0, 0, 0.001, 0.004)))
            return found

        return late


async def test_live_events_come_between_the_previous_response_and_their_own():
    @function_tool
    async def look() -> str:
        return "seen"

    turns = [[assistant_message(f"turn {n}"), *tool_calls(("look", {}, f"c{n}"))] for n in range(40)]
    agent = Agent("support", tools=[look], model=ScriptedModel([*turns, reply("turn 40")]))
    async with (
        open_store("memory://") as store,
        Runtime.open(Store(Sluggish(store.backend)), agents=[agent]) as runtime,
    ):
        run = await runtime.start("support", "hi", session_id="s", max_turns=50)
        found = await wait_for(seen(run))
    answers = [place for place, event in enumerate(found) if event.type == "model.answered"]
    assert len(answers) == 41
    begin, heard = 0, 0
    for number, place in enumerate(answers):
        said = [event for event in found[begin:place] if event.live]
        texts = {event.data["text"] for event in said if event.data["type"] == "response.output_text.done"}
        assert texts <= {f"turn {number}"}
        heard += bool(texts)
        begin = place
    assert not [event for event in found[begin:] if event.live]
    assert heard > 30


async def test_a_run_that_is_only_waited_for_does_not_stream_the_model(store_url):
    agent = Agent("support", model=ScriptedModel([reply("quietly")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi")
        assert (await wait_for(run.wait())).final_output == "quietly"
    assert [call.streamed for call in agent.model.calls] == [False]


@repeat(100, 1000)
@pytest.mark.parametrize("where", ["same runtime", "another runtime"])
async def test_many_disconnects_lose_nothing_and_repeat_nothing(shared_url, where, count):
    @function_tool
    async def add(a: int) -> str:
        while disconnects < 10 * a:  # noqa: ASYNC110 - the reader counts
            await asyncio.sleep(0.001)
        return str(a)

    disconnects = 0
    turns = [tool_calls(("add", {"a": n}, f"c{n}")) for n in range(1, count // 10 + 1)]
    agent = Agent("support", tools=[add], model=ScriptedModel([*turns, reply("done")]))
    async with Runtime.open(shared_url, agents=[agent], lease=5) as runtime, Runtime.open(shared_url, lease=5) as other:
        run = await runtime.start("support", "go", session_id="s", max_turns=200)
        reader = run if where == "same runtime" else await other.run(run.id)
        dice, last, found = random.Random(7), 0, []
        while disconnects < count:
            # Some leave in the middle of an event, some while they wait for one, some at once.
            try:
                async with asyncio.timeout(dice.choice((0, 0.0005, 0.003, 0.02))):
                    async for event in reader.events(after=last):
                        if not event.live:
                            assert event.seq == last + 1
                            last = event.seq
                            found.append(event.type)
                        if dice.random() < 0.3:
                            break
            except TimeoutError:
                pass
            disconnects += 1
        found += [event.type for event in await seen(reader, after=last) if not event.live]
        assert (await wait_for(run.wait())).final_output == "done"
        assert found == await event_types(run)
        assert found[-1] == "run.completed"
