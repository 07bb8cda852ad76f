"""Store contract: forks and erasures."""

import pytest

from standfast.base.errors import HistoryMoved, NotFound
from standfast.store.backend import Backend
from standfast.store.operations import Annotate, BatchKey, Erase, Quarantine
from standfast.store.records import EMPTY_HEAD, Head
from standfast.testing.faults import FakeClock
from standfast.testing.store.fixtures import ListStoredItems, StoreFixtures, append, make_fork, make_rewind, read_data


class StoreForkClauses(StoreFixtures):
    """Sessions that share items, and erasing one of them."""

    async def test_a_fork_shows_its_parents_items_and_then_its_own(self, backend: Backend) -> None:
        await append(backend, "parent", b"a", b"b", b"c")
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        await append(backend, "parent", b"d")
        await append(backend, "child", b"x")
        assert await read_data(backend, "parent") == [b"a", b"b", b"c", b"d"]
        assert await read_data(backend, "child") == [b"a", b"b", b"x"]
        assert await read_data(backend, "child", last=2) == [b"b", b"x"]

    async def test_forking_onto_an_existing_session_is_refused(self, backend: Backend) -> None:
        await append(backend, "parent", b"a")
        await append(backend, "child", b"x")
        with pytest.raises(HistoryMoved):
            await backend.commit(await make_fork(backend, "parent", "child", 1))
        assert await read_data(backend, "child") == [b"x"]

    async def test_erasing_destroys_items_and_generations_but_keeps_the_session(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await append(backend, "s", b"a", b"b", tape=1)
        await backend.commit(Annotate(session_id="s", metadata={"title": "kept"}, owner="me"))
        await backend.commit(await make_rewind(backend, "s", 1))
        await backend.commit(Quarantine(session_id="s", tape=1, seq=0, reason="bad"))
        clock.advance(5)
        assert await backend.commit(Erase(session_id="s")) == [Head(3, 0)]
        record = await backend.get_session("s")
        assert record is not None
        assert (record.head, record.metadata, record.owner) == (Head(3, 0), {"title": "kept"}, "me")
        assert record.updated_at == clock.now
        assert record.created_at == clock.now - 5
        assert await read_data(backend, "s") == []
        assert await backend.list_generations("s") == []
        assert await backend.list_quarantined("s") == []
        with pytest.raises(NotFound):
            await backend.read("s", generation=0)

    async def test_an_erased_session_can_be_written_again(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b")
        await backend.commit(await make_rewind(backend, "s", 1))
        await backend.commit(Erase(session_id="s"))
        assert await append(backend, "s", b"c") == Head(4, 1)
        assert await read_data(backend, "s") == [b"c"]
        await backend.commit(await make_rewind(backend, "s", 0))
        (former,) = await backend.list_generations("s")
        assert await read_data(backend, "s", generation=former.number) == [b"c"]

    async def test_erasing_deletes_batch_keys(self, backend: Backend) -> None:
        first = await append(backend, "s", b"a", key=BatchKey("turn-1", "digest"))
        await backend.commit(Erase(session_id="s"))
        assert first == Head(1, 1)
        assert await append(backend, "s", b"a", key=BatchKey("turn-1", "digest")) == Head(3, 1)
        assert await read_data(backend, "s") == [b"a"]

    async def test_an_erasure_sets_the_next_seal(self, backend: Backend) -> None:
        await append(backend, "s", b"a", seal=b"one")
        await backend.commit(Erase(session_id="s", seal=b"two"))
        record = await backend.get_session("s")
        assert record is not None
        assert record.seal == b"two"

    async def test_erasing_at_another_version_than_expected_destroys_nothing(self, backend: Backend) -> None:
        await append(backend, "s", b"a")
        for forget in (False, True):
            with pytest.raises(HistoryMoved):
                await backend.commit(Erase(session_id="s", expected=4, forget=forget))
        assert await read_data(backend, "s") == [b"a"]
        assert await backend.commit(Erase(session_id="s", expected=1)) == [Head(2, 0)]

    async def test_erasing_a_missing_session_has_no_effect(self, backend: Backend) -> None:
        assert await backend.commit(Erase(session_id="missing")) == [EMPTY_HEAD]
        assert await backend.commit(Erase(session_id="missing", forget=True, expected=0)) == [EMPTY_HEAD]
        assert await backend.get_session("missing") is None

    async def test_forgetting_leaves_no_trace(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b", key=BatchKey("turn-1", "digest"), tape=1)
        await backend.commit(Annotate(session_id="s", metadata={"title": "gone"}))
        await backend.commit(await make_rewind(backend, "s", 1))
        await backend.commit(Quarantine(session_id="s", tape=1, seq=0, reason="bad"))
        assert await backend.commit(Erase(session_id="s", forget=True)) == [EMPTY_HEAD]
        assert await backend.get_session("s") is None
        assert await backend.read("s") is None
        assert await backend.list_generations("s") == []
        assert await backend.list_quarantined("s") == []
        assert await backend.list_sessions(owner=None, query=None, limit=10, after=None) == []

    async def test_a_forgotten_session_id_can_be_reused(self, backend: Backend) -> None:
        await append(backend, "s", b"a", key=BatchKey("turn-1", "digest"))
        await backend.commit(Annotate(session_id="s", metadata={"title": "gone"}))
        await backend.commit(Erase(session_id="s", forget=True))
        assert await append(backend, "s", b"z", key=BatchKey("turn-1", "another"), expected=0) == Head(1, 1)
        record = await backend.get_session("s")
        assert record is not None
        assert record.metadata == {}
        assert await read_data(backend, "s") == [b"z"]

    @pytest.mark.parametrize("forget", [False, True])
    async def test_a_fork_keeps_its_view_when_its_parent_is_erased(self, backend: Backend, forget: bool) -> None:
        await append(backend, "parent", b"a", b"b", b"c")
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        await backend.commit(await make_fork(backend, "child", "grandchild", 1))
        await append(backend, "child", b"x")
        await backend.commit(Erase(session_id="parent", forget=forget))
        assert await read_data(backend, "child") == [b"a", b"b", b"x"]
        await backend.commit(Erase(session_id="child", forget=forget))
        assert await read_data(backend, "grandchild") == [b"a"]

    @pytest.mark.parametrize("archive", [False, True])
    @pytest.mark.parametrize("forget", [False, True])
    async def test_items_that_no_fork_started_with_are_destroyed_with_the_parent(
        self, backend: Backend, list_items: ListStoredItems, forget: bool, archive: bool
    ) -> None:
        await append(backend, "parent", b"a", b"removed", b"removed", tape=1)
        await backend.commit(await make_rewind(backend, "parent", 1, b"b", b"removed", archive=archive))
        await backend.commit(await make_rewind(backend, "parent", 2, b"c", b"behind the fork", archive=archive))
        await backend.commit(await make_fork(backend, "parent", "child", 3))
        await backend.commit(await make_fork(backend, "child", "grandchild", 2))
        await backend.commit(Erase(session_id="parent", forget=forget))
        assert await list_items(backend) == {(1, 0): b"a", (1, 3): b"b", (1, 5): b"c"}
        assert await read_data(backend, "child") == [b"a", b"b", b"c"]
        await backend.commit(Erase(session_id="child", forget=forget))
        assert await list_items(backend) == {(1, 0): b"a", (1, 3): b"b"}
        assert await read_data(backend, "grandchild") == [b"a", b"b"]
        await backend.commit(Erase(session_id="grandchild", forget=forget))
        assert await list_items(backend) == {}

    async def test_a_parent_keeps_what_it_wrote_after_it_was_erased(
        self, backend: Backend, list_items: ListStoredItems
    ) -> None:
        await append(backend, "parent", b"removed", b"a", tape=1)
        await backend.commit(await make_rewind(backend, "parent", 0, b"b", archive=False))
        await backend.commit(await make_fork(backend, "parent", "child", 1))
        await backend.commit(Erase(session_id="parent"))
        await append(backend, "parent", b"later")
        await backend.commit(await make_rewind(backend, "parent", 0, b"last"))
        await backend.commit(Erase(session_id="child", forget=True))
        assert await list_items(backend) == {(1, 3): b"later", (1, 4): b"last"}
        assert await read_data(backend, "parent", generation=0) == [b"later"]

    async def test_items_that_a_fork_removed_from_its_view_are_kept_as_long_as_the_fork(
        self, backend: Backend, list_items: ListStoredItems
    ) -> None:
        await append(backend, "parent", b"a", b"b", tape=1)
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        await backend.commit(await make_rewind(backend, "child", 1, archive=False))
        await backend.commit(Erase(session_id="parent", forget=True))
        assert await list_items(backend) == {(1, 0): b"a", (1, 1): b"b"}
        await backend.commit(Erase(session_id="child"))
        assert await list_items(backend) == {}

    async def test_a_parent_keeps_its_items_when_its_fork_is_erased(self, backend: Backend) -> None:
        await append(backend, "parent", b"a", b"b")
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        await backend.commit(Erase(session_id="child", forget=True))
        assert await read_data(backend, "parent") == [b"a", b"b"]

    async def test_a_forks_generations_outlive_its_parent(self, backend: Backend) -> None:
        await append(backend, "parent", b"a", b"b")
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        await backend.commit(await make_rewind(backend, "child", 0, b"x"))
        await backend.commit(Erase(session_id="parent", forget=True))
        assert await read_data(backend, "child", generation=0) == [b"a", b"b"]
