"""Encrypted runs are encrypted again with a new key, which is then the only one that they need."""

import asyncio
import signal

import pytest

from factories.history import KEY
from factories.runtime import Refunds, event_types, only_approval, reply, text_agent, tool_calls, wait_for
from factories.stored_rows import execute, list_rows
from standfast import Agent, EncryptedSession, InvalidInput, Runtime, WrongKey, function_tool, python_tool
from standfast.history.encryption.keys import EncryptionKey
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PythonSessions, SessionPool

NEW_KEY = "another key of good length, number two"
REFUND = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))
AGAIN = tool_calls(("refund", {"order": "8", "amount": 5}, "c2"))


async def needs_key(url, secret):
    """Return whether any row names the key, as each encrypted record and seal does."""
    return repr(EncryptionKey(secret).id)[2:-1] in await list_rows(url)


async def rekey_sessions(runtime, *session_ids):
    for session_id in session_ids:
        await EncryptedSession(session_id, runtime.store.session(session_id), [NEW_KEY, KEY]).rekey()


async def test_after_rekey_runs_approvals_and_standing_decisions_need_the_new_key_only(shared_url):
    refunds = Refunds()
    agent = refunds.agent(REFUND, reply("one"), AGAIN, reply("two"))
    async with Runtime.open(shared_url, agents=[agent, text_agent("hi", name="other")], encryption_key=KEY) as runtime:
        first = await runtime.start("support", "my order", session_id="s")
        await wait_for(first.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve", always=True)
        assert (await wait_for(first.wait())).final_output == "one"
        waiting = await runtime.start("other", "hello", session_id="t")
        await wait_for(waiting.wait())
        events = await event_types(first)
    async with Runtime.open(shared_url, encryption_key=[NEW_KEY, KEY]) as runtime:
        infos = await runtime.runs()
        report = await runtime.rekey()
        assert (set(report.runs), report.approvals, report.failed) == ({first.id, waiting.id}, 2, {})
        assert await runtime.runs() == infos
        assert (await runtime.rekey()).runs == ()
        await rekey_sessions(runtime, "s", "t")
    assert not await needs_key(shared_url, KEY)
    async with Runtime.open(shared_url, agents=[refunds.agent(AGAIN, reply("two"))], encryption_key=NEW_KEY) as runtime:
        assert await event_types(await runtime.run(first.id)) == events
        second = await runtime.start("support", "the other", session_id="s")
        assert (await wait_for(second.wait())).final_output == "two"  # the standing decision applies
        assert [made for made, _ in refunds.made] == ["7:5", "8:5"]
    async with Runtime.open(shared_url, encryption_key=KEY) as runtime:
        with pytest.raises(WrongKey):
            await (await runtime.run(first.id)).wait()


async def test_a_waiting_run_continues_with_the_new_key(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "my order", session_id="s")
        await wait_for(run.wait())
    async with Runtime.open(shared_url, encryption_key=[NEW_KEY, KEY]) as runtime:
        await runtime.rekey()
        await rekey_sessions(runtime, "s")
    async with Runtime.open(shared_url, agents=[refunds.agent(reply("done"))], encryption_key=NEW_KEY) as runtime:
        await runtime.decide((await only_approval(runtime)).id, "approve")
        assert (await wait_for((await runtime.run(run.id)).wait())).final_output == "done"
        assert len(refunds.made) == 1
        kinds = [item.get("type", item.get("role")) for item in await runtime.session("s").get_items()]
        assert kinds == ["user", "function_call", "function_call_output", "message"]
        forked = await runtime.fork(run.id, at=2)
        assert (await forked.info()).parent == run.id


async def test_a_run_may_be_executed_while_it_is_rewritten(shared_url):
    calls = 12

    @function_tool
    async def step(n: int) -> str:
        await asyncio.sleep(0.002)
        return f"step {n}"

    script = [tool_calls(("step", {"n": n}, f"c{n}")) for n in range(calls)]
    agent = Agent("support", tools=[step], model=ScriptedModel([*script, reply("done")]))
    async with (
        Runtime.open(shared_url, agents=[agent], encryption_key=[KEY, NEW_KEY]) as worker,
        Runtime.open(shared_url, agents=[agent], encryption_key=[NEW_KEY, KEY]) as other,
    ):
        run = await worker.start("support", "go", session_id="s", max_turns=None)
        rewritten = 0
        while (await run.info()).status not in ("completed", "failed"):
            report = await other.rekey()
            assert report.failed == {}
            rewritten += len(report.runs)
            await other.state(run.id)
        assert (await wait_for(run.wait())).final_output == "done"
        assert rewritten > 0
        await other.rekey()
        await rekey_sessions(other, "s")
    async with Runtime.open(shared_url, agents=[agent], encryption_key=NEW_KEY) as runtime:
        assert "run.completed" in await event_types(await runtime.run(run.id))
        outputs = [one for one in await runtime.session("s").get_items() if "output" in one]
        assert len(outputs) == calls


async def test_variables_and_files_are_encrypted_again(shared_url, tmp_path):
    async def ask(key, code):
        async with SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool:
            script = [tool_calls(("run_python", {"code": code}, "c1")), reply("done")]
            tools = [python_tool(PythonSessions(pool))]
            agent = Agent("analyst", tools=tools, model=ScriptedModel(script))
            async with Runtime.open(shared_url, agents=[agent], encryption_key=key) as runtime:
                run = await runtime.start("analyst", "go", session_id="s")
                assert (await wait_for(run.wait())).status == "completed"
                return [item["output"] for item in await runtime.session("s").get_items() if "output" in item]

    await ask(KEY, "x = [41]; print(open('f', 'w').write('kept'))")
    async with Runtime.open(shared_url, encryption_key=[NEW_KEY, KEY]) as runtime:
        assert (await runtime.rekey()).workspaces == ("session:s",)
        assert (await runtime.rekey()).workspaces == ()
        await rekey_sessions(runtime, "s")
        # Only what was there once and is not any more: a sweep would remove it after an hour.
        assert not await execute(shared_url, "SELECT 1 FROM standfast_blobs WHERE refs <= 0")
    assert not await needs_key(shared_url, KEY)
    assert (await ask(NEW_KEY, "print(x[0] + 1, open('f').read())"))[-1].endswith("42 kept")


async def test_a_killed_rekey_leaves_every_run_readable_and_is_continued(spawn, shared_url):
    refunds = Refunds()
    agent = refunds.agent(REFUND, AGAIN)
    async with Runtime.open(shared_url, agents=[agent], encryption_key=KEY) as runtime:
        runs = [await runtime.start("support", f"request {n}") for n in range(2)]
        outcomes = [await wait_for(run.wait()) for run in runs]

    async def check_runs(*keys):
        async with Runtime.open(shared_url, encryption_key=keys) as runtime:
            assert [await wait_for((await runtime.run(run.id)).wait()) for run in runs] == outcomes

    keys = [NEW_KEY, KEY]
    # Two approvals, then two runs.
    points = ["after:1", "before:3", "after:3", "after:4"]
    for point in points if shared_url.startswith("sqlite") else points[2:3]:
        async with spawn("rekey", shared_url, point, *keys) as process:
            assert await process.end() == -signal.SIGKILL
        await check_runs(*keys)
        async with spawn("rekey", shared_url, "", *keys) as process:
            assert await process.end() == 0
        await check_runs(keys[0])
        keys.reverse()


async def test_what_cannot_be_read_is_reported_and_left_alone(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent(REFUND, AGAIN)], encryption_key=KEY) as runtime:
        broken, whole = [await runtime.start("support", "my order") for _ in range(2)]
        for run in (broken, whole):
            await wait_for(run.wait())
    await execute(shared_url, "DELETE FROM standfast_journal WHERE run_id = :id AND seq = 2", id=broken.id)
    plain = text_agent("hi")
    async with Runtime.open(shared_url, agents=[plain]) as runtime:
        await wait_for((await runtime.start("support", "in clear")).wait())
        with pytest.raises(InvalidInput, match="encryption_key"):
            await runtime.rekey()
    async with Runtime.open(shared_url, encryption_key="a third key of good length, not in use") as runtime:
        report = await runtime.rekey()
        assert (report.runs, report.approvals) == ((), 0)
        assert all("key" in reason for reason in report.failed.values())
        assert len(report.failed) == 4
    async with Runtime.open(shared_url, encryption_key=[NEW_KEY, KEY]) as runtime:
        report = await runtime.rekey()
        assert report.runs == (whole.id,)
        assert list(report.failed) == [broken.id]
        assert "missing" in report.failed[broken.id]
