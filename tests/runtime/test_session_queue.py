"""One run at a time holds a session; ``on_busy`` decides about the others."""

import asyncio

import pytest

from factories.runtime import Refunds, only_approval, repeat, reply, text_agent, tool_calls, wait_for
from standfast import Agent, RunEnded, Runtime, SessionBusy, function_tool
from standfast.history.store import Store
from standfast.runtime._engine.control import StartRequest
from standfast.runtime._engine.leases import make_session_lease_name
from standfast.store.memory import MemoryBackend
from standfast.store.operations import AcquireLease, SaveRun
from standfast.store.urls import open_backend
from standfast.testing import ModelStep, ScriptedModel, assistant_message, closing_backend


def echo(name="support"):
    """An agent that repeats its latest input once it is released."""
    model = ScriptedModel()

    async def answer(call):
        await asyncio.sleep(0)
        return [assistant_message(f"echo {call.input[-1]['content']}")]

    model.extend([ModelStep.respond(answer) for _ in range(200)])
    return Agent(name, model=model)


def slow(gate, name="support", then="finished", asked=None):
    """An agent whose first answer needs the gate to open; ``asked`` is set when its model is asked for it."""

    async def answer(call):
        if asked is not None:
            asked.set()
        await gate.wait()
        return [assistant_message(then)]

    return Agent(name, model=ScriptedModel([ModelStep.respond(answer), *(reply(f"answer {n}") for n in range(5))]))


@repeat(10, 50)
async def test_concurrent_starts_on_one_session_run_one_after_the_other(store_url, count):
    async with Runtime.open(store_url, agents=[echo()]) as runtime:
        runs = await asyncio.gather(*(runtime.start("support", f"m{n}", session_id="s") for n in range(count)))
        outcomes = await wait_for(asyncio.gather(*(run.wait() for run in runs)))
        assert {outcome.status for outcome in outcomes} == {"completed"}
        items = await runtime.store.session("s").get_items()
        order = [info.run_id for info in await runtime.runs(limit=100)]
        said = {run.id: f"m{number}" for number, run in enumerate(runs)}
    texts = [item["content"] if item["role"] == "user" else item["content"][0]["text"] for item in items]
    assert texts == [text for run_id in order for text in (said[run_id], f"echo {said[run_id]}")]


async def test_two_runtimes_share_the_queue_of_a_session(shared_url):
    async with (
        Runtime.open(shared_url, agents=[echo()], lease=1) as one,
        Runtime.open(shared_url, agents=[echo()], lease=1) as other,
    ):
        runs = await asyncio.gather(*((one, other)[n % 2].start("support", f"m{n}", session_id="s") for n in range(6)))
        outcomes = await wait_for(asyncio.gather(*(run.wait() for run in runs)))
        assert {outcome.status for outcome in outcomes} == {"completed"}
        items = await one.store.session("s").get_items()
    assert [item["role"] for item in items] == ["user", "assistant"] * 6


async def test_a_busy_session_can_be_refused(store_url):
    gate = asyncio.Event()
    async with Runtime.open(store_url, agents=[slow(gate)]) as runtime:
        first = await runtime.start("support", "one", session_id="s")
        with pytest.raises(SessionBusy) as refused:
            await runtime.start("support", "two", session_id="s", on_busy="reject")
        assert refused.value.run_id == first.id
        free = await runtime.start("support", "elsewhere", session_id="other", on_busy="reject")
        gate.set()
        await wait_for(first.wait())
        await wait_for(free.wait())
        again = await runtime.start("support", "three", session_id="s", on_busy="reject")
        assert (await wait_for(again.wait())).status == "completed"
        assert len(await runtime.runs()) == 3


class Reading(MemoryBackend):
    """Lets something happen after the first look for runs of a session."""

    def __init__(self):
        super().__init__()
        self.then = None

    async def list_runs(self, **wanted):
        found = await super().list_runs(**wanted)
        if self.then is not None and wanted["session_id"] is not None:
            then, self.then = self.then, None
            await then()
        return found


async def test_a_refusal_names_the_run_that_begins_in_the_same_moment():
    """As when another process claims the run between two reads of the store."""
    async with closing_backend(Reading()) as backend:
        first = StartRequest("support", "one", "s", None, None, None, "enqueue")
        await backend.commit(
            *first.build_ops("first"), AcquireLease(name=make_session_lease_name("s"), owner="elsewhere", ttl=30)
        )

        async def begins():
            record = await backend.get_run("first")
            await backend.commit(
                SaveRun(run_id="first", expected=record.revision, status="running", data=record.data, session_id="s")
            )

        async with Runtime.open(Store(backend), agents=[echo()]) as runtime:
            backend.then = begins
            with pytest.raises(SessionBusy) as refused:
                await runtime.start("support", "two", session_id="s", on_busy="reject")
            assert refused.value.run_id == "first"


async def test_of_many_that_refuse_to_wait_one_begins(store_url):
    gate = asyncio.Event()
    async with Runtime.open(store_url, agents=[slow(gate)]) as runtime:
        found = await asyncio.gather(
            *(runtime.start("support", "hi", session_id="s", on_busy="reject") for _ in range(8)),
            return_exceptions=True,
        )
        assert sum(isinstance(one, SessionBusy) for one in found) == 7
        gate.set()
        [run] = [one for one in found if not isinstance(one, Exception)]
        assert (await wait_for(run.wait())).status == "completed"


async def test_a_run_that_waits_for_a_person_keeps_its_session(store_url):
    refunds = Refunds()
    agent = refunds.agent(tool_calls(("refund", {"order": "7", "amount": 5}, "c1")), reply("first"), reply("second"))
    async with Runtime.open(store_url, agents=[agent], lease=0.4) as runtime:
        first = await runtime.start("support", "one", session_id="s")
        await wait_for(first.wait())
        second = await runtime.start("support", "two", session_id="s")
        await asyncio.sleep(0.5)
        assert (await second.info()).status == "queued"
        await runtime.decide((await only_approval(runtime)).id, "approve")
        assert (await wait_for(first.wait())).final_output == "first"
        assert (await wait_for(second.wait())).final_output == "second"
        assert (await runtime.store.session("s").check()).ok


async def test_interrupting_cancels_the_other_run_and_keeps_what_it_did(store_url):
    gate, asked = asyncio.Event(), asyncio.Event()
    async with Runtime.open(store_url, agents=[slow(gate, asked=asked)]) as runtime:
        first = await runtime.start("support", "one", session_id="s")
        await wait_for(asked.wait())  # the second answer needs no gate
        second = await runtime.start("support", "two", session_id="s", on_busy="interrupt")
        assert (await wait_for(second.wait())).final_output == "answer 0"
        assert (await first.wait()).status == "cancelled"
        items = await runtime.store.session("s").get_items()
        assert [item["content"] for item in items if item["role"] == "user"] == ["one", "two"]


async def test_rolling_back_takes_the_other_run_out_of_the_session(store_url):
    gate, asked = asyncio.Event(), asyncio.Event()
    async with Runtime.open(
        store_url, agents=[slow(gate, asked=asked), text_agent("hello", name="greeter")]
    ) as runtime:
        await wait_for((await runtime.start("greeter", "hi", session_id="s")).wait())
        first = await runtime.start("support", "one", session_id="s")
        await wait_for(asked.wait())  # the second answer needs no gate
        second = await runtime.start("support", "two", session_id="s", on_busy="rollback")
        assert (await wait_for(second.wait())).status == "completed"
        items = await runtime.store.session("s").get_items()
        assert [item["content"] for item in items if item["role"] == "user"] == ["hi", "two"]
        with pytest.raises(RunEnded):
            await runtime.resume(first.id)


async def test_a_queued_run_can_be_cancelled(store_url):
    gate = asyncio.Event()
    async with Runtime.open(store_url, agents=[slow(gate)]) as runtime:
        first = await runtime.start("support", "one", session_id="s")
        second = await runtime.start("support", "two", session_id="s")
        await runtime.cancel(second.id)
        assert (await wait_for(second.wait())).status == "cancelled"
        gate.set()
        assert (await wait_for(first.wait())).status == "completed"


async def test_calls_of_one_turn_are_made_at_the_same_time(store_url):
    begun, everybody = [], asyncio.Event()

    @function_tool
    async def meet(name: str) -> str:
        begun.append(name)
        if len(begun) == 3:
            everybody.set()
        await everybody.wait()
        return f"met {name}"

    three = tool_calls(*(("meet", {"name": str(n)}, f"c{n}") for n in range(3)))
    agent = Agent("support", tools=[meet], model=ScriptedModel([three, reply("done")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "go", session_id="s")
        assert (await wait_for(run.wait())).status == "completed"
        assert (await runtime.store.session("s").check()).ok


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_an_interrupting_run_is_next_and_queued_runs_follow(store_url, on_busy):
    asked, never = asyncio.Event(), asyncio.Event()

    async def answer(call):
        if call.input[-1]["content"] == "one":
            asked.set()
            await never.wait()
        return [assistant_message("answered")]

    agent = Agent("support", model=ScriptedModel([ModelStep.respond(answer) for _ in range(3)]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        await runtime.start("support", "one", session_id="s")
        await wait_for(asked.wait())
        second = await runtime.start("support", "two", session_id="s")
        third = await runtime.start("support", "three", session_id="s", on_busy=on_busy)
        assert (await wait_for(second.wait())).status == (await wait_for(third.wait())).status == "completed"
        items = await runtime.store.session("s").get_items()
        said = [item["content"] for item in items if item["role"] == "user"]
        assert said == [*(["one"] if on_busy == "interrupt" else []), "three", "two"]
        assert (await runtime.store.session("s").check()).ok


async def test_a_run_that_interrupts_one_that_waits_for_a_person_is_next(store_url):
    refunds = Refunds()
    agent = refunds.agent(tool_calls(("refund", {"order": "7", "amount": 5}, "c1")), reply("next"), reply("last"))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        first = await runtime.start("support", "one", session_id="s")
        await wait_for(first.wait())
        second = await runtime.start("support", "two", session_id="s")
        third = await runtime.start("support", "three", session_id="s", on_busy="interrupt")
        assert (await wait_for(third.wait())).final_output == "next"
        assert (await wait_for(second.wait())).final_output == "last"
        assert (await first.info()).status == "cancelled"


async def test_the_recovery_loop_starts_the_run_that_interrupted(shared_url):
    """As it is when the process that started the runs has died."""
    async with closing_backend(await open_backend(shared_url)) as backend:
        for text, on_busy in ("one", "enqueue"), ("two", "enqueue"), ("three", "interrupt"):
            await backend.commit(*StartRequest("support", text, "s", None, 10, None, on_busy).build_ops(f"run_{text}"))
    async with Runtime.open(shared_url, agents=[echo()], lease=0.4) as runtime:
        for text in ("three", "one", "two"):
            assert (await wait_for((await runtime.run(f"run_{text}")).wait())).status == "completed"
        items = await runtime.store.session("s").get_items()
        assert [item["content"] for item in items if item["role"] == "user"] == ["three", "one", "two"]
