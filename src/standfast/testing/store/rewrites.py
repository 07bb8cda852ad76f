"""Store contract: the bytes of encrypted runs and of workspaces are replaced in place."""

import pytest
from msgspec.structs import replace

from standfast.base.errors import JournalMoved, NotFound, WorkspaceMoved
from standfast.store.backend import Backend
from standfast.store.operations import AppendEvents, AppendJournal, RewriteRun, RewriteVersions
from standfast.testing.store.fixtures import StoreFixtures
from standfast.testing.store.runs import make_run
from standfast.testing.store.workspaces import make_versions


class RewriteClauses(StoreFixtures):
    """A rewrite replaces all bytes at once, and is refused if anything was added since they were read."""

    async def test_the_bytes_of_a_run_are_replaced_and_nothing_else(self, run_backend: Backend) -> None:
        journal = AppendJournal(run_id="r", entries=(("started", b"1"), ("ended", b"2")), expected=0, seal=b"\x00old")
        await run_backend.commit(
            make_run("r"), make_run("other"), journal, AppendEvents(run_id="r", events=(("x", b"3"),))
        )
        run, entries = await run_backend.get_run("r"), await run_backend.read_journal("r", after=0)
        other = await run_backend.get_run("other")
        assert run is not None
        op = RewriteRun(
            run_id="r", data=b"\x00h", journal=(b"\x00a", b"b"), events=(b"c",), previous_seal=b"\x00old", seal=b"new"
        )
        for moved in (replace(op, previous_seal=b"x"), replace(op, journal=(b"a",)), replace(op, events=())):
            with pytest.raises(JournalMoved):
                await run_backend.commit(moved)
        with pytest.raises(NotFound):
            await run_backend.commit(replace(op, run_id="missing"))
        assert await run_backend.get_run("r") == run
        assert await run_backend.commit(op) == [None]
        assert await run_backend.get_run("r") == replace(run, data=b"\x00h", seal=b"new")
        changed = [replace(entry, data=data) for entry, data in zip(entries, (b"\x00a", b"b"), strict=True)]
        assert await run_backend.read_journal("r", after=0) == changed
        [event] = await run_backend.read_events("r", after=0, limit=9)
        assert (event.seq, event.kind, event.data) == (1, "x", b"c")
        assert await run_backend.get_run("other") == other

    async def test_the_bytes_of_all_versions_are_replaced_and_nothing_else(self, run_backend: Backend) -> None:
        await run_backend.commit(make_versions("k", 0, b"a", b"b"), make_versions("other", 0, b"x"))
        before, workspace = await run_backend.read_versions("k"), await run_backend.get_workspace("k")
        op = RewriteVersions(key="k", workspace_id="w1", versions=(b"\x00A", b"B"))
        for moved in (replace(op, versions=(b"A",)), replace(op, workspace_id="w2"), replace(op, key="missing")):
            with pytest.raises(WorkspaceMoved):
                await run_backend.commit(moved)
        assert await run_backend.read_versions("k") == before
        assert await run_backend.commit(op) == [None]
        assert await run_backend.read_versions("k") == [
            replace(one, data=data) for one, data in zip(before, (b"\x00A", b"B"), strict=True)
        ]
        assert await run_backend.get_workspace("k") == workspace
        assert [one.data for one in await run_backend.read_versions("other")] == [b"x"]
