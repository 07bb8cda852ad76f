"""A run that its runtime can execute at once is created and claimed in one commit, and its readers need no store."""

import asyncio

import pytest

from factories.runtime import wait_for
from standfast import Agent, FunctionModel, Runtime, SessionBusy
from standfast.history.store import Store
from standfast.runtime._engine.written_entries import WrittenEntries
from standfast.store.memory import MemoryBackend
from standfast.store.operations import AcquireLease, AppendJournal, SaveRun
from standfast.store.records import JournalEnd


class RecordingBackend(MemoryBackend):
    """Records commits and reads, and lets a test act after the next read of a session's turn."""

    def __init__(self):
        super().__init__()
        self.commits, self.reads, self.after_turn = [], [], None

    async def commit(self, *ops):
        self.commits.append(ops)
        return await super().commit(*ops)

    async def read_journal(self, run_id, *, after):
        self.reads.append(run_id)
        return await super().read_journal(run_id, after=after)

    async def get_session_turn(self, session_id, *, lease):
        turn = await super().get_session_turn(session_id, lease=lease)
        act, self.after_turn = self.after_turn, None
        if act is not None:
            await act()
        return turn

    def count_run_commits(self):
        return sum(any(isinstance(op, SaveRun | AppendJournal) for op in ops) for ops in self.commits)


def instant(name="support"):
    return Agent(name, model=FunctionModel(lambda request: "done"))


async def test_a_run_is_created_and_claimed_in_one_commit():
    backend = RecordingBackend()
    async with Runtime.open(Store(backend), agents=[instant()]) as runtime:
        for session_id in (None, "s", "s"):
            backend.commits.clear()
            run = await runtime.start("support", "go", session_id=session_id)
            created = next(ops for ops in backend.commits if any(isinstance(op, SaveRun) for op in ops))
            assert any(isinstance(op, AcquireLease) and op.name == f"run:{run.id}" for op in created)
            assert [op.status for op in created if isinstance(op, SaveRun)] == ["running"]
            assert (await wait_for(run.wait())).status == "completed"
            assert backend.count_run_commits() == 3  # start, input, and the answer with the end
        events = [event.type async for event in run.events()]
    assert events == ["run.queued", "run.started", "input.taken", "model.answered", "step.finished", "run.completed"]


async def test_a_reader_in_the_process_that_drives_the_run_does_not_read_the_journal():
    backend = RecordingBackend()
    store = Store(backend)
    async with Runtime.open(store, agents=[instant()]) as runtime, Runtime.open(store) as elsewhere:
        run = await runtime.start("support", "go", session_id="s")
        events = [event async for event in run.events()]
        assert backend.reads == []
        read = [event async for event in (await elsewhere.run(run.id)).events()]
        assert backend.reads == [run.id]
    assert [event for event in events if not event.live] == read


async def test_a_session_that_another_runtime_gets_meanwhile_is_waited_for():
    backend, gate = RecordingBackend(), asyncio.Event()

    async def answer(request):
        await gate.wait()
        return "slow"

    store = Store(backend)
    slow, agent = Agent("slow", model=FunctionModel(answer)), instant()
    async with Runtime.open(store, agents=[slow]) as other, Runtime.open(store, agents=[agent]) as runtime:
        first = None

        async def start_other():
            nonlocal first
            first = await other.start("slow", "go", session_id="s")

        backend.after_turn = start_other
        second = await runtime.start("support", "go", session_id="s")
        assert ((await first.info()).status, (await second.info()).status) == ("running", "queued")
        gate.set()
        assert (await wait_for(first.wait())).final_output == "slow"
        assert (await wait_for(second.wait())).final_output == "done"
        texts = [str(item["content"]) for item in await store.session("s").get_items()]
    assert "slow" in texts[1]
    assert "done" in texts[3]


async def test_a_run_that_must_not_wait_is_refused_if_another_gets_the_session_meanwhile():
    backend, gate = RecordingBackend(), asyncio.Event()

    async def answer(request):
        await gate.wait()
        return "slow"

    store = Store(backend)
    async with Runtime.open(store, agents=[Agent("slow", model=FunctionModel(answer))]) as other:
        async with Runtime.open(store, agents=[instant()]) as runtime:

            async def start_other():
                await other.start("slow", "go", session_id="s")

            backend.after_turn = start_other
            with pytest.raises(SessionBusy):
                await runtime.start("support", "go", session_id="s", on_busy="reject")
            assert [info.agent for info in await runtime.runs()] == ["slow"]
        gate.set()


async def test_a_full_runtime_queues_what_it_cannot_execute():
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return "slow"

    backend = RecordingBackend()
    async with Runtime.open(Store(backend), agents=[Agent("slow", model=FunctionModel(answer))], max_runs=1) as runtime:
        first, second = [await runtime.start("slow", "go", session_id=f"s{number}") for number in range(2)]
        refused = await runtime.start("slow", "go", session_id="s2", on_busy="reject")  # its session is free
        assert [(await run.info()).status for run in (first, second, refused)] == ["running", "queued", "queued"]
        with pytest.raises(SessionBusy):
            await runtime.start("slow", "go", session_id="s2", on_busy="reject")
        gate.set()
        outcomes = await wait_for(asyncio.gather(*(run.wait() for run in (first, second, refused))))
        assert {outcome.status for outcome in outcomes} == {"completed"}


def append(*data):
    return AppendJournal(run_id="r", entries=tuple(("kind", one) for one in data))


def test_entries_of_others_make_what_was_written_incomplete():
    written = WrittenEntries()
    create = SaveRun(run_id="r", expected=0, status="running", data=b"{}")
    written.add([create, append(b"1", b"2")], [None, JournalEnd(2, 1.0)])
    assert written.covers(0)
    assert [row.seq for row in written.rows] == [1, 2]
    written.add([append(b"4")], [JournalEnd(4, 2.0)])  # another process has written the third
    assert not written.covers(0)
    assert not written.covers(3)
    end = SaveRun(run_id="r", expected=1, status="completed", data=b"{}")
    written.add([end, append(b"5")], [None, JournalEnd(5, 3.0)])
    assert written.covers(3)
    assert not written.covers(2)
    assert written.status == "completed"
    written.add([append(b"6")], None)  # it is not known what was written
    assert not written.covers(5)
