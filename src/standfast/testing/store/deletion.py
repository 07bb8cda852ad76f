"""Store contract: deleting runs with everything that belongs to them."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from standfast.base.errors import NotFound, RunMoved, RunShared
from standfast.store.backend import Backend
from standfast.store.operations import AppendEvents, AppendJournal, DeleteRun, Erase, SaveRun, Splice
from standfast.testing.store.approvals import make_approval
from standfast.testing.store.fixtures import StoreFixtures, dump_backend, read_data
from standfast.testing.store.runs import make_run


async def write_run(backend: Backend, run_id: str, **options: Any) -> None:
    """Create a run with a journal, events and an approval."""
    await backend.commit(
        make_run(run_id, **options),
        AppendJournal(run_id=run_id, entries=(("started", b"1"), ("ended", b"2"))),
        AppendEvents(run_id=run_id, events=(("message", b"x"),)),
        make_approval(f"approval of {run_id}", run_id=run_id),
    )


def make_fork(run_id: str, parent: str) -> SaveRun:
    return replace(make_run(run_id), parent=parent)


class RunDeletionClauses(StoreFixtures):
    """A run is deleted with its journal, events and approvals, and only at the revision that its deleter has read."""

    async def test_a_deleted_run_takes_its_logs_and_approvals_along(self, run_backend: Backend) -> None:
        await write_run(run_backend, "kept")
        before = await dump_backend(run_backend)
        await write_run(run_backend, "gone", session_id="s")
        assert await run_backend.commit(DeleteRun(run_id="gone", expected=1)) == [None]
        assert await dump_backend(run_backend) == before
        assert await run_backend.read_journal("gone", after=0) == []
        assert await run_backend.read_events("gone", after=0, limit=9) == []
        assert await run_backend.list_approvals(status=None, run_id="gone", session_id=None, limit=9, after="") == []

    @pytest.mark.parametrize("expected", [0, 2])
    async def test_a_run_at_another_revision_is_not_deleted(self, run_backend: Backend, expected: int) -> None:
        await write_run(run_backend, "r")
        before = await dump_backend(run_backend)
        with pytest.raises(RunMoved) as moved:
            await run_backend.commit(DeleteRun(run_id="r", expected=expected))
        assert (moved.value.name, moved.value.expected, moved.value.found) == ("r", expected, 1)
        assert await dump_backend(run_backend) == before

    async def test_a_missing_run_is_at_revision_0(self, run_backend: Backend) -> None:
        with pytest.raises(RunMoved):
            await run_backend.commit(DeleteRun(run_id="r", expected=1))
        await run_backend.commit(make_approval("standing", run_id="r"))
        await run_backend.commit(DeleteRun(run_id="r", expected=0))
        assert await run_backend.get_approval("standing") is None

    async def test_a_deletion_is_undone_with_its_commit(self, run_backend: Backend) -> None:
        await write_run(run_backend, "r")
        before = await dump_backend(run_backend)
        with pytest.raises(RunMoved):
            await run_backend.commit(DeleteRun(run_id="r", expected=1), make_run("other"), make_run("other"))
        assert await dump_backend(run_backend) == before

    async def test_a_session_and_its_runs_are_deleted_in_one_commit(self, run_backend: Backend) -> None:
        await run_backend.commit(Splice(session_id="s", add=(b"a",)))
        await write_run(run_backend, "r", session_id="s")
        await run_backend.commit(Erase(session_id="s", forget=True), DeleteRun(run_id="r", expected=1))
        assert (await run_backend.get_session("s"), await run_backend.get_run("r")) == (None, None)
        assert await read_data(run_backend, "s") == []

    async def test_the_id_of_a_deleted_run_can_be_used_again(self, run_backend: Backend) -> None:
        await write_run(run_backend, "r")
        last = await run_backend.get_run("r")
        await run_backend.commit(DeleteRun(run_id="r", expected=1))
        await run_backend.commit(make_run("r"))
        run = await run_backend.get_run("r")
        assert last is not None
        assert run is not None
        assert (run.revision, run.journal_length, run.event_length) == (1, 0, 0)
        assert run.order > last.order
        with pytest.raises(NotFound):
            await run_backend.commit(
                DeleteRun(run_id="r", expected=1), AppendJournal(run_id="r", entries=(("late", b""),))
            )

    async def test_a_run_is_not_deleted_while_a_fork_shares_its_journal(self, run_backend: Backend) -> None:
        await write_run(run_backend, "parent")
        await run_backend.commit(make_fork("fork", "parent"))
        with pytest.raises(RunShared) as shared:
            await run_backend.commit(DeleteRun(run_id="parent", expected=1))
        assert (shared.value.run_id, shared.value.fork_id) == ("parent", "fork")
        fork = await run_backend.get_run("fork")
        assert fork is not None
        assert fork.parent == "parent"
        await run_backend.commit(SaveRun(run_id="fork", expected=1, status="done", data=b"2"))
        with pytest.raises(RunShared):
            await run_backend.commit(DeleteRun(run_id="parent", expected=1))
        await run_backend.commit(DeleteRun(run_id="fork", expected=2), DeleteRun(run_id="parent", expected=1))
        assert await run_backend.list_runs(status=None, session_id=None, limit=9, after=0) == []

    async def test_a_run_is_not_forked_after_it_was_deleted(self, run_backend: Backend) -> None:
        with pytest.raises(NotFound) as missing:
            await run_backend.commit(make_fork("fork", "parent"))
        assert (missing.value.what, missing.value.name) == ("run", "parent")
        assert await run_backend.get_run("fork") is None

    async def test_a_run_is_either_deleted_or_forked(self, run_backend: Backend) -> None:
        for attempt in range(8):
            parent, fork = f"parent {attempt}", f"fork {attempt}"
            await write_run(run_backend, parent)
            answers = await asyncio.gather(
                run_backend.commit(make_fork(fork, parent)),
                run_backend.commit(DeleteRun(run_id=parent, expected=1)),
                return_exceptions=True,
            )
            found = [await run_backend.get_run(name) is not None for name in (parent, fork)]
            assert found in ([True, True], [False, False])
            assert sum(isinstance(answer, NotFound | RunShared) for answer in answers) == 1
