"""Blobs in an object store: a directory, and one in memory."""

from pathlib import Path
from typing import Any

import obstore
import pytest

from standfast import open_store
from standfast.base.errors import InvalidInput
from standfast.store.memory import MemoryBackend
from standfast.store.object_blobs import ObjectBlobs, open_objects
from standfast.store.operations import DeleteWorkspace, PutBlob, SweepBlobs
from standfast.store.records import FreedBlobs
from standfast.testing import FakeClock
from standfast.testing.store.workspaces import make_blob, make_checkpoint, make_versions


def list_objects(objects: Any) -> list[str]:
    return sorted(one["path"] for page in obstore.list(objects) for one in page)


@pytest.fixture(scope="module", autouse=True)
def object_store_threads() -> None:
    """The library starts its threads with the first request and keeps them."""
    obstore.put(open_objects("memory:///"), "warm-up", b"")


async def test_a_blob_is_stored_once() -> None:
    backend: Any = ObjectBlobs(MemoryBackend(), open_objects("memory:///"))
    await backend.commit(make_blob("one"))
    await backend.commit(PutBlob(digest="one", size=9, data=b"the same content, packed otherwise"))
    (one,) = await backend.find_blobs(["one"])
    assert await backend.read_blob(one) == b"one"


async def test_deleting_a_workspace_deletes_its_objects(tmp_path: Path) -> None:
    url, objects = f"sqlite:///{tmp_path}/a.db", (tmp_path / "objects").as_uri()
    async with open_store(url, blobs=objects) as store:
        backend = store.backend
        await backend.commit(make_versions("k", 0, b"a"), make_blob("d1"), make_blob("d2"), make_versions("l", 0, b"b"))
        await backend.commit(make_checkpoint("k", 1, "d1", "d2"), make_checkpoint("l", 1, "d2"))
        assert len(list_objects(open_objects(objects))) == 2
        assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700
    async with open_store(url, blobs=objects) as store:
        (one, two) = await store.backend.find_blobs(["d1", "d2"])
        assert [await store.backend.read_blob(blob) for blob in (one, two)] == [b"d1", b"d2"]
        await store.backend.commit(DeleteWorkspace("k"))
        assert list_objects(open_objects(objects)) == [two.place]
        await store.backend.commit(DeleteWorkspace("l"))
        assert list_objects(open_objects(objects)) == []


async def test_sweeping_a_blob_deletes_its_object() -> None:
    objects, clock = open_objects("memory:///"), FakeClock()
    backend: Any = ObjectBlobs(MemoryBackend(clock=clock), objects)
    await backend.commit(make_blob("d1"), make_versions("k", 0, b"a"))
    await backend.commit(make_blob("d1"))
    assert len(list_objects(objects)) == 1
    clock.advance(10)
    (freed,) = await backend.commit(SweepBlobs(before=clock.now))
    assert isinstance(freed, FreedBlobs)
    assert freed.count == 1
    assert list_objects(objects) == []


async def test_an_object_of_a_process_that_died_is_found() -> None:
    objects = open_objects("memory:///")
    backend: Any = ObjectBlobs(MemoryBackend(), objects)
    await backend.commit(make_blob("d1"))
    (kept,) = list_objects(objects)
    await obstore.put_async(objects, "blobs/d2/d2-o_1", b"orphan")
    assert await backend.sweep_objects(before=0.0) == 0
    assert await backend.sweep_objects(before=4e9) == 1
    assert list_objects(objects) == [kept]


async def test_an_unknown_object_store_is_refused_without_its_address() -> None:
    with pytest.raises(InvalidInput) as refused:
        await open_store("memory://", blobs="gopher://user:secret@host")
    assert "secret" not in str(refused.value)
