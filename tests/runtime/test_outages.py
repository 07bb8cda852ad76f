"""The database is unavailable for a while, or an owner stalls: the run continues, in one process."""

import asyncio
import signal
import sqlite3
import time
from contextlib import asynccontextmanager, closing

import asyncpg
import pytest
from shop import LEASE, Ledger, agents

from factories.runtime import reply, tool_calls, wait_for
from servers import CUT_OTHERS, dsn
from standfast import Agent, FunctionModel, Runtime, StoreRefused, function_tool
from standfast.testing import ScriptedModel


async def test_a_run_continues_when_the_database_comes_back(postgres_tables_url):
    made = []

    @function_tool
    async def step(n: int) -> str:
        made.append(n)
        await asyncio.sleep(0.02)
        return str(n)

    turns = [tool_calls(("step", {"n": n}, f"c{n}")) for n in range(15)]
    agent = Agent("support", tools=[step], model=ScriptedModel([*turns, reply("done")]))
    admin = await asyncpg.connect(dsn(postgres_tables_url))
    try:
        async with Runtime.open(postgres_tables_url, agents=[agent], lease=2) as runtime:
            run = await runtime.start("support", "go", session_id="s", max_turns=30)
            waiting = asyncio.create_task(run.wait())
            for _ in range(4):
                await admin.execute(CUT_OTHERS)
                await asyncio.wait({waiting}, timeout=0.3)
            assert (await wait_for(waiting)).final_output == "done"
            items = await runtime.store.session("s").get_items()
            assert (await runtime.store.session("s").check()).ok
    finally:
        await admin.close()
    assert made == list(range(15))
    assert len(items) == 32


def stepping(made, turns, *, pause=0.02):
    """An agent that makes one call after the other."""

    @function_tool
    async def step(n: int) -> str:
        made.append(n)
        await asyncio.sleep(pause)
        return str(n)

    def rules(request):
        n = sum(item.get("type") == "function_call_output" for item in request.input)
        return FunctionModel.call("step", n=n) if n < turns else "done"

    return Agent("support", tools=[step], model=FunctionModel(rules))


async def test_a_run_outlives_its_database_server(fragile_postgres):
    made = []
    async with Runtime.open(fragile_postgres.url, agents=[stepping(made, 40)], lease=2) as runtime:
        run = await runtime.start("support", "go", session_id="s", max_turns=50)
        waiting = asyncio.create_task(run.wait())
        for _ in range(2):
            await asyncio.wait({waiting}, timeout=0.3)
            await asyncio.to_thread(fragile_postgres.fall)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(fragile_postgres.rise)
        assert not waiting.done()
        assert (await wait_for(waiting)).final_output == "done"
        assert (await runtime.store.session("s").check()).ok
        assert len(await runtime.store.session("s").get_items()) == 82
        found = [event.seq async for event in run.events()]
    assert found == list(range(1, len(found) + 1))
    assert made == list(range(40))


async def test_a_runtime_whose_database_is_gone_closes_in_time_and_its_run_continues_later(fragile_postgres):
    made, closing = [], 0.0
    try:
        async with Runtime.open(fragile_postgres.url, agents=[stepping(made, 8, pause=0.1)], lease=1) as runtime:
            run = await runtime.start("support", "go", session_id="s", max_turns=50)
            while len(made) < 3:  # noqa: ASYNC110 - a tool counts
                await asyncio.sleep(0.01)
            await asyncio.to_thread(fragile_postgres.fall)
            await asyncio.sleep(0.2)
            closing = time.monotonic()
        assert time.monotonic() - closing < 60  # and not for as long as the database is gone
    finally:
        await asyncio.to_thread(fragile_postgres.rise)
    async with Runtime.open(fragile_postgres.url, agents=[stepping(made, 8)], lease=1) as runtime:
        run = await runtime.run(run.id)
        while (outcome := await wait_for(run.wait())).status == "waiting":
            for asked in outcome.approvals:
                assert asked.kind == "uncertain"
                await runtime.decide(asked.id, "done", output="it was made")
        assert outcome.final_output == "done"
        assert (await runtime.store.session("s").check()).ok
    assert made == list(range(8))


async def test_an_owner_that_stalls_and_comes_back_writes_nothing(spawn, shared_url, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    async with spawn("stall", shared_url) as stalled:
        assert await stalled.line() == "inside the tool"
        stalled.signal(signal.SIGSTOP)
        async with Runtime.open(shared_url, agents=agents(ledger), lease=LEASE) as runtime:
            run = await runtime.start("shop", "charge", session_id="s", key="order-7")
            [asked] = (await wait_for(run.wait())).approvals
            assert asked.kind == "uncertain"
            await runtime.decide(asked.id, "done", output="receipt")
            assert (await wait_for(run.wait())).final_output == "done"
            before = await everything(runtime, run)
            stalled.signal(signal.SIGCONT)
            assert await stalled.line() == "passed on"
            assert await stalled.end() == 0
            assert await everything(runtime, run) == before
            assert (await runtime.store.session("s").check()).ok


async def everything(runtime, run):
    """All that is stored of a run and its session, leases included."""
    backend = runtime.store.backend
    leases = [await backend.get_lease(name) for name in (f"run:{run.id}", "session:s")]
    return await backend.get_run(run.id), await backend.read_journal(run.id, after=0), await backend.read("s"), leases


@asynccontextmanager
async def limit_entries(url):
    """Let the database refuse long entries of a journal, by a trigger or a constraint, while the block lasts."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.execute(
                "CREATE TRIGGER short BEFORE INSERT ON standfast_journal WHEN length(NEW.data) > 20000"
                " BEGIN SELECT RAISE(ABORT, 'too long'); END"
            )
        yield
        return
    admin = await asyncpg.connect(dsn(url))
    try:
        await admin.execute("ALTER TABLE standfast_journal ADD CONSTRAINT short CHECK (length(data) <= 20000)")
        yield
    finally:
        await admin.execute("ALTER TABLE standfast_journal DROP CONSTRAINT short")
        await admin.close()


async def test_what_the_database_does_not_accept_fails_the_run_and_is_not_retried(shared_url):
    made = []

    @function_tool
    async def read(name: str) -> str:
        made.append(name)
        return name * 30_000

    def rules(request):
        return FunctionModel.call("read", name="x") if len(request.input) == 1 else "done"

    agent = Agent("support", tools=[read], model=FunctionModel(rules))
    async with Runtime.open(shared_url, agents=[agent]) as runtime, limit_entries(shared_url):
        run = await runtime.start("support", "go", session_id="s")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code) == ("failed", "store-refused")
        # The call was made, and its output could not be stored: it is not made again.
        [asked] = (await wait_for((await runtime.resume(run.id)).wait())).approvals
        assert asked.kind == "uncertain"
        await runtime.decide(asked.id, "done", output="short")
        assert (await wait_for(run.wait())).final_output == "done"
        with pytest.raises(StoreRefused, match=r"too long|short"):
            await runtime.start("support", "x" * 30_000, session_id="s")
        assert len(await runtime.runs()) == 1
    assert made == ["x"]
