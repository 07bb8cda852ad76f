"""Whatever is changed in the stored records of an encrypted run, without the key, is noticed when they are read."""

import pytest

from factories.history import KEY
from factories.runtime import Refunds, event_types, only_approval, reply, text_agent, tool_calls, wait_for
from factories.stored_rows import execute
from standfast import Agent, RunTampered, Runtime, python_tool
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PythonSessions, SessionPool

REFUND = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))


async def get_entry(url, run_id, seq):
    [(data,)] = await execute(url, "SELECT data FROM standfast_journal WHERE run_id = :r AND seq = :s", r=run_id, s=seq)
    return bytes(data)


async def put_entry(url, run_id, seq, data):
    await execute(url, "UPDATE standfast_journal SET data = :d WHERE run_id = :r AND seq = :s", r=run_id, s=seq, d=data)


async def get_length(url, run_id):
    [(length,)] = await execute(url, "SELECT journal_length FROM standfast_runs WHERE run_id = :r", r=run_id)
    return length


async def flip_a_bit(url, run_id, other):
    data = await get_entry(url, run_id, 3)
    await put_entry(url, run_id, 3, data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])


async def cut_an_entry(url, run_id, other):
    await put_entry(url, run_id, 3, (await get_entry(url, run_id, 3))[:20])


async def put_plain_bytes(url, run_id, other):
    await put_entry(url, run_id, 3, b'{"it":{"type":"run.owned","by":"eve"}}')


async def swap_two_entries(url, run_id, other):
    third, fourth = await get_entry(url, run_id, 3), await get_entry(url, run_id, 4)
    await put_entry(url, run_id, 3, fourth)
    await put_entry(url, run_id, 4, third)


async def take_an_entry_of_another_run(url, run_id, other):
    await put_entry(url, run_id, 3, await get_entry(url, other, 3))


async def replay_an_entry(url, run_id, other):
    await put_entry(url, run_id, 4, await get_entry(url, run_id, 3))


async def rename_the_kind(url, run_id, other):
    await execute(url, "UPDATE standfast_journal SET kind = 'x' WHERE run_id = :r AND seq = 3", r=run_id)


async def remove_an_entry(url, run_id, other):
    await execute(url, "DELETE FROM standfast_journal WHERE run_id = :r AND seq = 3", r=run_id)


async def remove_the_last_entry(url, run_id, other):
    await execute(
        url, "DELETE FROM standfast_journal WHERE run_id = :r AND seq = :s", r=run_id, s=await get_length(url, run_id)
    )


async def remove_the_last_entry_and_count_it_off(url, run_id, other):
    await remove_the_last_entry(url, run_id, other)
    await execute(url, "UPDATE standfast_runs SET journal_length = journal_length - 1 WHERE run_id = :r", r=run_id)


async def remove_the_seal(url, run_id, other):
    await execute(url, "UPDATE standfast_runs SET seal = NULL WHERE run_id = :r", r=run_id)


async def take_the_seal_of_another_run(url, run_id, other):
    await execute(
        url,
        "UPDATE standfast_runs SET seal = (SELECT seal FROM standfast_runs WHERE run_id = :o) WHERE run_id = :r",
        r=run_id,
        o=other,
    )


async def change_the_status(url, run_id, other):
    await execute(url, "UPDATE standfast_runs SET status = 'failed' WHERE run_id = :r", r=run_id)


async def change_the_session(url, run_id, other):
    await execute(url, "UPDATE standfast_runs SET session_id = 'other' WHERE run_id = :r", r=run_id)


async def take_the_header_of_another_run(url, run_id, other):
    await execute(
        url,
        "UPDATE standfast_runs SET data = (SELECT data FROM standfast_runs WHERE run_id = :o) WHERE run_id = :r",
        r=run_id,
        o=other,
    )


CHANGES = [
    flip_a_bit,
    cut_an_entry,
    put_plain_bytes,
    swap_two_entries,
    take_an_entry_of_another_run,
    replay_an_entry,
    rename_the_kind,
    remove_an_entry,
    remove_the_last_entry,
    remove_the_last_entry_and_count_it_off,
    remove_the_seal,
    take_the_seal_of_another_run,
    change_the_status,
    change_the_session,
    take_the_header_of_another_run,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_changed_run_is_noticed_and_the_others_are_not_affected(shared_url, change):
    async with Runtime.open(shared_url, agents=[text_agent("one", "two")], encryption_key=KEY) as runtime:
        runs = [await runtime.start("support", "hi", session_id=name) for name in ("s", "t")]
        for run in runs:
            await wait_for(run.wait())
        await change(shared_url, runs[0].id, runs[1].id)
        with pytest.raises(RunTampered) as noticed:
            await wait_for(event_types(runs[0]))
        assert noticed.value.run_id == runs[0].id
        with pytest.raises(RunTampered):
            await runtime.state(runs[0].id)
        assert len(await runtime.runs()) == 2
        assert (await wait_for(runs[1].wait())).status == "completed"
        await runtime.delete(runs[0].id)


async def test_the_header_of_an_earlier_moment_is_noticed(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        [(data, revision)] = await execute(shared_url, "SELECT data, revision FROM standfast_runs")
        await runtime.decide((await only_approval(runtime)).id, "approve")
        assert (await wait_for(run.wait())).status == "completed"
        await execute(
            shared_url,
            "UPDATE standfast_runs SET data = :d, revision = :v, status = 'waiting'",
            d=bytes(data),
            v=revision,
        )
        with pytest.raises(RunTampered, match="header"):
            await wait_for(run.wait())


async def test_a_run_with_a_changed_journal_fails_instead_of_continuing(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        await flip_a_bit(shared_url, run.id, "")
        await runtime.decide((await only_approval(runtime)).id, "approve")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code) == ("failed", "run-tampered")
    assert refunds.made == []


@pytest.mark.parametrize("column", ["data", "status", "expires_at"])
async def test_a_changed_approval_cannot_be_decided(shared_url, column):
    refunds = Refunds()
    script = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"), ("refund", {"order": "8", "amount": 9000}, "c2"))
    agent = refunds.agent(script, reply("done"))
    async with Runtime.open(shared_url, agents=[agent], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        small, large = (await wait_for(run.wait())).approvals
        if column == "data":
            await execute(
                shared_url,
                "UPDATE standfast_approvals SET data = (SELECT data FROM standfast_approvals WHERE approval_id = :s)"
                " WHERE approval_id = :l",
                s=small.id,
                l=large.id,
            )
        else:
            value = {"status": "'rejected'", "expires_at": "9e9"}[column]
            await execute(
                shared_url, f"UPDATE standfast_approvals SET {column} = {value} WHERE approval_id = :l", l=large.id
            )
        with pytest.raises(RunTampered, match="approval"):
            await runtime.decide(large.id, "approve")
        assert [(one.id, one.locked) for one in await runtime.approvals()] == [(small.id, False), (large.id, True)]
        await runtime.decide(small.id, "approve")
    assert refunds.made == []


async def test_an_approval_that_was_put_back_or_deleted_repeats_no_call(shared_url):
    refunds = Refunds()
    script = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"), ("refund", {"order": "8", "amount": 9}, "c2"))
    async with Runtime.open(shared_url, agents=[refunds.agent(script, reply("done"))], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        first, second = (await wait_for(run.wait())).approvals
        [(data, revision)] = await execute(
            shared_url, "SELECT data, revision FROM standfast_approvals WHERE approval_id = :a", a=first.id
        )
        await runtime.decide(first.id, "approve")
        await wait_for(run.wait())
        await execute(
            shared_url,
            "UPDATE standfast_approvals SET data = :d, revision = :r, status = 'pending' WHERE approval_id = :a",
            a=first.id,
            d=bytes(data),
            r=revision,
        )
        await runtime.decide(first.id, "approve")
        assert [one.id for one in (await wait_for(run.wait())).approvals] == [second.id]
        await execute(shared_url, "DELETE FROM standfast_approvals")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.approvals) == ("waiting", ())
        await runtime.cancel(run.id)
    assert len(refunds.made) == 1


async def test_a_run_copied_to_another_id_is_noticed(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[text_agent("one")], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        for table in ("runs", "journal", "events", "approvals"):
            await execute(url, f"UPDATE standfast_{table} SET run_id = 'run_copy'")
        with pytest.raises(RunTampered):
            await (await runtime.run("run_copy")).wait()


@pytest.mark.parametrize("change", ["status", "of another session", "written without encryption"])
async def test_a_changed_standing_decision_lets_no_call_through(shared_url, change):
    refunds = Refunds()
    turn = (REFUND, reply("done"))
    verdicts = {"refused": "reject", "allowed": "approve"}
    async with Runtime.open(shared_url, agents=[refunds.agent(*turn, *turn, *turn)], encryption_key=KEY) as runtime:
        for name, verdict in verdicts.items():
            run = await runtime.start("support", "hi", session_id=name)
            await wait_for(run.wait())
            await runtime.decide((await only_approval(runtime)).id, verdict, always=True)
            assert (await wait_for(run.wait())).status == "completed"
        assert len(refunds.made) == 1
        rows = await execute(
            shared_url,
            "SELECT session_id, approval_id, data FROM standfast_approvals WHERE approval_id LIKE 'always:%'",
        )
        found = {session_id: (approval_id, bytes(data)) for session_id, approval_id, data in rows}
        data = found["refused"][1] if change == "status" else found["allowed"][1]
        if change == "written without encryption":
            data = b'{"status":"approved"}'
        await execute(
            shared_url,
            "UPDATE standfast_approvals SET status = 'approved', data = :d WHERE approval_id = :a",
            d=data,
            a=found["refused"][0],
        )
        outcome = await wait_for((await runtime.start("support", "hi", session_id="refused")).wait())
        assert (outcome.status, outcome.error.code) == ("failed", "run-tampered")
    assert len(refunds.made) == 1


async def test_a_version_of_a_workspace_that_was_put_back_is_noticed(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=1)) as pool:
        steps = [
            step for n in (1, 2) for step in (tool_calls(("run_python", {"code": f"x = {n}"}, f"c{n}")), reply("ok"))
        ]
        agent = Agent("analyst", tools=[python_tool(PythonSessions(pool))], model=ScriptedModel(steps))
        async with Runtime.open(url, agents=[agent], encryption_key=KEY) as runtime:
            for _ in range(2):
                run = await runtime.start("analyst", "go", session_id="s")
                assert (await wait_for(run.wait())).status == "completed"
            assert (await runtime.workspace("s")).version == 2
            older = "(SELECT data FROM standfast_versions WHERE version = 1)"
            await execute(url, f"UPDATE standfast_versions SET data = {older} WHERE version = 2")
            with pytest.raises(RunTampered, match="version"):
                await runtime.workspace("s")
