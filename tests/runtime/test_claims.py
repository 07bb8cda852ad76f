"""Capacity, fairness and priorities of runtimes that share a store, and the races that other systems had."""

import asyncio
import time
from collections import Counter

import msgspec
import pytest
from sqlalchemy import text

from factories.runtime import completed, wait_for, wait_until
from standfast import Agent, FunctionModel, Runtime, Store, function_tool
from standfast.base.errors import InvalidInput
from standfast.runtime._engine.records import JournalEntry, RunHeader, RunQueued, encode, encode_entry
from standfast.store.memory import MemoryBackend
from standfast.store.operations import AppendJournal, DeleteRun, MoveBehind, SaveRun
from standfast.store.sql import run_queries
from standfast.store.urls import open_backend
from standfast.testing.faults import FakeClock


class Gate:
    """An agent whose runs wait in a tool until they are released, and the order in which they started."""

    def __init__(self, name="gate"):
        self.started, self.free = [], asyncio.Event()

        @function_tool
        async def pass_gate(who: str) -> str:
            self.started.append(who)
            await self.free.wait()
            return "passed"

        def decide(request):
            last = request.input[-1]
            if last.get("type") == "function_call_output":
                return "done"
            return FunctionModel.call("pass_gate", who=last["content"])

        self.agent = Agent(name, tools=[pass_gate], model=FunctionModel(decide))

    def has_started(self, count):
        async def condition():
            return len(self.started) >= count

        return wait_until(condition)


def echo(name="echo"):
    return Agent(name, model=FunctionModel(lambda request: request.input[-1]["content"]))


async def test_a_runtime_executes_as_many_runs_as_it_may(shared_url):
    gate = Gate()
    async with Runtime.open(shared_url, agents=[gate.agent], max_runs=2) as runtime:
        runs = [await runtime.start("gate", f"{n}") for n in range(5)]
        await gate.has_started(2)
        assert runtime.count_executing() == 2
        [queue] = await runtime.queues()
        assert (queue.agent, queue.ready, queue.behind, queue.is_served) == ("gate", 3, 0, True)
        gate.free.set()
        await wait_for(asyncio.gather(*(run.wait() for run in runs)))
        assert sorted(gate.started[:2]) == ["0", "1"], "the oldest come first; two at once begin in any order"
        assert sorted(gate.started) == ["0", "1", "2", "3", "4"]
        assert await runtime.queues() == []


async def test_a_run_that_waits_for_a_person_leaves_its_place(shared_url):
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    def decide(request):
        return "done" if request.input[-1].get("type") == "function_call_output" else FunctionModel.call("pay")

    payer = Agent("payer", tools=[pay], model=FunctionModel(decide))
    async with Runtime.open(shared_url, agents=[payer, echo()], max_runs=1) as runtime:
        paying = await runtime.start("payer", "pay")
        assert (await wait_for(paying.wait())).status == "waiting"
        assert (await wait_for((await runtime.start("echo", "hi")).wait())).final_output == "hi"
        [approval] = await runtime.approvals()
        await runtime.decide(approval.id, "approve")
        assert (await wait_for(paying.wait())).final_output == "done"


async def test_owners_take_turns_regardless_of_arrival(shared_url):
    gate = Gate()
    async with Runtime.open(shared_url, agents=[gate.agent], max_runs=1) as runtime:
        runs = [await runtime.start("gate", "first")]
        await gate.has_started(1)
        runs += [await runtime.start("gate", f"ann-{n}", session_id=f"ann-{n}", owner="ann") for n in range(4)]
        runs += [await runtime.start("gate", f"{one}-0", session_id=one, owner=one) for one in ("bob", "cy")]
        gate.free.set()
        await wait_for(asyncio.gather(*(run.wait() for run in runs)))
    assert gate.started[0] == "first"
    assert [who.split("-")[0] for who in gate.started[1:4]] == ["ann", "bob", "cy"]
    assert gate.started[4:] == ["ann-1", "ann-2", "ann-3"]


async def test_a_session_with_many_messages_does_not_keep_others_waiting(shared_url):
    gate = Gate()
    async with Runtime.open(shared_url, agents=[gate.agent], max_runs=1) as runtime:
        runs = [await runtime.start("gate", f"chatty-{n}", session_id="chatty") for n in range(4)]
        await gate.has_started(1)
        runs.append(await runtime.start("gate", "quiet", session_id="quiet"))
        gate.free.set()
        await wait_for(asyncio.gather(*(run.wait() for run in runs)))
    assert gate.started.index("quiet") <= 2
    assert [who for who in gate.started if who != "quiet"] == [f"chatty-{n}" for n in range(4)]


async def test_a_higher_priority_is_claimed_first(shared_url):
    gate = Gate()
    async with Runtime.open(shared_url, agents=[gate.agent], max_runs=1) as runtime:
        runs = [await runtime.start("gate", "running")]
        await gate.has_started(1)
        for who, priority in ("low", -1), ("usual", 0), ("urgent", 10):
            runs.append(await runtime.start("gate", who, priority=priority))
        gate.free.set()
        await wait_for(asyncio.gather(*(run.wait() for run in runs)))
    assert gate.started == ["running", "urgent", "usual", "low"]
    async with Runtime.open("memory://", agents=[gate.agent]) as runtime:
        for wrong in (1.5, 10**9, True):
            with pytest.raises(InvalidInput, match="priority"):
                await runtime.start("gate", "x", priority=wrong)
    with pytest.raises(InvalidInput, match="max_runs"):
        await Runtime.open("memory://", max_runs=0)


async def test_a_full_runtime_hands_its_runs_to_another_at_once(shared_url):
    gate, other = Gate(), Gate()
    async with Runtime.open(shared_url, agents=[gate.agent], max_runs=1, lease=60) as busy:
        first = await busy.start("gate", "first")
        await gate.has_started(1)
        async with Runtime.open(shared_url, agents=[other.agent], max_runs=1, lease=60) as idle:
            second = await busy.start("gate", "second")
            await other.has_started(1)
            assert idle.count_executing() == 1
            gate.free.set()
            other.free.set()
            assert [(await wait_for(run.wait())).final_output for run in (first, second)] == ["done", "done"]
            assert {one.max_runs for one in await busy.runtimes()} == {1}


async def test_runtimes_share_what_waits_and_no_run_is_claimed_twice(shared_url):
    count, runtimes = 60, 4
    async with Runtime.open(shared_url) as asking:
        opened = [await Runtime.open(shared_url, agents=[echo()], max_runs=3) for _ in range(runtimes)]
        try:
            runs = [await opened[n % runtimes].start("echo", f"{n}") for n in range(count)]
            await wait_for(asyncio.gather(*(run.wait() for run in runs)))
            claims = Counter()
            for run in runs:
                kinds = [event.type async for event in (await asking.run(run.id)).events()]
                claims.update(kind for kind in kinds if kind in ("run.started", "run.recovered", "run.continued"))
            assert claims == {"run.started": count}
        finally:
            for runtime in opened:
                await runtime.close()


async def test_a_run_that_was_left_behind_by_a_dead_process_is_offered_again(shared_url):
    """The process died between the end of a run and the offer of the next one of its session."""
    async with Runtime.open(shared_url) as first:
        backend, queue = first._ctx.backend, first._ctx.name_queue("echo")
        header = encode(RunHeader("echo", "digest"))
        entry = encode_entry(JournalEntry(RunQueued("hi")))
        await backend.commit(
            SaveRun(run_id="run_left", expected=0, status="queued", data=header, session_id="s", queue=queue),
            AppendJournal(run_id="run_left", entries=(entry,)),
            MoveBehind(run_id="run_left", behind=True),
        )
    async with Runtime.open(shared_url, agents=[echo()], lease=0.4) as runtime:
        await wait_until(completed(await runtime.run("run_left")))


async def test_a_run_of_an_agent_that_another_runtime_has_waits_for_it_instead_of_being_blocked(shared_url):
    gate = Gate()
    async with (
        Runtime.open(shared_url, agents=[gate.agent], max_runs=1),
        Runtime.open(shared_url, agents=[echo()], lease=0.3) as other,  # it blocks what nobody serves after two leases
        Runtime.open(shared_url, agents=[gate.agent], max_runs=1) as asking,
    ):
        runs = [await asking.start("gate", f"{n}") for n in range(3)]
        await gate.has_started(2)
        seen = time.monotonic()
        while time.monotonic() < seen + 2:
            await (await other.run(runs[2].id)).info()
            await asyncio.sleep(0.05)
        assert (await runs[2].info()).status == "queued"
        gate.free.set()
        await wait_for(asyncio.gather(*(run.wait() for run in runs)))


# --- the races of other systems -----------------------------------------------------------------------


async def test_dbos_716_no_run_is_stranded_by_a_restart_of_the_database(postgres_tables_url):
    """A run that was pending while the database restarted stayed so for ever."""
    gate, watching = Gate(), await open_backend(postgres_tables_url)
    try:
        others = await list_connections(watching)
        async with Runtime.open(postgres_tables_url, agents=[gate.agent], max_runs=1, lease=1) as runtime:
            runs = [await runtime.start("gate", f"{n}", session_id=f"s{n % 2}") for n in range(4)]
            await gate.has_started(1)
            for pid in await list_connections(watching) - others:
                await run_statement(watching, f"SELECT pg_terminate_backend({pid})")
            gate.free.set()
            await wait_for(asyncio.gather(*(run.wait() for run in runs)))
            assert sorted(gate.started) == ["0", "1", "2", "3"]
    finally:
        await watching.close()


async def list_connections(backend):
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    return {row[0] for row in await run_statement(backend, query)}


async def run_statement(backend, statement):
    async with backend.engine.connect() as connection:
        return (await connection.execute(text(statement))).all()


async def test_dbos_742_recovery_takes_no_run_whose_owner_is_alive(shared_url):
    """Recovery ran work that another process owned and was executing."""
    gate = Gate()
    async with Runtime.open(shared_url, agents=[gate.agent], lease=2) as owner:
        run = await owner.start("gate", "mine")
        await gate.has_started(1)
        async with Runtime.open(shared_url, agents=[gate.agent], lease=2) as other:
            expiries = set()
            while len(expiries) < 5:  # renewed again and again, past the first lease
                expiries.add((await other._ctx.backend.get_lease(f"run:{run.id}")).expires_at)
                assert not other.is_executing(run.id)
                await asyncio.sleep(0.02)
            gate.free.set()
            assert (await wait_for(run.wait())).final_output == "done"
    assert gate.started == ["mine"]


async def test_dbos_804_what_a_draining_process_releases_is_continued_and_never_by_itself(shared_url):
    """A draining executor recovered its own work under an id that it shared with its successor."""
    gate, successor = Gate(), Gate()
    old = await Runtime.open(shared_url, agents=[gate.agent], max_runs=2, lease=30)
    runs = [await old.start("gate", f"{n}") for n in range(4)]
    await gate.has_started(2)
    async with Runtime.open(shared_url, agents=[successor.agent], max_runs=2, lease=30) as new:
        assert new._ctx.runtime_id != old._ctx.runtime_id
        successor.free.set()
        closing = asyncio.create_task(old.close())
        gate.free.set()
        await closing
        assert old.count_executing() == 0
        handles = [await new.run(run.id) for run in runs]
        await wait_for(asyncio.gather(*(handle.wait() for handle in handles)))
        for run_id in (run.id for run in runs):
            lease = await new._ctx.backend.get_lease(f"run:{run_id}")
            assert lease is None or not lease.owner
    assert sorted(gate.started + successor.started) == ["0", "1", "2", "3"]


async def test_celery_5935_a_call_longer_than_the_lease_is_made_once(shared_url):
    """A task that took longer than the visibility timeout was delivered to a second worker."""
    gate = Gate()
    async with (
        Runtime.open(shared_url, agents=[gate.agent], lease=2) as one,
        Runtime.open(shared_url, agents=[gate.agent], lease=2),
    ):
        run = await one.start("gate", "long")
        await gate.has_started(1)
        first = (await one._ctx.backend.get_lease(f"run:{run.id}")).expires_at
        while (await one._ctx.backend.get_lease(f"run:{run.id}")).expires_at < first + 2:  # past the first lease
            assert (await run.info()).status == "running"
            await asyncio.sleep(0.05)
        gate.free.set()
        assert (await wait_for(run.wait())).final_output == "done"
    assert gate.started == ["long"]


# --- clocks -----------------------------------------------------------------------------------------


async def test_a_clock_that_is_set_ahead_takes_no_run_from_a_live_owner():
    clock = FakeClock()
    backend, gate = MemoryBackend(clock=clock), Gate()
    async with Runtime.open(Store(backend), agents=[gate.agent], lease=0.6) as owner:
        run = await owner.start("gate", "mine")
        await gate.has_started(1)
        async with Runtime.open(Store(backend), agents=[gate.agent], lease=0.6) as other:
            clock.advance(3600)
            before = (await backend.get_lease(f"run:{run.id}")).expires_at
            while (await backend.get_lease(f"run:{run.id}")).expires_at == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not other.is_executing(run.id)
            gate.free.set()
            assert (await wait_for(run.wait())).final_output == "done"
    kinds = [event async for event in _list_kinds(backend, run.id)]
    assert "run.recovered" not in kinds
    assert gate.started == ["mine"]


async def _list_kinds(backend, run_id):
    async with Runtime.open(Store(backend)) as runtime:
        async for event in (await runtime.run(run_id)).events():
            yield event.type


# --- the cost of a claim ------------------------------------------------------------------------------


async def fill_queue(backend, count, *, shares=50):
    header, entry = encode(RunHeader("echo", "digest")), encode_entry(JournalEntry(RunQueued("hi")))
    for start in range(0, count, 500):
        ops = []
        for n in range(start, min(start + 500, count)):
            save = SaveRun(
                run_id=f"run_{n:06}", expected=0, status="queued", data=header, queue="echo", share=f"o{n % shares}"
            )
            ops += [save, AppendJournal(run_id=save.run_id, entries=(entry,))]
        await backend.commit(*ops)


async def count_buffers(backend, limit=10):
    """Return how many pages PostgreSQL touches to find the next runs, after what it knows of the table is fresh."""
    touched = 0

    class Counting:
        """The connection, with each statement explained instead of guessed."""

        def __init__(self, connection):
            self._connection = connection

        def fetch_all(self, query, params):
            nonlocal touched
            plan = self._connection.fetch_all("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, params)[0][0]
            plan = msgspec.json.decode(plan) if isinstance(plan, str | bytes) else plan
            touched += plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
            return self._connection.fetch_all(query, params)

        def fetch_one(self, query, params):
            found = self.fetch_all(query, params)
            return found[0] if found else None

    async with backend.engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await autocommit.execute(text("VACUUM ANALYZE"))
    found = await backend.run_query(
        lambda connection: run_queries.list_claimable(Counting(connection), ["echo", ""], limit=limit, after="o3")
    )
    assert len(found) == limit
    return touched


async def test_finding_a_run_costs_the_same_with_a_hundred_times_as_many(postgres_tables_url):
    backend = await open_backend(postgres_tables_url)
    try:
        await fill_queue(backend, 100)
        few = await count_buffers(backend)
        for n in range(100):
            await backend.commit(SaveRun(run_id=f"run_{n:06}", expected=1, status="completed", data=b"{}"))
    finally:
        await backend.close()
    backend = await open_backend(postgres_tables_url)
    try:
        await backend.commit(*(DeleteRun(run_id=f"run_{n:06}", expected=2) for n in range(100)))
        await fill_queue(backend, 10_000)
        many = await count_buffers(backend)
    finally:
        await backend.close()
    # Of a deeper index, a probe reads one or two pages more.
    assert many <= 3 * few, (few, many)
