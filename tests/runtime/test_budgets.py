"""Budgets: what runs may spend, counted with the responses and enforced before the next request."""

import asyncio
from datetime import UTC, datetime

import pytest

from factories.runtime import completed, wait_for, wait_until
from standfast import Agent, FunctionModel, InvalidInput, NotFound, Runtime, Store, function_tool
from standfast.base.errors import WrongKey
from standfast.base.usage import InputTokensDetails, Usage
from standfast.models.interface import ModelResponse
from standfast.models.prices import compute_cost
from standfast.store.memory import MemoryBackend
from standfast.testing.faults import FakeClock

EVENING = datetime(2026, 3, 31, 23, 50, tzinfo=UTC).timestamp()


class CountingModel(FunctionModel):
    """A model whose responses have 100 tokens."""

    def __init__(self, function=lambda request: "done", *, model="gpt-5.1"):
        super().__init__(function)
        self.model, self.asked = model, 0

    async def respond(self, request):
        self.asked += 1
        response = await super().respond(request)
        usage = Usage(requests=1, input_tokens=60, output_tokens=40, total_tokens=100)
        return ModelResponse(output=response.output, usage=usage, response_id=None)


def agent(name="worker", **options):
    return Agent(name, model=CountingModel(**options))


async def run_once(runtime, name="worker", **options):
    return await wait_for((await runtime.start(name, "go", **options)).wait())


async def test_a_run_is_blocked_before_the_request_that_a_budget_has_nothing_left_for(shared_url):
    worker = agent()
    async with Runtime.open(shared_url, agents=[worker]) as runtime:
        await runtime.budgets.set("all", tokens=200)
        assert [(await run_once(runtime)).status for _ in range(3)] == ["completed", "completed", "waiting"]
        assert worker.model.asked == 2
        [blocked] = await runtime.runs(status="waiting")
        assert blocked.reason.code == "budget-used-up"
        assert "the budget 'all' of 200 tokens a month is used up" in blocked.reason.message
        budget = await runtime.budgets.get("all")
        assert (budget.spent.tokens, budget.is_used_up) == (200, True)


async def test_a_blocked_run_continues_by_itself_when_the_budget_is_raised(shared_url):
    async with Runtime.open(shared_url, agents=[agent()]) as runtime, Runtime.open(shared_url) as other:
        await runtime.budgets.set("all", tokens=0)
        assert (await run_once(runtime)).status == "waiting"
        [run] = await runtime.runs()
        await other.budgets.set("all", tokens=100)
        await wait_until(completed(await runtime.run(run.run_id)))


async def test_a_blocked_run_continues_by_itself_when_the_budget_is_deleted(shared_url):
    async with Runtime.open(shared_url, agents=[agent()]) as runtime:
        await runtime.budgets.set("all", tokens=0)
        assert (await run_once(runtime)).status == "waiting"
        [run] = await runtime.runs()
        await runtime.budgets.delete("all")
        await wait_until(completed(await runtime.run(run.run_id)))
        assert await runtime.budgets.list() == []


@pytest.mark.parametrize(("per", "until"), [("day", "2026-04-01 00:00"), ("month", "2026-04-01 00:00")])
async def test_a_budget_is_full_again_in_the_next_period(per, until):
    clock = FakeClock(EVENING)
    store = Store(MemoryBackend(clock=clock))
    async with Runtime.open(store, agents=[agent()]) as runtime:
        await runtime.budgets.set("all", tokens=100, per=per)
        await run_once(runtime)
        assert (await run_once(runtime)).status == "waiting"
        [blocked] = await runtime.runs(status="waiting")
        assert f"continues at {until} UTC" in blocked.reason.message
        clock.now += 3600
    async with Runtime.open(store, agents=[agent()]) as runtime:
        await wait_until(completed(await runtime.run(blocked.run_id)))
        assert (await runtime.budgets.get("all")).spent.tokens == 100
        assert len(await store.backend.list_documents("spending", limit=9, after="")) == 1


async def test_a_budget_is_for_its_owner_and_its_agent(shared_url):
    async with Runtime.open(shared_url, agents=[agent(), agent("other")]) as runtime:
        await runtime.budgets.set("ann", tokens=0, owner="ann")
        await runtime.budgets.set("other", tokens=0, agent="other")
        assert (await run_once(runtime, session_id="a", owner="ann")).status == "waiting"
        assert (await run_once(runtime, session_id="b", owner="bob")).status == "completed"
        assert (await run_once(runtime)).status == "completed"
        assert (await run_once(runtime, "other")).status == "waiting"


async def test_what_another_runtime_spends_counts(shared_url):
    async with (
        Runtime.open(shared_url, agents=[agent()]) as first,
        Runtime.open(shared_url, agents=[agent()]) as second,
    ):
        await first.budgets.set("all", tokens=100_000)
        runs = [await runtime.start("worker", "go") for runtime in (first, second) * 10]
        await wait_for(asyncio.gather(*(run.wait() for run in runs)))
        assert (await second.budgets.get("all")).spent.tokens == 2000


async def test_each_request_of_a_run_is_counted_and_those_of_nested_agents(shared_url):
    helper = Agent("helper", model=CountingModel())

    def call_helper(request):
        return "done" if "output" in request.input[-1] else FunctionModel.call("ask_helper", input="help")

    boss = Agent(
        "boss", model=CountingModel(call_helper), tools=[helper.as_tool(tool_name="ask_helper", tool_description="")]
    )
    async with Runtime.open(shared_url, agents=[boss]) as runtime:
        await runtime.budgets.set("all", tokens=200)
        outcome = await run_once(runtime, "boss")
        assert outcome.status == "waiting"
        assert (await runtime.budgets.get("all")).spent.tokens == 200
        await runtime.budgets.set("all", tokens=300)
        [run] = await runtime.runs()
        await wait_until(completed(await runtime.run(run.run_id)))
        assert (helper.model.asked, boss.model.asked) == (1, 2)


async def test_a_finished_call_is_not_repeated_when_a_blocked_run_continues(shared_url):
    paid = []

    @function_tool
    def pay() -> str:
        paid.append(1)
        return "paid"

    def rules(request):
        return "done" if "output" in request.input[-1] else FunctionModel.call("pay")

    async with Runtime.open(shared_url, agents=[Agent("payer", model=CountingModel(rules), tools=[pay])]) as runtime:
        await runtime.budgets.set("all", tokens=100)
        assert (await run_once(runtime, "payer")).status == "waiting"
        await runtime.budgets.set("all", tokens=1000)
        [run] = await runtime.runs()
        await wait_until(completed(await runtime.run(run.run_id)))
        assert paid == [1]


async def test_a_budget_in_money_counts_by_the_price_list(shared_url):
    usage = Usage(requests=1, input_tokens=60, output_tokens=40, total_tokens=100)
    price = compute_cost("gpt-5.1", usage)
    assert price == pytest.approx(60 * 1.25e-6 + 40 * 10e-6)
    async with Runtime.open(shared_url, agents=[agent(), agent("local", model="home-made")]) as runtime:
        await runtime.budgets.set("money", cost=price * 1.5)
        statuses = [(await run_once(runtime)).status for _ in range(3)]
        assert statuses == ["completed", "completed", "waiting"]
        await runtime.budgets.set("money", cost=1)
        await run_once(runtime, "local")
        spent = (await runtime.budgets.get("money")).spent
        assert spent.cost == pytest.approx(price * round(spent.cost / price))
        assert spent.unpriced_tokens == 100


def test_a_price_is_found_behind_prefixes_and_with_cached_tokens():
    usage = Usage(
        requests=1,
        input_tokens=1000,
        output_tokens=100,
        total_tokens=1100,
        input_tokens_details=InputTokensDetails(cached_tokens=500),
    )
    assert compute_cost("litellm/openai/gpt-5.1", usage) == pytest.approx(500 * 1.25e-6 + 500 * 0.125e-6 + 100 * 10e-6)
    assert compute_cost("no-such-model", usage) is None
    assert compute_cost(None, usage) is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokens": -1},
        {"tokens": True},
        {"tokens": 1.5},
        {"cost": float("nan")},
        {"cost": -1},
        {"tokens": 1, "per": "week"},
    ],
)
async def test_wrong_limits_are_refused(options):
    async with Runtime.open("memory://") as runtime:
        with pytest.raises(InvalidInput):
            await runtime.budgets.set("all", **options)
        assert await runtime.budgets.list() == []
        for name in ("get", "delete"):
            with pytest.raises(NotFound):
                await getattr(runtime.budgets, name)("all")


async def test_the_budgets_of_an_encrypted_runtime_are_read_with_its_key_only(shared_url):
    key, newer = "k" * 40, "n" * 40
    async with Runtime.open(shared_url, agents=[agent()], encryption_key=key) as runtime:
        await runtime.budgets.set("secret", tokens=0, agent="worker")
        assert (await run_once(runtime)).status == "waiting"
    async with Runtime.open(shared_url) as runtime:
        assert [(one.name, one.locked, one.agent) for one in await runtime.budgets.list()] == [("secret", True, None)]
        with pytest.raises(WrongKey):
            await runtime.budgets.get("secret")
    async with Runtime.open(shared_url, encryption_key=[newer, key]) as runtime:
        await runtime.rekey()
    async with Runtime.open(shared_url, encryption_key=newer) as runtime:
        assert (await runtime.budgets.get("secret")).agent == "worker"
