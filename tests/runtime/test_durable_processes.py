"""Many processes want the same at the same time: it happens once, and in order."""

from contextlib import AsyncExitStack, asynccontextmanager

from shop import LEASE, Ledger, agents, echo

from factories.runtime import wait_for
from standfast import Runtime
from standfast.testing import assert_replayable

PROCESSES = 8


@asynccontextmanager
async def together(spawn, jobs):
    """Processes that are ready to begin their jobs, once the file is there."""
    async with AsyncExitStack() as stack:
        children = [await stack.enter_async_context(spawn(name, *arguments)) for name, *arguments in jobs]
        for child in children:
            assert await child.line() == "ready"
        yield children


async def test_starts_from_many_processes_run_one_after_the_other(spawn, shared_url, tmp_path):
    go = tmp_path / "go"
    jobs = [("talk", shared_url, str(go), name, 10) for name in "abcde"]
    async with together(spawn, jobs) as children:
        go.touch()
        assert [await child.end(60) for child in children] == [0] * 5
    async with Runtime.open(shared_url, agents=[echo()]) as runtime:
        assert {info.status for info in await runtime.runs(limit=100)} == {"completed"}
        runs = [await runtime.run(info.run_id) for info in await runtime.runs(limit=100)]
        order = [(await anext(run.events())).data["input"] for run in runs]
        items = await runtime.store.session("s").get_items()
    said = [item["content"] if item["role"] == "user" else item["content"][0]["text"] for item in items]
    assert sorted(order) == sorted(f"{name}{n}" for name in "abcde" for n in range(10))
    assert said == [text for asked in order for text in (asked, f"echo {asked}")]
    assert_replayable(items)


async def test_one_key_from_many_processes_is_one_run(spawn, shared_url, tmp_path):
    go, ledger = tmp_path / "go", Ledger(tmp_path / "ledger")
    jobs = [("charge_once", shared_url, str(go), str(ledger.path), "plain")] * PROCESSES
    async with together(spawn, jobs) as children:
        go.touch()
        lines = {await child.line() for child in children}
        assert {await child.end() for child in children} == {0}
    [(run_id, output)] = {tuple(line.split()) for line in lines}
    assert output == "done"
    assert ledger.lines() == [f"{run_id}:charge0"]


async def test_many_processes_that_resume_an_approved_run_execute_it_once(spawn, shared_url, tmp_path):
    go, ledger = tmp_path / "go", Ledger(tmp_path / "ledger")
    async with Runtime.open(shared_url, agents=agents(ledger, "approval"), lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        [asked] = (await wait_for(run.wait())).approvals
    async with Runtime.open(shared_url) as runtime:
        jobs = [("charge_once", shared_url, str(go), str(ledger.path), "approval")] * PROCESSES
        async with together(spawn, jobs) as children:
            await runtime.decide(asked.id, "approve")
            go.touch()
            assert {await child.line() for child in children} == {f"{run.id} done"}
            assert {await child.end() for child in children} == {0}
        assert_replayable(await runtime.store.session("s").get_items())
    assert ledger.lines() == [asked.idempotency_key]


async def test_of_many_decisions_at_once_one_holds_and_the_others_hear_of_it(spawn, shared_url, tmp_path):
    go, ledger = tmp_path / "go", Ledger(tmp_path / "ledger")
    async with Runtime.open(shared_url, agents=agents(ledger, "approval"), lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s")
        [asked] = (await wait_for(run.wait())).approvals
        jobs = [
            ("decide", shared_url, str(go), asked.id, verdict, f"{verdict}{n}")
            for n in range(4)
            for verdict in ("approve", "reject")
        ]
        async with together(spawn, jobs) as children:
            go.touch()
            lines = [await child.line() for child in children]
            assert {await child.end() for child in children} == {0}
        [winner] = [job[-1] for job, line in zip(jobs, lines, strict=True) if line == "decided"]
        settled = await runtime.approval(asked.id)
        assert settled.decided_by == winner
        assert [line for line in lines if line != "decided"] == [f"settled {settled.status} {winner}"] * 7
        assert (await wait_for(run.wait())).final_output == "done"
        assert [event.type async for event in run.events()].count("approval.decided") == 1
    assert len(ledger.lines()) == (settled.status == "approved")
