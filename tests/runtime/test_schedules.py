"""Schedules start runs once at their times, in whichever runtime is alive."""

import asyncio
import json
import sys
from datetime import UTC, datetime

import msgspec
import pytest

from factories.runtime import wait_for, wait_until
from standfast import Agent, FunctionModel, Runtime, Store, function_tool
from standfast.base.errors import InvalidInput, NotFound, WrongKey
from standfast.store.memory import MemoryBackend
from standfast.store.operations import PutDocument
from standfast.testing.faults import FakeClock

NOON = datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp()
"""The Friday before the clocks of Europe are set ahead."""


def echo(name="echo"):
    return Agent(name, model=FunctionModel(lambda request: request.input[-1]["content"]))


class Clockwork:
    """Runtimes on one store whose clock is set by the test."""

    def __init__(self):
        self.clock = FakeClock(NOON)
        self.store = Store(MemoryBackend(clock=self.clock))

    def open(self, *agents, **options):
        return Runtime.open(self.store, agents=agents, **options)

    async def set_time(self, at, *runtimes, name="report"):
        """Let the runtimes look at the schedules at this time."""
        self.clock.now = at
        await asyncio.gather(*(runtime.schedules.resume(name) for runtime in runtimes))


@pytest.fixture
def clockwork():
    return Clockwork()


async def list_outputs(runtime):
    handles = [await runtime.run(run.run_id) for run in await runtime.runs()]
    return [(await wait_for(handle.wait())).final_output for handle in handles]


async def test_a_run_starts_every_second_once_for_all_runtimes(shared_url):
    async with (
        Runtime.open(shared_url, agents=[echo()]) as first,
        Runtime.open(shared_url, agents=[echo()]) as second,
        Runtime.open(shared_url) as without_agents,
    ):
        made = await without_agents.schedules.set("tick", "echo", "tick", every=1)
        for runtime in (first, second):
            await runtime.schedules.resume("tick")

        async def has_run_twice():
            return len(await first.runs()) >= 2

        await wait_until(has_run_twice)
        await first.schedules.pause("tick")
        runs = await first.runs()
        assert set(await list_outputs(first)) == {"tick"}
        times = [float(run.key.split()[-1]) for run in runs]
        assert times == sorted(set(times))
        assert all((time - made.created_at) % 1 < 0.001 or (time - made.created_at) % 1 > 0.999 for time in times)
        found = await second.schedules.get("tick")
        assert (found.is_paused, found.last_run_id) == (True, runs[-1].run_id)
        await second.schedules.delete("tick")
        assert await first.schedules.list() == []
        assert len(await first.runs()) == len(runs)


async def test_a_missed_time_is_made_up_for_once(clockwork):
    async with clockwork.open() as runtime:
        await runtime.schedules.set("report", "echo", "write", every=60)
    clockwork.clock.now = NOON + 600.5
    async with clockwork.open(echo()) as first, clockwork.open(echo()) as second:

        async def has_run():
            return bool(await first.runs())

        await wait_until(has_run)
        await clockwork.set_time(NOON + 601, first, second)
        assert await list_outputs(first) == ["write"]
        assert (await first.schedules.get("report")).next_at == NOON + 660
        await clockwork.set_time(NOON + 661, first, second)

        async def has_run_again():
            return len(await first.runs()) == 2

        await wait_until(has_run_again)


async def test_a_time_is_skipped_while_the_last_run_has_not_ended(clockwork):
    free = asyncio.Event()

    @function_tool
    async def work() -> str:
        await free.wait()
        return "worked"

    def decide(request):
        return "done" if request.input[-1].get("type") == "function_call_output" else FunctionModel.call("work")

    worker = Agent("worker", tools=[work], model=FunctionModel(decide))
    async with clockwork.open(worker) as runtime:
        await runtime.schedules.set("report", "worker", "work", every=60)
        await runtime.schedules.set("patient", "worker", "work", every=60, overlap=True)

        def condition(runs, skipped):
            async def holds():
                await runtime.schedules.resume("report")
                return (len(await runtime.runs()), (await runtime.schedules.get("report")).skipped) == (runs, skipped)

            return wait_until(holds)

        clockwork.clock.now = NOON + 61
        await condition(2, 0)
        clockwork.clock.now = NOON + 121
        await condition(3, 1)
        clockwork.clock.now = NOON + 181
        await condition(4, 2)
        free.set()
        await list_outputs(runtime)
        clockwork.clock.now = NOON + 241
        await condition(6, 0)


async def test_cron_is_read_in_its_time_zone_also_when_clocks_change(clockwork):
    async with clockwork.open() as runtime:
        schedule = await runtime.schedules.set("report", "echo", "write", cron="30 9 * * 1-5", timezone="Europe/Berlin")
        monday = datetime(2026, 3, 30, 7, 30, tzinfo=UTC).timestamp()  # 9:30 there, since clocks were set ahead
        assert schedule.next_at == monday
        utc = await runtime.schedules.set("report", "echo", "write", cron="0 13 * * *")
        assert utc.next_at == NOON + 3600


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "either cron= or every="),
        ({"cron": "* * * * *", "every": 5}, "either cron= or every="),
        ({"every": 0}, "every must be"),
        ({"every": True}, "every must be"),
        ({"every": float("nan")}, "every must be"),
        ({"cron": "61 * * * *"}, "five fields"),
        ({"cron": "0 0 30 2 *"}, "five fields"),
        ({"cron": ""}, "five fields"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "time zone"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "time zone"),
        ({"every": 5, "max_turns": "many"}, "max_turns"),
    ],
)
async def test_what_never_comes_due_is_refused(clockwork, options, problem):
    async with clockwork.open() as runtime:
        with pytest.raises(InvalidInput, match=problem):
            await runtime.schedules.set("report", "echo", "write", **options)
        assert await runtime.schedules.list() == []


async def test_names_that_do_not_exist_are_refused(clockwork):
    async with clockwork.open(echo()) as runtime:
        with pytest.raises(NotFound, match="agent"):
            await runtime.schedules.set("report", "nobody", "write", every=5)
        for use in (runtime.schedules.get, runtime.schedules.pause, runtime.schedules.resume, runtime.schedules.delete):
            with pytest.raises(NotFound, match="schedule"):
                await use("report")
        with pytest.raises(InvalidInput, match="100 characters"):
            await runtime.schedules.set("n" * 101, "echo", "write", every=5)


async def test_runs_of_a_schedule_share_its_session_or_have_sessions_of_its_owner(clockwork):
    async with clockwork.open(echo()) as runtime:
        await runtime.schedules.set("report", "echo", "one", every=60, session_id="diary", owner="ann")
        await runtime.schedules.set("other", "echo", "two", every=60, owner="bob")
        await clockwork.set_time(NOON + 61, runtime)

        async def have_run():
            return len(await runtime.runs()) == 2

        await wait_until(have_run)
        await list_outputs(runtime)
        sessions = {one.session_id: one.owner for one in await runtime.store.sessions()}
        assert sessions.pop("diary") == "ann"
        [(name, owner)] = sessions.items()
        assert (name.startswith("other run_"), owner) == (True, "bob")


async def test_a_start_that_is_refused_is_shown_and_tried_again_at_the_next_time(clockwork):
    async with clockwork.open(echo()) as runtime:
        await runtime.store.session("diary", owner="bob").add_items([{"role": "user", "content": "hello"}])
        await runtime.schedules.set("report", "echo", "one", every=60, session_id="diary", owner="ann")

        async def is_refused():
            await runtime.schedules.resume("report")
            return (await runtime.schedules.get("report")).problem is not None

        clockwork.clock.now = NOON + 61
        await wait_until(is_refused)
        found = await runtime.schedules.get("report")
        assert "has another owner" in found.problem.message
        assert (found.next_at, await runtime.runs()) == (NOON + 120, [])
        await runtime.store.set_owner("diary", "ann")
        await clockwork.set_time(NOON + 121, runtime)

        async def has_run():
            return bool(await runtime.runs())

        await wait_until(has_run)
        assert (await runtime.schedules.get("report")).problem is None


async def test_a_schedule_of_an_encrypted_runtime_is_encrypted_and_rekeyed(clockwork):
    async with clockwork.open(echo(), encryption_key="a key of sixteen letters") as runtime:
        await runtime.schedules.set("report", "echo", "the secret text", every=60)
    [document] = await clockwork.store.backend.list_documents("schedule", limit=10)
    assert b"secret" not in document.data
    async with clockwork.open(echo()) as other:
        [shown] = await other.schedules.list()
        assert (shown.name, shown.locked, shown.input) == ("report", True, "")
        with pytest.raises(WrongKey, match="report"):
            await other.schedules.pause("report")
        await clockwork.store.backend.commit(PutDocument(kind="schedule", key="moved", data=document.data))
    keys = ["another key of sixteen letters", "a key of sixteen letters"]
    async with clockwork.open(echo(), encryption_key=keys) as runtime:
        await runtime.rekey()
    async with clockwork.open(echo(), encryption_key=keys[0]) as runtime:
        [moved, shown] = await runtime.schedules.list()
        assert (moved.name, moved.locked) == ("moved", True)
        assert (shown.name, shown.input) == ("report", "the secret text")
        await runtime.schedules.delete("moved")
        await clockwork.set_time(NOON + 61, runtime)

        async def has_run():
            return bool(await runtime.runs())

        await wait_until(has_run)
        assert await list_outputs(runtime) == ["the secret text"]


async def test_a_runtime_without_the_library_for_cron_starts_the_other_schedules(clockwork, monkeypatch, caplog):
    async with clockwork.open(echo()) as runtime:
        await runtime.schedules.set("a-cron", "echo", "by cron", cron="0 13 * * *")
        await runtime.schedules.set("report", "echo", "by seconds", every=60)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "cronsim", None)  # as if it was not installed
            await clockwork.set_time(NOON + 3601, runtime)

            async def has_run():
                return bool(await runtime.runs())

            await wait_until(has_run)
            assert await list_outputs(runtime) == ["by seconds"]
            assert "'a-cron' is left to other runtimes" in caplog.text
        await runtime.schedules.resume("a-cron")

        async def has_run_too():
            return len(await runtime.runs()) == 2

        await wait_until(has_run_too)


async def test_a_schedule_is_plain_data(clockwork):
    async with clockwork.open() as runtime:
        made = await runtime.schedules.set("report", "echo", [{"role": "user", "content": "hi"}], every=60)
    assert json.loads(msgspec.json.encode(made)) == {
        "name": "report",
        "agent": "echo",
        "input": [{"role": "user", "content": "hi"}],
        "every": 60.0,
        "max_turns": 10,
        "created_at": NOON,
        "next_at": NOON + 60,
    }
