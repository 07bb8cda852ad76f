"""Store contract: appending, view updates, metadata, preconditions and quarantine."""

import asyncio

import pytest

from standfast.base.errors import HistoryMoved, InvalidInput, KeyReused, NotFound, OutsideScope, WrongKey
from standfast.store.backend import Backend
from standfast.store.operations import Annotate, BatchKey, Erase, Quarantine, RequireVersion, Splice, ViewUpdate
from standfast.store.records import EMPTY_HEAD, Head, QuarantinedItem
from standfast.store.tape import TapeSpan
from standfast.testing.faults import FakeClock
from standfast.testing.store.fixtures import StoreFixtures, append, make_rewind, read_data


class AppendClauses(StoreFixtures):
    """Splices that only append."""

    async def test_a_session_that_was_never_written_does_not_exist(self, backend: Backend) -> None:
        assert await backend.get_session("missing") is None
        assert await backend.read("missing") is None
        assert await backend.read("missing", last=3) is None
        assert await backend.list_generations("missing") == []
        assert await backend.list_quarantined("missing") == []
        assert await backend.list_sessions(owner=None, query=None, limit=10, after=None) == []

    async def test_appended_records_are_read_in_order_with_their_positions(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b")
        await append(backend, "s", b"c")
        page = await backend.read("s")
        assert page is not None
        assert [(row.position, row.data) for row in page.rows] == [(0, b"a"), (1, b"b"), (2, b"c")]

    async def test_a_splice_returns_the_new_head(self, backend: Backend) -> None:
        assert await append(backend, "s", b"a", b"b") == Head(1, 2)
        assert await append(backend, "s", b"c") == Head(2, 3)
        record = await backend.get_session("s")
        assert record is not None
        assert record.head == Head(2, 3)

    async def test_any_bytes_are_stored_unchanged(self, backend: Backend) -> None:
        every = (bytes(range(256)), b"", b"\x00", b"null", "größe €".encode(), b"x" * 300_000)
        await append(backend, "s", *every)
        assert await read_data(backend, "s") == list(every)

    async def test_equal_items_are_separate_items(self, backend: Backend) -> None:
        await append(backend, "s", b"same", b"same")
        await append(backend, "s", b"same")
        assert await read_data(backend, "s") == [b"same"] * 3

    async def test_session_ids_are_compared_exactly(self, backend: Backend) -> None:
        names = ["s", "S", "s ", "s%", "s_", "{s}", "s:s", "s*", "ß", "日本", "'; --", "x" * 255]
        for name in names:
            await append(backend, name, name.encode())
        for name in names:
            assert await read_data(backend, name) == [name.encode()]

    async def test_a_session_keeps_the_tape_of_its_first_splice(self, backend: Backend) -> None:
        await append(backend, "s", b"a", tape=2**62)
        await append(backend, "s", b"b", tape=7)
        page = await backend.read("s")
        assert page is not None
        assert [(row.tape, row.seq) for row in page.rows] == [(2**62, 0), (2**62, 1)]
        assert page.record.view == (TapeSpan(2**62, 0, 2),)

    async def test_an_empty_splice_still_counts_as_a_change(self, backend: Backend) -> None:
        await append(backend, "s", b"a")
        assert await append(backend, "s") == Head(2, 1)

    async def test_a_sealed_history_only_accepts_changes_with_the_next_seal(self, backend: Backend) -> None:
        for seal in (b"\x00one", b"two"):
            await backend.commit(Splice(session_id="s", add=(b"a",), seal=seal, tape=7))
            record = await backend.get_session("s")
            assert record is not None
            assert record.seal == seal
        for unsealed in (Splice(session_id="s", add=(b"a",)), Erase(session_id="s")):
            with pytest.raises(WrongKey):
                await backend.commit(unsealed)
        assert await backend.get_session("s") == record
        await backend.commit(Erase(session_id="s", forget=True))
        assert await backend.get_session("s") is None

    async def test_a_seal_made_for_another_tape_is_refused(self, backend: Backend) -> None:
        await append(backend, "s", b"a")
        with pytest.raises(HistoryMoved):
            await append(backend, "s", b"b", seal=b"one")
        assert await read_data(backend, "s") == [b"a"]

    async def test_a_splice_at_another_version_than_expected_writes_nothing(self, backend: Backend) -> None:
        await append(backend, "s", b"a")
        for expected in (0, 2, 99):
            with pytest.raises(HistoryMoved) as moved:
                await append(backend, "s", b"b", expected=expected)
            assert (moved.value.session_id, moved.value.expected) == ("s", expected)
            assert moved.value.found == Head(1, 1)
        assert await read_data(backend, "s") == [b"a"]

    async def test_a_splice_at_the_expected_version_is_written(self, backend: Backend) -> None:
        assert await append(backend, "s", b"a", expected=0) == Head(1, 1)
        assert await append(backend, "s", b"b", expected=1) == Head(2, 2)

    async def test_expecting_a_version_of_a_missing_session_is_refused(self, backend: Backend) -> None:
        with pytest.raises(HistoryMoved) as moved:
            await append(backend, "s", b"a", expected=1)
        assert moved.value.found == EMPTY_HEAD
        assert await backend.get_session("s") is None

    async def test_a_repeated_keyed_splice_is_a_no_op_with_the_same_result(self, backend: Backend) -> None:
        key = BatchKey("turn-1", "digest")
        first = await append(backend, "s", b"a", key=key)
        await append(backend, "s", b"b")
        assert await append(backend, "s", b"a", key=key) == first
        assert await read_data(backend, "s") == [b"a", b"b"]

    async def test_a_repeated_keyed_splice_ignores_the_expected_version(self, backend: Backend) -> None:
        key = BatchKey("turn-1", "digest")
        first = await append(backend, "s", b"a", key=key, expected=0)
        await append(backend, "s", b"b")
        assert await append(backend, "s", b"a", key=key, expected=0) == first

    async def test_a_key_with_another_digest_is_refused(self, backend: Backend) -> None:
        await append(backend, "s", b"a", key=BatchKey("turn-1", "digest"))
        with pytest.raises(KeyReused) as reused:
            await append(backend, "s", b"b", key=BatchKey("turn-1", "another"))
        assert (reused.value.session_id, reused.value.key) == ("s", "turn-1")
        assert await read_data(backend, "s") == [b"a"]

    async def test_keys_belong_to_their_session(self, backend: Backend) -> None:
        await append(backend, "s", b"a", key=BatchKey("turn-1", "one"))
        await append(backend, "t", b"b", key=BatchKey("turn-1", "two"))
        assert await read_data(backend, "t") == [b"b"]

    async def test_the_key_of_a_failed_splice_is_unused(self, backend: Backend) -> None:
        with pytest.raises(HistoryMoved):
            await append(backend, "s", b"a", key=BatchKey("turn-1", "one"), expected=5)
        await append(backend, "s", b"b", key=BatchKey("turn-1", "two"))
        assert await read_data(backend, "s") == [b"b"]


class ViewUpdateClauses(StoreFixtures):
    """Splices that replace the view."""

    async def test_a_view_update_without_an_expected_version_is_refused(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b")
        with pytest.raises(InvalidInput):
            await backend.commit(Splice(session_id="s", view_update=ViewUpdate((), 2, 0)))
        assert await read_data(backend, "s") == [b"a", b"b"]

    async def test_a_view_update_replaces_the_view(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b", b"c", tape=1)
        view = ViewUpdate((TapeSpan(1, 2, 3), TapeSpan(1, 0, 1)), 3, 3)
        await append(backend, "s", b"d", view_update=view, expected=1)
        assert await read_data(backend, "s") == [b"c", b"a", b"d"]

    async def test_appending_continues_after_a_view_update(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b", b"c")
        await backend.commit(await make_rewind(backend, "s", 1, b"d"))
        assert await append(backend, "s", b"e") == Head(3, 3)
        assert await read_data(backend, "s") == [b"a", b"d", b"e"]

    async def test_a_view_update_for_another_version_changes_nothing(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b")
        late = await make_rewind(backend, "s", 0)
        await append(backend, "s", b"c")
        with pytest.raises(HistoryMoved):
            await backend.commit(late)
        assert await read_data(backend, "s") == [b"a", b"b", b"c"]
        assert await backend.list_generations("s") == []

    async def test_an_archived_view_stays_readable_as_a_generation(self, backend: Backend, clock: FakeClock) -> None:
        await append(backend, "s", b"a", b"b", b"c")
        clock.advance(5)
        await backend.commit(await make_rewind(backend, "s", 1, b"x"))
        await append(backend, "s", b"y")
        (former,) = await backend.list_generations("s")
        assert (former.number, former.length, former.resumes_at, former.replaced_at) == (0, 3, 4, clock.now)
        assert await read_data(backend, "s", generation=0) == [b"a", b"b", b"c"]
        assert await read_data(backend, "s", generation=0, last=2) == [b"b", b"c"]
        assert await read_data(backend, "s", generation=0, start=1, stop=2) == [b"b"]
        assert await read_data(backend, "s") == [b"a", b"x", b"y"]

    async def test_generations_are_numbered_from_0_without_gaps(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b", b"c")
        for to in (2, 1, 0):
            await backend.commit(await make_rewind(backend, "s", to))
        assert [entry.number for entry in await backend.list_generations("s")] == [0, 1, 2]
        assert [entry.length for entry in await backend.list_generations("s")] == [3, 2, 1]
        record = await backend.get_session("s")
        assert record is not None
        assert record.generation == 3

    async def test_a_view_that_is_not_archived_leaves_no_generation(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b")
        await backend.commit(await make_rewind(backend, "s", 1, archive=False))
        assert await backend.list_generations("s") == []
        assert await read_data(backend, "s") == [b"a"]

    async def test_an_unknown_generation_is_not_found(self, backend: Backend) -> None:
        await append(backend, "s", b"a")
        with pytest.raises(NotFound):
            await backend.read("s", generation=0)

    async def test_the_first_splice_of_a_session_may_have_a_view_update(self, backend: Backend) -> None:
        first = Splice(session_id="s", add=(b"a",), view_update=ViewUpdate((), 0, 1, archive=True), expected=0)
        assert await backend.commit(first) == [Head(1, 1)]
        assert await read_data(backend, "s") == [b"a"]
        assert await backend.list_generations("s") == []


class AnnotationClauses(StoreFixtures):
    """Metadata, preconditions and quarantine."""

    async def test_annotations_are_merged_and_none_removes(self, backend: Backend) -> None:
        await append(backend, "s", b"a")
        await backend.commit(Annotate(session_id="s", metadata={"title": "one", "tags": ["x", {"y": 1.5}]}))
        assert await backend.commit(Annotate(session_id="s", metadata={"title": None, "n": 2})) == [Head(1, 1)]
        record = await backend.get_session("s")
        assert record is not None
        assert record.metadata == {"tags": ["x", {"y": 1.5}], "n": 2}

    async def test_annotating_creates_the_session_but_no_history(self, backend: Backend) -> None:
        assert await backend.commit(Annotate(session_id="s", metadata={"title": "new"}, owner="me", tape=7)) == [
            EMPTY_HEAD
        ]
        record = await backend.get_session("s")
        assert record is not None
        assert (record.head, record.owner, record.tape) == (EMPTY_HEAD, "me", 7)
        assert await read_data(backend, "s") == []
        assert await append(backend, "s", b"a", expected=0) == Head(1, 1)

    async def test_an_owner_is_only_changed_by_annotate(self, backend: Backend) -> None:
        await append(backend, "s", b"a", owner="first")
        await append(backend, "s", b"b", owner="ignored")
        await backend.commit(Annotate(session_id="s", metadata={}))
        record = await backend.get_session("s")
        assert record is not None
        assert record.owner == "first"
        await backend.commit(Annotate(session_id="s", metadata={}, owner="second"))
        record = await backend.get_session("s")
        assert record is not None
        assert record.owner == "second"

    async def test_a_session_is_claimed_by_one_owner(self, backend: Backend) -> None:
        async def claim(session_id: str, owner: str) -> str | None:
            try:
                await backend.commit(Annotate(session_id=session_id, metadata={"by": owner}, owner=owner, claim=True))
            except OutsideScope:
                return None
            return owner

        await append(backend, "plain", b"a")
        assert await claim("plain", "first") == "first"
        assert await claim("plain", "first") == "first"
        assert await claim("plain", "second") is None
        for number in range(10):
            results = await asyncio.gather(*(claim(f"new-{number}", f"owner-{one}") for one in range(5)))
            (winner,) = [owner for owner in results if owner is not None]
            record = await backend.get_session(f"new-{number}")
            assert record is not None
            assert (record.owner, record.metadata) == (winner, {"by": winner})

    async def test_a_refused_claim_undoes_the_whole_commit(self, backend: Backend) -> None:
        await backend.commit(Annotate(session_id="s", metadata={}, owner="first"))
        item = Splice(session_id="s", add=(b"a",), expected=0, owner="second")
        with pytest.raises(OutsideScope):
            await backend.commit(item, Annotate(session_id="s", metadata={"n": 1}, owner="second", claim=True))
        record = await backend.get_session("s")
        assert record is not None
        assert (record.head, record.owner, record.metadata) == (EMPTY_HEAD, "first", {})

    async def test_changing_what_was_read_or_written_changes_nothing_stored(self, backend: Backend) -> None:
        metadata = {"tags": ["x"]}
        await backend.commit(Annotate(session_id="s", metadata=metadata))
        metadata["tags"].append("later")
        record = await backend.get_session("s")
        assert record is not None
        assert record.metadata == {"tags": ["x"]}
        record.metadata["tags"].append("later")
        record.metadata["more"] = True
        again = await backend.get_session("s")
        assert again is not None
        assert again.metadata == {"tags": ["x"]}

    async def test_creation_time_is_kept_and_update_time_advances(self, backend: Backend, clock: FakeClock) -> None:
        created_at = clock.now
        await append(backend, "s", b"a")
        for op in (
            Splice(session_id="s", add=(b"b",)),
            Annotate(session_id="s", metadata={"n": 1}),
            Splice(session_id="s", view_update=ViewUpdate((), 2, 0, True), expected=2),
            Erase(session_id="s"),
        ):
            clock.advance(10)
            await backend.commit(op)
            record = await backend.get_session("s")
            assert record is not None
            assert (record.created_at, record.updated_at) == (created_at, clock.now)

    async def test_requiring_a_version_writes_and_returns_nothing(self, backend: Backend) -> None:
        assert await backend.commit(RequireVersion("s", 0)) == [None]
        await append(backend, "s", b"a")
        assert await backend.commit(RequireVersion("s", 1)) == [None]
        with pytest.raises(HistoryMoved) as moved:
            await backend.commit(RequireVersion("s", 0))
        assert (moved.value.session_id, moved.value.found) == ("s", Head(1, 1))
        assert await backend.get_session("other") is None

    async def test_quarantine_keeps_the_first_reason(self, backend: Backend, clock: FakeClock) -> None:
        await append(backend, "s", b"a", b"b", tape=1)
        first = clock.now
        assert await backend.commit(Quarantine(session_id="s", tape=1, seq=1, reason="broken")) == [None]
        clock.advance(10)
        await backend.commit(Quarantine(session_id="s", tape=1, seq=1, reason="again"))
        await backend.commit(Quarantine(session_id="s", tape=1, seq=0, reason="also"))
        assert await backend.list_quarantined("s") == [
            QuarantinedItem(1, 0, "also", clock.now),
            QuarantinedItem(1, 1, "broken", first),
        ]
        assert await read_data(backend, "s") == [b"a", b"b"]
