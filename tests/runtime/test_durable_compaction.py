"""A runtime with a policy compacts the session of a run before the run reads it; positions stay right."""

import asyncio

import pytest

from factories.history import KEY, message
from factories.runtime import Refunds, event_types, reply, tool_calls, wait_for
from standfast import Agent, CompactingSession, FunctionModel, InvalidInput, Runtime
from standfast.history import HistoryCompaction, Trigger

REFUND = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))
KEYS = pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])


def summarise(items):
    return f"about {len(items)} items"


def make_policy(summarise=summarise, **options):
    return HistoryCompaction(summarise=summarise, **{"trigger": Trigger(items=6), "keep_last": 3, **options})


def echo_agent():
    return Agent("support", model=FunctionModel(lambda request: f"answer to {request.input[-1]['content']}"))


async def list_texts(session, **options):
    """The words of each item of the session."""
    items = await session.get_items(**options)
    parts = [item.get("content") or item.get("output") or item.get("name") for item in items]
    return [part if isinstance(part, str) else part[0]["text"] for part in parts]


async def ask(runtime, *questions, session_id="s"):
    runs = []
    for question in questions:
        runs.append(await runtime.start("support", question, session_id=session_id))
        assert (await wait_for(runs[-1].wait())).status == "completed"
    return runs


@KEYS
async def test_the_oldest_items_are_replaced_before_a_run_reads_them(store_url, key):
    agent = echo_agent()
    async with Runtime.open(store_url, agents=[agent], compaction=make_policy(), encryption_key=key) as runtime:
        runs = await ask(runtime, "1", "2", "3", "4", "5")
        texts = await list_texts(runtime.session("s"))
        assert texts[0].endswith("about 5 items")
        assert texts[1:] == ["answer to 3", "4", "answer to 4", "5", "answer to 5"][-len(texts) + 1 :]
        types = [await event_types(run) for run in runs]
        assert ["session.compacted" in one for one in types] == [False, False, False, False, True]
        assert types[4].index("session.compacted") < types[4].index("input.taken")
        [event] = [event async for event in runs[4].events() if event.type == "session.compacted"]
        assert event.data == {"replaced": 5, "length": 4}
        generation = (await runtime.session("s").generations())[-1].number
        assert (await list_texts(runtime.session("s"), generation=generation))[0] == "1"
        assert (await runtime.session("s").check()).ok


async def test_the_model_is_shown_the_summary_and_not_what_it_replaced(store_url):
    seen = []

    def respond(request):
        seen.append([item["content"] for item in request.input if item.get("role") == "user"])
        return "yes"

    agent = Agent("support", model=FunctionModel(respond))
    async with Runtime.open(store_url, agents=[agent], compaction=make_policy(keep_last=2)) as runtime:
        await ask(runtime, "1", "2", "3", "4", "5")
    assert seen[-1][1:] == ["4", "5"]
    assert seen[-1][0].endswith("about 6 items")


async def test_a_summariser_that_fails_does_not_stop_the_run_and_the_next_run_tries_again(store_url, caplog):
    attempts = []

    async def fail_once(items):
        attempts.append(len(items))
        if len(attempts) == 1:
            raise RuntimeError("the model is down")
        return "short"

    async with Runtime.open(store_url, agents=[echo_agent()], compaction=make_policy(fail_once)) as runtime:
        await ask(runtime, "1", "2", "3", "4", "5")
        assert len(await runtime.session("s").get_items()) == 10
        await ask(runtime, "6")
        assert (await list_texts(runtime.session("s")))[0].endswith("short")
    assert len(attempts) == 2
    assert "could not be compacted" in caplog.text


async def test_what_others_add_while_a_summary_is_made_is_kept(store_url):
    async def add_and_summarise(items):
        await runtime.session("s").add_items([message("meanwhile")])
        return "short"

    async with Runtime.open(store_url, agents=[echo_agent()], compaction=make_policy(add_and_summarise)) as runtime:
        await ask(runtime, "1", "2", "3", "4", "5")
        texts = await list_texts(runtime.session("s"))
        assert texts[0].endswith("short")
        assert texts[-3:] == ["meanwhile", "5", "answer to 5"]


async def test_a_run_that_is_cancelled_while_a_summary_is_made_leaves_the_history(store_url):
    started = asyncio.Event()

    async def wait_forever(items):
        started.set()
        await asyncio.Event().wait()

    async with Runtime.open(store_url, agents=[echo_agent()], compaction=make_policy(wait_forever)) as runtime:
        await ask(runtime, "1", "2", "3", "4")
        run = await runtime.start("support", "5", session_id="s")
        await wait_for(started.wait())
        await runtime.cancel(run.id, mode="immediate")
        assert (await wait_for(run.wait())).status == "cancelled"
        assert len(await runtime.session("s").get_items()) == 8


async def test_a_runtime_that_closes_while_a_summary_is_made_leaves_it_to_the_next(shared_url):
    started = asyncio.Event()

    async def wait_forever(items):
        started.set()
        await asyncio.Event().wait()

    async with Runtime.open(shared_url, agents=[echo_agent()], compaction=make_policy(wait_forever)) as runtime:
        await ask(runtime, "1", "2", "3", "4")
        run = await runtime.start("support", "5", session_id="s")
        await wait_for(started.wait())
    async with Runtime.open(shared_url, agents=[echo_agent()], compaction=make_policy()) as runtime:
        assert (await wait_for((await runtime.run(run.id)).wait())).final_output == "answer to 5"
        texts = await list_texts(runtime.session("s"))
        assert texts[0].endswith("about 5 items")
        assert texts[-2:] == ["5", "answer to 5"]


@KEYS
async def test_a_run_from_before_a_compaction_is_forked_with_the_items_of_that_time(store_url, key):
    async with Runtime.open(store_url, agents=[echo_agent()], compaction=make_policy(), encryption_key=key) as runtime:
        runs = await ask(runtime, "1", "2", "3", "4", "5", "6", "7")
        assert (await list_texts(runtime.session("s")))[0].startswith("[Summary")
        fork = await runtime.fork(runs[1].id, session_id="of-2")
        await wait_for(fork.wait())
        assert await list_texts(runtime.session("of-2")) == ["1", "answer to 1", "2", "answer to 2"]
        fork = await runtime.fork(runs[4].id, session_id="of-5")
        await wait_for(fork.wait())
        texts = await list_texts(runtime.session("of-5"))
        assert texts[0].endswith("about 5 items")
        assert texts[1:] == ["answer to 3", "4", "answer to 4", "5", "answer to 5"]
        assert (await runtime.session("of-5").check()).ok
        [taken] = [event.seq async for event in runs[4].events() if event.type == "input.taken"]
        again = await runtime.fork(runs[4].id, at=taken, session_id="of-5-again")
        assert (await wait_for(again.wait())).final_output == "answer to 5"
        assert await list_texts(runtime.session("of-5-again")) == texts


@KEYS
async def test_a_rollback_after_a_compaction_by_others_removes_the_items_of_the_run_only(store_url, key):
    refunds = Refunds()
    agent = refunds.agent(*[reply(str(number)) for number in range(4)], REFUND, reply("instead"))
    async with Runtime.open(store_url, agents=[agent], encryption_key=key) as runtime:
        await ask(runtime, "a", "b", "c", "d")
        waiting = await runtime.start("support", "my order", session_id="s")
        await wait_for(waiting.wait())
        session = runtime.session("s")
        await CompactingSession(session, summarise=summarise, trigger=Trigger(items=6), keep_last=4).compact(force=True)
        await session.add_items([message("by another program")])
        before = await list_texts(session)
        assert "my order" in before
        assert "refund" in before
        instead = await runtime.start("support", "never mind", session_id="s", on_busy="rollback")
        assert (await wait_for(instead.wait())).final_output == "instead"
        kept = [text for text in before if text not in ("my order", "refund")]
        assert await list_texts(session) == [*kept, "never mind", "instead"]
        assert (await session.check()).ok


async def test_a_run_whose_session_was_compacted_while_it_waited_is_forked_where_it_continued(store_url):
    refunds = Refunds()
    agent = refunds.agent(*[reply(str(number)) for number in range(3)], REFUND, reply("done"), reply("again"))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        await ask(runtime, "a", "b", "c")
        run = await runtime.start("support", "my order", session_id="s")
        [approval] = (await wait_for(run.wait())).approvals
        session = runtime.session("s")
        before = await list_texts(session)
        await CompactingSession(session, summarise=summarise, trigger=Trigger(items=6), keep_last=4).compact(force=True)
        await runtime.decide(approval.id, "approve")
        assert (await wait_for(run.wait())).status == "completed"
        seqs = {event.type: event.seq async for event in run.events()}
        first = await runtime.fork(run.id, at=seqs["input.taken"], session_id="first")
        await wait_for(first.wait())
        assert (await list_texts(runtime.session("first")))[: len(before) - 1] == before[:-1]
        last = await runtime.fork(run.id, session_id="last")
        await wait_for(last.wait())
        assert await list_texts(runtime.session("last")) == await list_texts(session)


async def test_a_run_is_not_forked_where_its_items_are_gone(store_url):
    async with Runtime.open(store_url, agents=[echo_agent()]) as runtime:
        runs = await ask(runtime, "1", "2")
        await runtime.session("s").clear_session()
        await ask(runtime, "3", "4")
        with pytest.raises(InvalidInput, match="cleared"):
            await runtime.fork(runs[0].id)


async def test_a_compaction_must_be_one(tmp_path):
    with pytest.raises(InvalidInput, match="HistoryCompaction"):
        async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", compaction=summarise):
            pass
    with pytest.raises(InvalidInput, match="keep_last"):
        HistoryCompaction(summarise=summarise, trigger=Trigger(items=3), keep_last=3)
