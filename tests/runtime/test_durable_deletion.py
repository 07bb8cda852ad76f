"""Runs are deleted with everything that they wrote, alone, with their session, or by age and number."""

import asyncio
import secrets
from datetime import timedelta

import pytest

from factories.runtime import Refunds, only_approval, reply, text_agent, tool_calls, wait_for
from factories.stored_rows import list_rows
from standfast import (
    Agent,
    FunctionModel,
    InvalidInput,
    NotFound,
    RunActive,
    RunShared,
    Runtime,
    SessionBusy,
    open_store,
)

WORDS = ("axolotl", "quokka", "narwhal")
"""Words of the question, of the arguments and of the answer."""


def zoo() -> Agent:
    refunds = Refunds()
    return refunds.agent(tool_calls(("refund", {"order": "quokka", "amount": 5}, "c1")), reply("a narwhal"))


async def finish_refund(runtime, session_id, **decision):
    run = await runtime.start("support", "an axolotl", session_id=session_id)
    await wait_for(run.wait())
    await runtime.decide((await only_approval(runtime)).id, "approve", by="ann", **decision)
    assert (await wait_for(run.wait())).status == "completed"
    return run


async def test_a_session_is_deleted_with_the_runs_that_have_ended(shared_url):
    async with Runtime.open(shared_url, agents=[zoo()]) as runtime:
        run = await finish_refund(runtime, "bob", always=True)
        kept = await runtime.start("support", "hi", session_id="other")
        before = await list_rows(shared_url)
        assert all(word in before for word in WORDS)
        deleted = await runtime.store.delete("bob")
        assert (deleted.deleted_runs, deleted.kept_runs) == ((run.id,), ())
        with pytest.raises(NotFound):
            await runtime.run(run.id)
        assert [info.run_id for info in await runtime.runs()] == [kept.id]
        assert await runtime.approvals(session_id="bob") == []
        rows = await list_rows(shared_url)
        assert [word for word in WORDS if word in rows] == []


async def test_runs_that_are_kept_are_listed_and_can_be_deleted_later(store_url):
    async with Runtime.open(store_url, agents=[text_agent("one", "two")]) as runtime:
        runs = [await runtime.start("support", "hi", session_id="s") for _ in range(2)]
        for run in runs:
            await wait_for(run.wait())
        kept = await runtime.store.delete("s", runs="keep")
        assert (kept.deleted_runs, kept.kept_runs) == ((), tuple(run.id for run in runs))
        assert (await wait_for(runs[0].wait())).final_output == "one"
        with pytest.raises(NotFound):
            await runtime.store.delete("s", runs="keep")
        assert (await runtime.store.delete("s")).deleted_runs == kept.kept_runs
        assert await runtime.runs() == []
        with pytest.raises(NotFound):
            await runtime.store.delete("s")
        with pytest.raises(InvalidInput):
            await runtime.store.delete("s", runs="forget")


@pytest.mark.parametrize("runs", ["delete", "keep"])
async def test_a_session_with_a_run_that_has_not_ended_is_not_deleted(store_url, runs):
    async with Runtime.open(store_url, agents=[Refunds().agent()]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        before = await runtime.store.describe("s")
        with pytest.raises(SessionBusy) as busy:
            await runtime.store.delete("s", runs=runs)
        assert (busy.value.session_id, busy.value.run_id) == ("s", run.id)
        assert await runtime.store.describe("s") == before
        await runtime.cancel(run.id)
        await runtime.store.delete("s", runs=runs)
        with pytest.raises(NotFound):
            await runtime.store.describe("s")


async def test_a_store_of_histories_only_deletes_its_sessions(redis_url):
    async with open_store(redis_url, prefix=secrets.token_hex(8)) as store:
        await store.session("s").add_items([{"role": "user", "content": "hi"}])
        assert (await store.delete("s")).deleted_runs == ()
        with pytest.raises(NotFound):
            await store.delete("s")


async def test_a_run_is_deleted_with_its_events_and_approvals(shared_url):
    async with Runtime.open(shared_url, agents=[zoo()]) as runtime:
        run = await finish_refund(runtime, "bob")
        await runtime.delete(run.id)
        assert (await runtime.runs(), await runtime.approvals()) == ([], [])
        for ask in (runtime.run(run.id), runtime.state(run.id), runtime.delete(run.id), run.wait()):
            with pytest.raises(NotFound):
                await ask
        assert len(await runtime.store.session("bob").get_items()) == 4
        await runtime.store.delete("bob")
        rows = await list_rows(shared_url)
        assert [word for word in WORDS if word in rows] == []


async def test_a_standing_decision_keeps_nothing_of_the_call_of_a_deleted_run(shared_url):
    async with Runtime.open(shared_url, agents=[zoo()]) as runtime:
        run = await finish_refund(runtime, "bob", always=True)
        await runtime.store.session("bob").clear_session()
        await runtime.delete(run.id)
        rows = await list_rows(shared_url)
        assert [word for word in WORDS if word in rows] == []
        assert "always:" in rows


async def test_a_run_that_has_not_ended_is_not_deleted(store_url):
    started, ended = asyncio.Event(), asyncio.Event()

    async def respond(request):
        started.set()
        await ended.wait()
        return "done"

    async with Runtime.open(store_url, agents=[Agent("support", model=FunctionModel(respond))]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        queued = await runtime.start("support", "hi", session_id="s")
        await wait_for(started.wait())
        for one, status in ((run, "running"), (queued, "queued")):
            with pytest.raises(RunActive) as active:
                await runtime.delete(one.id)
            assert (active.value.run_id, active.value.status) == (one.id, status)
        assert (await runtime.prune(keep=0)).deleted == ()
        ended.set()
        assert (await wait_for(queued.wait())).final_output == "done"
        assert (await runtime.prune(keep=0)).deleted == (queued.id, run.id)


async def test_a_key_starts_a_new_run_after_its_run_was_deleted(store_url):
    async with Runtime.open(store_url, agents=[text_agent("one", "two")]) as runtime:
        run = await runtime.start("support", "hi", key="request-1")
        assert (await wait_for(run.wait())).final_output == "one"
        await runtime.delete(run.id)
        again = await runtime.start("support", "hi", key="request-1")
        assert (await wait_for(again.wait())).final_output == "two"


async def test_a_run_is_deleted_after_its_forks(store_url):
    async with Runtime.open(store_url, agents=[text_agent("one", "two")]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, at=1)
        await wait_for(fork.wait())
        for attempt in (runtime.delete(run.id), runtime.store.delete("s")):
            with pytest.raises(RunShared) as shared:
                await attempt
            assert (shared.value.run_id, shared.value.fork_id) == (run.id, fork.id)
        assert len(await runtime.store.session("s").get_items()) == 2
        report = await runtime.prune(keep=1)
        assert (report.deleted, report.kept, report.shared) == ((), 2, (run.id,))
        assert (await runtime.prune(keep=0)).deleted == (fork.id, run.id)


async def test_runs_are_pruned_by_number_and_by_age(store_url):
    async with Runtime.open(store_url, agents=[text_agent(*"abcd")]) as runtime:
        runs = [await runtime.start("support", "hi", session_id="s") for _ in range(4)]
        for run in runs:
            await wait_for(run.wait())
        assert (await runtime.prune(older_than=timedelta(days=1), keep=4)).kept == 4
        report = await runtime.prune(older_than=timedelta(days=1), keep=3)
        assert (report.deleted, report.kept) == ((runs[0].id,), 3)
        assert len((await runtime.prune(older_than=0, keep=2)).deleted) == 3
        assert len(await runtime.store.session("s").get_items()) == 8


@pytest.mark.parametrize("rule", [{}, {"keep": -1}, {"keep": True}, {"older_than": -1}, {"older_than": "1d"}])
async def test_pruning_needs_a_valid_rule(rule):
    async with Runtime.open("memory://", agents=[]) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.prune(**rule)
