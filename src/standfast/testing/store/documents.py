"""Store contract: documents."""

import asyncio

import pytest

from standfast.base.errors import DocumentMoved
from standfast.store.backend import Backend
from standfast.store.operations import DeleteDocument, PutDocument, Splice
from standfast.store.records import DocumentRecord
from standfast.testing.faults import FakeClock, Reopen
from standfast.testing.store.fixtures import StoreFixtures, read_data


def make_document(key: str, data: bytes = b"{}", *, kind: str = "note", expected: int | None = None) -> PutDocument:
    return PutDocument(kind=kind, key=key, data=data, expected=expected)


async def list_keys(backend: Backend, *, kind: str = "note", limit: int = 100, **window: object) -> list[str]:
    return [one.key for one in await backend.list_documents(kind, limit=limit, **window)]  # type: ignore[arg-type]


class DocumentClauses(StoreFixtures):
    """A document has one revision after the other, and belongs to its kind."""

    async def test_a_document_is_read_as_it_was_written(self, run_backend: Backend, clock: FakeClock) -> None:
        assert await run_backend.get_document("note", "a") is None
        began = clock.now
        assert await run_backend.commit(make_document("a", b"\x00\xff", expected=0)) == [None]
        clock.advance(5)
        await run_backend.commit(make_document("b"), make_document("a", b"other", kind="key"))
        first = DocumentRecord(kind="note", key="a", data=b"\x00\xff", revision=1, at=began)
        assert await run_backend.get_document("note", "a") == first
        assert await run_backend.get_document("key", "a") == DocumentRecord(
            kind="key", key="a", data=b"other", revision=1, at=clock.now
        )
        assert await run_backend.get_document("key", "b") is None

    async def test_each_write_of_a_document_is_a_revision(self, run_backend: Backend, clock: FakeClock) -> None:
        await run_backend.commit(make_document("a", b"1"), make_document("a", b"2"))
        clock.advance(5)
        await run_backend.commit(make_document("a", b"3", expected=2))
        found = await run_backend.get_document("note", "a")
        assert found == DocumentRecord(kind="note", key="a", data=b"3", revision=3, at=clock.now)

    @pytest.mark.parametrize("expected", [0, 1, 3])
    @pytest.mark.parametrize("deleting", [False, True])
    async def test_another_revision_of_a_document_is_not_changed(
        self, run_backend: Backend, expected: int, deleting: bool
    ) -> None:
        await run_backend.commit(make_document("a", b"1"), make_document("a", b"2"))
        before = await run_backend.get_document("note", "a")
        op = (
            DeleteDocument(kind="note", key="a", expected=expected)
            if deleting
            else make_document("a", b"3", expected=expected)
        )
        with pytest.raises(DocumentMoved) as moved:
            await run_backend.commit(Splice(session_id="s", add=(b"x",)), op)
        error = moved.value
        assert (error.kind, error.name, error.expected, error.found) == ("note", "a", expected, 2)
        assert await run_backend.get_document("note", "a") == before
        assert await read_data(run_backend, "s") == []

    async def test_a_missing_document_has_revision_0(self, run_backend: Backend) -> None:
        with pytest.raises(DocumentMoved) as moved:
            await run_backend.commit(make_document("a", expected=1))
        assert (moved.value.expected, moved.value.found) == (1, 0)
        await run_backend.commit(DeleteDocument(kind="note", key="a", expected=0), DeleteDocument(kind="note", key="a"))
        assert await run_backend.get_document("note", "a") is None

    async def test_a_deleted_document_starts_again_at_revision_1(self, run_backend: Backend) -> None:
        await run_backend.commit(make_document("a"), make_document("a"), make_document("a", kind="key"))
        assert await run_backend.commit(DeleteDocument(kind="note", key="a", expected=2)) == [None]
        assert await list_keys(run_backend) == []
        assert await list_keys(run_backend, kind="key") == ["a"]
        await run_backend.commit(make_document("a", expected=0))
        found = await run_backend.get_document("note", "a")
        assert found is not None
        assert found.revision == 1

    async def test_documents_are_listed_by_key_within_a_range(self, run_backend: Backend) -> None:
        keys = ["10", "9", "B", "a", "b/1", "ä"]
        await run_backend.commit(*(make_document(key) for key in reversed(keys)), make_document("c", kind="key"))
        assert await list_keys(run_backend) == keys
        assert await list_keys(run_backend, limit=2) == ["10", "9"]
        assert await list_keys(run_backend, after="9", before="b/1") == ["B", "a"]
        assert await list_keys(run_backend, reverse=True, limit=2) == ["ä", "b/1"]
        assert await list_keys(run_backend, reverse=True, before="b/1", after="9") == ["a", "B"]

    async def test_of_two_concurrent_first_writers_of_a_document_one_is_refused(self, run_backend: Backend) -> None:
        for attempt in range(5):
            answers = await asyncio.gather(
                *(run_backend.commit(make_document(f"k{attempt}", data, expected=0)) for data in (b"a", b"b")),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, DocumentMoved) for answer in answers) == 1

    async def test_concurrent_unconditional_writes_of_a_document_all_count(self, run_backend: Backend) -> None:
        await asyncio.gather(*(run_backend.commit(make_document("a", b"%d" % number)) for number in range(8)))
        found = await run_backend.get_document("note", "a")
        assert found is not None
        assert found.revision == 8

    async def test_documents_survive_reopening(self, reopen_durable: Reopen) -> None:
        if not self.runs:
            pytest.skip("this backend does not support documents")
        async with reopen_durable() as backend:
            await backend.commit(make_document("a", b"1"))
        async with reopen_durable() as backend:
            assert await list_keys(backend) == ["a"]
