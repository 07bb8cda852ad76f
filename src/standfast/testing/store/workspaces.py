"""Store contract: versions and checkpoints of workspaces, and the blobs that checkpoints refer to."""

import asyncio
from typing import Any

import pytest

from standfast.base.errors import BlobsMissing, NotFound, WorkspaceMoved
from standfast.store.backend import Backend
from standfast.store.operations import (
    AppendVersions,
    DeleteWorkspace,
    DropCheckpoint,
    PutBlob,
    SaveCheckpoint,
    SweepBlobs,
)
from standfast.store.records import BlobRecord, FreedBlobs
from standfast.testing.faults import FakeClock, Reopen
from standfast.testing.store.fixtures import StoreFixtures


def make_versions(key: str, expected: int, *data: bytes, workspace_id: str = "w1") -> AppendVersions:
    return AppendVersions(key=key, workspace_id=workspace_id, expected=expected, versions=data)


def make_checkpoint(key: str, version: int, *blobs: str, workspace_id: str = "w1") -> SaveCheckpoint:
    return SaveCheckpoint(
        key=key,
        workspace_id=workspace_id,
        version=version,
        checkpoint_id=f"checkpoint-{key}-{version}",
        data=b"manifest %d" % version,
        blobs=blobs,
        size=100 + version,
    )


def make_blob(digest: str) -> PutBlob:
    return PutBlob(digest=digest, size=4, data=digest.encode())


async def list_blobs(backend: Backend, *digests: str) -> list[str]:
    return [blob.digest for blob in await backend.find_blobs(digests)]


async def read_workspace(backend: Backend, key: str, *digests: str) -> dict[str, Any]:
    """Return everything that the store has about a workspace and about these blobs, for comparisons."""
    versions = await backend.read_versions(key)
    blobs = await backend.find_blobs(digests)
    return {
        "workspace": await backend.get_workspace(key),
        "versions": versions,
        "checkpoints": [await backend.get_checkpoint(key, version.version) for version in versions],
        "blobs": [(blob, await backend.read_blob(blob)) for blob in blobs],
    }


class WorkspaceClauses(StoreFixtures):
    """Versions follow one another, a checkpoint belongs to one version, and blobs live as long as a checkpoint."""

    async def test_a_workspace_grows_by_versions(self, run_backend: Backend, clock: FakeClock) -> None:
        assert await run_backend.get_workspace("run:1") is None
        assert await run_backend.read_versions("run:1") == []
        began = clock.now
        assert await run_backend.commit(make_versions("run:1", 0, b"a", b"b")) == [None]
        clock.advance(5)
        await run_backend.commit(make_versions("run:1", 2, b"c"), make_versions("run:2", 0, b"x"))
        workspace = await run_backend.get_workspace("run:1")
        assert workspace is not None
        assert (workspace.version, workspace.workspace_id) == (3, "w1")
        assert (workspace.created_at, workspace.updated_at) == (began, clock.now)
        found = await run_backend.read_versions("run:1", after=1)
        assert [(one.version, one.data, one.created_at) for one in found] == [(2, b"b", began), (3, b"c", clock.now)]
        assert [one.version for one in await run_backend.read_versions("run:1", upto=2)] == [1, 2]

    @pytest.mark.parametrize(
        ("expected", "workspace_id"), [(0, "w1"), (1, "w1"), (3, "w1"), (2, "w2")], ids=["new", "old", "ahead", "other"]
    )
    async def test_a_version_must_follow_the_latest_of_the_same_workspace(
        self, run_backend: Backend, expected: int, workspace_id: str
    ) -> None:
        await run_backend.commit(make_versions("k", 0, b"a", b"b"))
        before = await read_workspace(run_backend, "k")
        with pytest.raises(WorkspaceMoved) as moved:
            await run_backend.commit(make_versions("k", expected, b"c", workspace_id=workspace_id))
        assert (moved.value.expected, moved.value.found) == (expected, 2)
        assert await read_workspace(run_backend, "k") == before

    async def test_of_two_concurrent_versions_one_is_refused(self, run_backend: Backend) -> None:
        for attempt in range(5):
            key = f"k{attempt}"
            answers = await asyncio.gather(
                *(run_backend.commit(make_versions(key, 0, data, workspace_id=data.decode())) for data in (b"a", b"b")),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, WorkspaceMoved) for answer in answers) == 1
            assert len(await run_backend.read_versions(key)) == 1

    async def test_workspaces_are_listed_by_key(self, run_backend: Backend) -> None:
        for key in ("b", "a", "c"):
            await run_backend.commit(make_versions(key, 0, b"1"))
        assert [one.key for one in await run_backend.list_workspaces(limit=2, after="")] == ["a", "b"]
        assert [one.key for one in await run_backend.list_workspaces(limit=9, after="b")] == ["c"]

    async def test_a_checkpoint_belongs_to_its_version_for_good(self, run_backend: Backend) -> None:
        await run_backend.commit(make_versions("k", 0, b"a", b"b"), make_blob("d1"), make_blob("d2"))
        assert await run_backend.commit(make_checkpoint("k", 1, "d2", "d1")) == [None]
        await run_backend.commit(make_checkpoint("k", 1, "d1"))
        saved = await run_backend.get_checkpoint("k", 1)
        assert saved is not None
        assert (saved.checkpoint_id, saved.key, saved.version) == ("checkpoint-k-1", "k", 1)
        assert (saved.data, saved.blobs, saved.size) == (b"manifest 1", ("d2", "d1"), 101)
        first, second = await run_backend.read_versions("k")
        assert (first.checkpoint_id, first.size) == ("checkpoint-k-1", 101)
        assert (second.checkpoint_id, second.size) == (None, 0)
        assert await run_backend.get_checkpoint("k", 2) is None

    @pytest.mark.parametrize(
        ("key", "version", "workspace_id"), [("other", 1, "w1"), ("k", 2, "w1"), ("k", 0, "w1"), ("k", 1, "w2")]
    )
    async def test_a_checkpoint_needs_its_version(
        self, run_backend: Backend, key: str, version: int, workspace_id: str
    ) -> None:
        await run_backend.commit(make_versions("k", 0, b"a"), make_blob("d1"))
        with pytest.raises(NotFound):
            await run_backend.commit(make_checkpoint(key, version, "d1", workspace_id=workspace_id))
        assert await run_backend.get_checkpoint(key, version) is None

    async def test_a_checkpoint_needs_its_blobs(self, run_backend: Backend) -> None:
        await run_backend.commit(make_versions("k", 0, b"a"), make_blob("d1"))
        with pytest.raises(BlobsMissing) as missing:
            await run_backend.commit(make_checkpoint("k", 1, "d3", "d1", "d2"))
        assert missing.value.digests == ("d2", "d3")
        assert await run_backend.get_checkpoint("k", 1) is None

    async def test_a_blob_is_stored_once(self, run_backend: Backend) -> None:
        await run_backend.commit(make_blob("one"), make_blob("two"))
        await run_backend.commit(PutBlob(digest="one", size=9, data=b"the same content, packed otherwise"))
        two, one = await run_backend.find_blobs(["two", "none", "one"])
        assert one == BlobRecord(digest="one", size=4)
        assert [await run_backend.read_blob(blob) for blob in (one, two)] == [b"one", b"two"]
        assert await run_backend.read_blob(BlobRecord(digest="none", size=4)) is None

    async def test_a_dropped_checkpoint_takes_the_blobs_along_that_only_it_had(self, run_backend: Backend) -> None:
        await run_backend.commit(
            make_versions("k", 0, b"a", b"b"), *map(make_blob, ("one", "both", "two")), make_versions("l", 0, b"x")
        )
        await run_backend.commit(
            make_checkpoint("k", 1, "one", "both"), make_checkpoint("k", 2, "both"), make_checkpoint("l", 1, "two")
        )
        assert await run_backend.commit(DropCheckpoint(key="k", version=1)) == [FreedBlobs(1)]
        assert await run_backend.commit(DropCheckpoint(key="k", version=1)) == [FreedBlobs()]
        assert await list_blobs(run_backend, "one", "both", "two") == ["both", "two"]
        assert await run_backend.get_checkpoint("k", 1) is None
        assert [one.version for one in await run_backend.read_versions("k")] == [1, 2]

    async def test_a_deleted_workspace_leaves_nothing_behind(self, run_backend: Backend) -> None:
        names = ("shared", "first", "second")
        await run_backend.commit(make_versions("kept", 0, b"a"), *map(make_blob, names))
        await run_backend.commit(make_checkpoint("kept", 1, "shared"))
        before = await read_workspace(run_backend, "kept", "shared")
        await run_backend.commit(make_versions("gone", 0, b"a", b"b"))
        await run_backend.commit(
            make_checkpoint("gone", 1, "first", "shared"), make_checkpoint("gone", 2, "second", "first")
        )
        assert await run_backend.commit(DeleteWorkspace("gone")) == [FreedBlobs(2)]
        assert await read_workspace(run_backend, "gone", "first", "second") == {
            "workspace": None,
            "versions": [],
            "checkpoints": [],
            "blobs": [],
        }
        assert await read_workspace(run_backend, "kept", "shared") == before
        assert await run_backend.commit(DeleteWorkspace("gone")) == [FreedBlobs()]

    async def test_a_late_checkpoint_does_not_reach_a_later_workspace_of_the_same_key(
        self, run_backend: Backend
    ) -> None:
        await run_backend.commit(make_versions("k", 0, b"a"), make_blob("d1"))
        await run_backend.commit(DeleteWorkspace("k"), make_versions("k", 0, b"new", workspace_id="w2"))
        with pytest.raises(NotFound):
            await run_backend.commit(make_checkpoint("k", 1, "d1"))

    async def test_a_sweep_deletes_old_blobs_without_a_checkpoint(self, run_backend: Backend, clock: FakeClock) -> None:
        await run_backend.commit(
            make_versions("k", 0, b"a"),
            *map(make_blob, ("used", "lost-1", "lost-2")),
        )
        await run_backend.commit(make_checkpoint("k", 1, "used"))
        clock.advance(100)
        await run_backend.commit(make_blob("fresh"), make_blob("lost-2"))
        assert await run_backend.commit(SweepBlobs(before=clock.now - 50)) == [FreedBlobs(1)]
        assert await list_blobs(run_backend, "used", "lost-1", "lost-2", "fresh") == ["used", "lost-2", "fresh"]
        assert await run_backend.commit(SweepBlobs(before=clock.now + 1, limit=1)) == [FreedBlobs(1)]
        assert await run_backend.commit(SweepBlobs(before=clock.now + 1)) == [FreedBlobs(1)]
        assert await list_blobs(run_backend, "used", "lost-1", "lost-2", "fresh") == ["used"]

    async def test_places_in_an_object_store_are_returned_when_they_are_free(
        self, run_backend: Backend, clock: FakeClock
    ) -> None:
        await run_backend.commit(
            make_versions("k", 0, b"a"),
            PutBlob(digest="d1", size=5, place="x/d1-1"),
            PutBlob(digest="d1", size=5, place="x/d1-2"),
            PutBlob(digest="d2", size=5, place="x/d2"),
        )
        await run_backend.commit(make_checkpoint("k", 1, "d1"))
        assert await run_backend.find_blobs(["d1"]) == [BlobRecord(digest="d1", size=5, place="x/d1-1")]
        clock.advance(1)
        assert await run_backend.commit(SweepBlobs(before=clock.now)) == [FreedBlobs(1, ("x/d2",))]
        assert await run_backend.commit(DeleteWorkspace("k")) == [FreedBlobs(1, ("x/d1-1",))]

    async def test_a_checkpoint_never_refers_to_a_blob_that_is_deleted_meanwhile(
        self, run_backend: Backend, clock: FakeClock
    ) -> None:
        for attempt in range(8):
            await run_backend.commit(make_versions(f"k{attempt}", 0, b"a"), make_blob(f"d{attempt}"))
            clock.advance(1)
            answers = await asyncio.gather(
                run_backend.commit(make_checkpoint(f"k{attempt}", 1, f"d{attempt}")),
                run_backend.commit(SweepBlobs(before=clock.now)),
                return_exceptions=True,
            )
            saved = await run_backend.get_checkpoint(f"k{attempt}", 1)
            assert (saved is not None) == (await list_blobs(run_backend, f"d{attempt}") != [])
            assert isinstance(answers[0], BlobsMissing) == (saved is None)

    async def test_workspaces_survive_reopening(self, reopen: Reopen, run_backend: Backend) -> None:
        if not self.durable:
            pytest.skip("this storage is lost when it is closed")
        await run_backend.commit(make_versions("k", 0, b"a"), make_blob("d1"))
        await run_backend.commit(make_checkpoint("k", 1, "d1"))
        before = await read_workspace(run_backend, "k", "d1")
        async with reopen() as again:
            assert await read_workspace(again, "k", "d1") == before
