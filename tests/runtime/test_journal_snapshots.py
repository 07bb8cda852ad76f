"""A long run is resumed from snapshots, which give the same state as the whole journal."""

import asyncio
import json
import random
import zlib

import pytest

from factories.runtime import only_approval, wait_for
from standfast import Agent, FunctionModel, Runtime, ToolContext, function_tool, handoff, open_store
from standfast.history.store import Store

call = FunctionModel.call


class Reading:
    """A store whose reads are counted, and whose folds can be lost or damaged."""

    def __init__(self, backend, folds=None):
        self.backend, self.folds = backend, folds
        self.indexes_words, self.location = backend.indexes_words, backend.location
        self.rows = 0

    async def read_journal(self, run_id, *, after):
        rows = await self.backend.read_journal(run_id, after=after)
        self.rows += len(rows)
        return rows

    async def read_events(self, run_id, *, after, limit):
        rows = await self.backend.read_events(run_id, after=after, limit=limit)
        return rows if self.folds is None else self.folds(rows)

    def __getattr__(self, name):
        return getattr(self.backend, name)


def lost(rows):
    return []


def spoiled(place):
    def folds(rows):
        assert len(rows) > 2
        bad = rows[place].data
        broken = bad[: len(bad) // 2] + bytes([bad[len(bad) // 2] ^ 1]) + bad[len(bad) // 2 + 1 :]
        return [type(row)(row.seq, row.kind, broken, row.at) if row is rows[place] else row for row in rows]

    return folds


def misplaced(rows):
    """Snapshots by an owner that had not read an entry of another process."""
    snapshots = [json.loads(zlib.decompress(row.data)) for row in rows]
    for fold in snapshots:
        fold["since"], fold["upto"] = max(0, fold["since"] - 3), fold["upto"] - 3
    moved = [zlib.compress(json.dumps(fold).encode()) for fold in snapshots]
    return [type(row)(row.seq, row.kind, data, row.at) for row, data in zip(rows, moved, strict=True)]


@function_tool
async def look(number: int) -> str:
    return f"found {number}"


@function_tool(needs_approval=True)
async def pay(number: int) -> str:
    return f"paid {number}"


def steady(turns):
    """An agent that looks so often, then asks a person, and then looks again."""

    def answer(request):
        done = sum("output" in item for item in request.input)
        if done == turns:
            return call("pay", number=done)
        return call("look", number=done) if done < turns + 3 else "done"

    return Agent("steady", tools=[look, pay], model=FunctionModel(answer))


async def test_a_run_is_resumed_after_reading_only_the_new_part_of_its_journal(store_url):
    async with open_store(store_url) as store:
        reading = Reading(store.backend)
        async with Runtime.open(Store(reading), agents=[steady(150)]) as runtime:
            run = await runtime.start("steady", "go", session_id="s", max_turns=None)
            await wait_for(run.wait())
            assert (await run.info()).steps > 700
            reading.rows = 0
            await runtime.decide((await only_approval(runtime)).id, "approve")
            assert (await wait_for(run.wait())).final_output == "done"
            assert reading.rows < 300


@pytest.mark.parametrize("folds", [lost, misplaced, spoiled(-1), spoiled(0), spoiled(1)])
async def test_a_run_with_lost_or_damaged_or_wrong_snapshots_continues(tmp_path, folds):
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        async with Runtime.open(store, agents=[steady(150)]) as runtime:
            run = await runtime.start("steady", "go", session_id="s", max_turns=None)
            await wait_for(run.wait())
            before = (await runtime.state(run.id)).to_json()
        async with Runtime.open(Store(Reading(store.backend, folds)), agents=[steady(150)]) as runtime:
            assert (await runtime.state(run.id)).to_json() == before
            await runtime.decide((await only_approval(runtime)).id, "approve")
            assert (await wait_for((await runtime.run(run.id)).wait())).final_output == "done"
        items = await store.session("s").get_items()
        assert [item["output"] for item in items if "output" in item] == [
            *(f"found {n}" for n in range(150)),
            "paid 150",
            "found 151",
            "found 152",
        ]


def wanderer(chance, turns):
    """Agents that do whatever comes to them: several calls, nested agents, handoffs, questions, changes of context."""
    said = 0

    def wander(request):
        nonlocal said
        said += 1
        if said > turns:
            return "done"
        if request.handoffs and chance.random() < 0.15:
            return {**call(request.handoffs[0].tool_name), "arguments": "{}"}
        names = chance.choices(
            ["look", "fail", "count", "helper", "pay"], [6, 1, 1, 2, 0.4], k=chance.choice([1, 1, 2])
        )
        return [
            call(name, **{"input" if name == "helper" else "number": "7" if name == "helper" else 7}) for name in names
        ]

    def help_out(request):
        done = sum("output" in item for item in request.input)
        return call("pay" if chance.random() < 0.1 else "look", number=done) if done < 3 else "helped"

    @function_tool
    async def fail(number: int) -> str:
        raise ValueError("no")

    @function_tool
    async def count(ctx: ToolContext, number: int) -> str:
        ctx.context["counted"] = ctx.context.get("counted", 0) + 1
        return "counted"

    helper = Agent("helper", tools=[look, pay], model=FunctionModel(help_out))
    tools = [look, pay, fail, count, helper.as_tool("helper", "helps")]
    one = Agent("one", tools=tools, model=FunctionModel(wander))
    other = Agent("other", tools=tools, model=FunctionModel(wander), handoffs=[handoff(one)])
    one.handoffs = [handoff(other)]
    return one


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (0, 3, 4, 5))])
async def test_a_run_from_snapshots_equals_the_run_from_the_whole_journal_at_every_step(seed):
    chance = random.Random(seed)
    agent = wanderer(chance, turns=90)
    async with open_store("memory://") as store:
        async with Runtime.open(store, agents=[agent]) as runtime:
            session_id = chance.choice(["s", None])
            run = await runtime.start("one", "go", session_id=session_id, max_turns=None, context={"counted": 0})
            while (await wait_for(run.wait())).status == "waiting":
                for asked in await runtime.approvals(status="pending"):
                    await runtime.decide(asked.id, chance.choice(["approve", "reject"]))
            fork = await runtime.fork(run.id, at=chance.randrange(200, 300))
            while (await wait_for(fork.wait())).status == "waiting":
                for asked in await runtime.approvals(status="pending"):
                    await runtime.decide(asked.id, "approve")
            runs = [run.id, fork.id]
        bare = Store(Reading(store.backend, lost))
        async with Runtime.open(store, agents=[agent]) as folded, Runtime.open(bare, agents=[agent]) as plain:
            for run_id in runs:
                steps = (await (await plain.run(run_id)).info()).steps
                for step in [*range(1, steps, 17), steps]:
                    whole, short = await asyncio.gather(*(one.state(run_id, at=step) for one in (plain, folded)))
                    assert short.to_json() == whole.to_json()
