"""A process is killed at every point of a run: nothing is lost, and nothing happens twice."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest
from jobs import COMPACTION
from shop import LEASE, SCENARIOS, Ledger, agents, charged, echo

from factories.history import KEY, numbered_messages
from factories.runtime import wait_for
from servers import name_shared_database, prepare_database
from standfast import Runtime
from standfast.testing import assert_replayable

AT_ONCE = 6


async def commits(spawn, url, ledger, scenario, key=None):
    """Return the number of commits of a run without a crash."""
    async with spawn("charge", url, str(ledger), scenario, "", key) as child:
        line = await child.line()
        assert await child.end() == 0
        return int(line)


async def killed(spawn, url, ledger, scenario, point, key=None):
    async with spawn("charge", url, str(ledger), scenario, point, key) as child:
        assert await child.end() == -9, point


async def answered(runtime, asked, ledger):
    """Decide like a person who looks into the ledger: done if the call happened, again if it did not."""
    if asked.kind == "approval":
        await runtime.decide(asked.id, "approve", by="ann")
        return
    if asked.idempotency_key in ledger.lines():
        await runtime.decide(asked.id, "done", output=charged(asked.call_id.removeprefix("charge")), by="ann")
    else:
        await runtime.decide(asked.id, "again", by="ann")


async def completed(runtime, run, ledger):
    while (outcome := await run.wait()).status != "completed":
        assert outcome.status == "waiting"
        assert outcome.error is None
        assert outcome.approvals
        for asked in outcome.approvals:
            await answered(runtime, asked, ledger)
    return outcome


def normalize(items):
    """The conversation without ids and in a fixed order of outputs, to compare runs."""
    plain = [{name: value for name, value in item.items() if name != "id"} for item in items]
    outputs = sorted((item for item in plain if "output" in item), key=lambda item: item["call_id"])
    return [outputs.pop(0) if "output" in item else item for item in plain]


async def finished(url, ledger, scenario, key=None):
    """Let another process finish the run, and hold it to everything that was promised; gives the conversation."""
    async with Runtime.open(url, agents=agents(ledger, scenario), lease=LEASE, encryption_key=key) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        outcome = await wait_for(completed(runtime, run, ledger))
        assert outcome.final_output == "done"
        session = runtime.session("s")
        items = await session.get_items()
        assert (await session.check()).ok
        assert_replayable(items)
        events = [event async for event in run.events()]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.type for event in events].count("run.completed") == 1
        assert events[-1].type == "run.completed"
        assert not await runtime.approvals(status="pending")
        following = await runtime.start("shop", "and now?", session_id="s")
        assert (await wait_for(following.wait())).final_output == "done"
    calls = 3 if scenario == "parallel" else 1
    assert len(ledger.lines()) == len(set(ledger.lines())) == calls
    return normalize(items)


def points(number, scenario):
    orders = range(3 if scenario == "parallel" else 1)
    yield from (f"tool:{when}:{order}" for order in orders for when in ("before", "after"))
    yield from (f"{when}:{n}" for n in range(1, number + 1) for when in ("before", "after"))


class Files:
    """Empty stores, one after the other, and ledgers with them."""

    def __init__(self, folder):
        self.folder, self.numbers = folder, itertools.count(1)

    @asynccontextmanager
    async def empty(self):
        number = next(self.numbers)
        yield f"sqlite:///{self.folder / f'{number}.db'}", Ledger(self.folder / f"{number}.txt")


class Databases(Files):
    """Some databases on a server, emptied before each use."""

    def __init__(self, folder, server):
        super().__init__(folder)
        self.server, self.free = server, [f"{name_shared_database()}_{n}" for n in range(AT_ONCE)]

    @asynccontextmanager
    async def empty(self):
        name = self.free.pop()
        try:
            yield await prepare_database(self.server, name), Ledger(self.folder / f"{next(self.numbers)}.txt")
        finally:
            self.free.append(name)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def databases(tmp_path, postgres_server):
    return Databases(tmp_path, postgres_server)


async def every_point(spawn, places, scenario, *, step=1, key=None):
    """Kill the run at each point, each in a store of its own: several at once, for most of the time is waiting."""
    async with places.empty() as (url, ledger):
        number = await commits(spawn, url, ledger.path, scenario, key)
        whole = await finished(url, ledger, scenario, key)
    assert number > 5
    gate = asyncio.Semaphore(AT_ONCE)

    async def survives(point):
        async with gate, places.empty() as (url, ledger):
            try:
                await killed(spawn, url, ledger.path, scenario, point, key)
                assert await finished(url, ledger, scenario, key) == whole
            except Exception as problem:
                problem.add_note(f"{scenario}, killed at {point}")
                raise

    async with asyncio.TaskGroup() as group:
        for point in list(points(number, scenario))[::step]:
            group.create_task(survives(point))


async def test_a_kill_at_any_point_costs_nothing(spawn, files):
    await every_point(spawn, files, "parallel")


async def test_a_kill_costs_nothing_on_a_server(spawn, databases):
    await every_point(spawn, databases, "approval", step=3)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_kill_at_any_point_of_any_run_costs_nothing(spawn, files, scenario):
    await every_point(spawn, files, scenario)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_kill_at_any_point_of_any_run_costs_nothing_on_a_server(spawn, databases, scenario):
    await every_point(spawn, databases, scenario)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_kill_of_an_encrypted_run_costs_nothing(spawn, files, step):
    await every_point(spawn, files, "approval", step=step, key=KEY)


async def test_a_kill_of_an_encrypted_run_costs_nothing_on_a_server(spawn, databases):
    await every_point(spawn, databases, "approval", step=4, key=KEY)


async def compacted(spawn, url, point, key):
    """Kill a run that compacts its session, let another process finish it, and check what is stored."""
    async with Runtime.open(url, encryption_key=key) as runtime:
        await runtime.session("s").add_items(numbered_messages(8))
    async with spawn("ask_with_compaction", url, point, key) as child:
        line = await child.line()
        assert await child.end() == (-9 if point else 0), point
    options = {"lease": LEASE, "encryption_key": key, "compaction": COMPACTION}
    async with Runtime.open(url, agents=[echo()], **options) as runtime:
        run = await runtime.start("echo", "the question", session_id="s", key="question-1")
        assert (await wait_for(run.wait())).status == "completed"
        items = await runtime.session("s").get_items()
        assert items[0]["content"].endswith("about 5 items")
        assert items[1:4] == numbered_messages(3, 5)
        assert [item["role"] for item in items[4:]] == ["user", "assistant"]
        [generation] = await runtime.session("s").generations()
        assert (await runtime.session("s").get_items(generation=generation.number))[:8] == numbered_messages(8)
        assert [event.type async for event in run.events()].count("session.compacted") == 1
        assert (await runtime.session("s").check()).ok
    return line


@pytest.mark.parametrize(
    ("key", "step"),
    [(None, 1), (KEY, 4), pytest.param(KEY, 1, marks=pytest.mark.soak)],
    ids=["plain", "encrypted", "encrypted, every point"],
)
async def test_a_kill_while_a_session_is_compacted_loses_nothing_and_leaves_one_summary(spawn, files, key, step):
    async with files.empty() as (url, _):
        number = int(await compacted(spawn, url, "", key))
    for point in [f"{when}:{n}" for n in range(1, number + 1) for when in ("before", "after")][::step]:
        async with files.empty() as (url, _):
            await compacted(spawn, url, point, key)


async def test_a_kill_while_a_session_is_compacted_loses_nothing_on_a_server(spawn, databases):
    for point in ("before:3", "after:3", "before:4", "after:4"):
        async with databases.empty() as (url, _):
            await compacted(spawn, url, point, KEY)
