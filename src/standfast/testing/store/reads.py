"""Store contract: reading, listing and searching."""

import msgspec
import pytest

from standfast.store.backend import Backend, Cursor
from standfast.store.operations import Annotate
from standfast.store.records import SearchCandidate
from standfast.testing.faults import FakeClock
from standfast.testing.store.fixtures import StoreFixtures, append, make_fork, make_rewind


class ReadClauses(StoreFixtures):
    """Ranges, listings and search."""

    async def test_a_range_is_a_list_slice(self, backend: Backend) -> None:
        await append(backend, "s", b"0", b"1", b"2", b"x")
        await backend.commit(await make_rewind(backend, "s", 3, b"3", b"4"))
        items = [b"0", b"1", b"2", b"3", b"4"]
        for start in range(7):
            for stop in (None, *range(start, 8)):
                page = await backend.read("s", start=start, stop=stop)
                assert page is not None
                assert [row.data for row in page.rows] == items[start:stop]
                assert [row.position for row in page.rows] == list(range(5))[start:stop]

    async def test_the_last_items_are_in_chronological_order(self, backend: Backend) -> None:
        await append(backend, "parent", b"0", b"1", b"2")
        await backend.commit(await make_fork(backend, "parent", "s", 3))
        await append(backend, "s", b"3", b"4")
        items = [b"0", b"1", b"2", b"3", b"4"]
        for last in range(8):
            page = await backend.read("s", last=last)
            assert page is not None
            assert [row.data for row in page.rows] == (items[-last:] if last else [])
            assert [row.position for row in page.rows] == list(range(5))[max(5 - last, 0) :]

    async def test_a_page_contains_the_record_of_the_session(self, backend: Backend) -> None:
        await append(backend, "s", b"a", b"b")
        page = await backend.read("s", last=1)
        assert page is not None
        assert page.record == await backend.get_session("s")

    async def test_sessions_are_listed_newest_first(self, backend: Backend, clock: FakeClock) -> None:
        for name in ("a", "b", "c"):
            await append(backend, name, b"x")
            clock.advance(1)
        await append(backend, "a", b"y")
        clock.advance(1)
        await backend.commit(Annotate(session_id="b", metadata={"n": 1}))
        found = await backend.list_sessions(owner=None, query=None, limit=10, after=None)
        assert [record.session_id for record in found] == ["b", "a", "c"]
        assert found[0] == await backend.get_session("b")

    async def test_sessions_with_equal_times_are_listed_by_id_descending(self, backend: Backend) -> None:
        names = ["a", "B", "b", "ä", "Z", "_", "a-b", "ab", "日"]
        for name in names:
            await append(backend, name, b"x")
        found = await backend.list_sessions(owner=None, query=None, limit=10, after=None)
        assert [record.session_id for record in found] == sorted(names, reverse=True)

    async def test_a_cursor_continues_a_listing(self, backend: Backend, clock: FakeClock) -> None:
        for index in range(10):
            await append(backend, f"session-{index}", b"x")
            clock.advance(index % 3 == 0)
        listed = await backend.list_sessions(owner=None, query=None, limit=100, after=None)
        parts, after = [], None
        while page := await backend.list_sessions(owner=None, query=None, limit=3, after=after):
            parts += page
            after = Cursor(page[-1].updated_at, page[-1].session_id)
        assert parts == listed
        assert len(listed) == 10

    async def test_listing_by_owner_excludes_other_owners(self, backend: Backend) -> None:
        await append(backend, "a", b"x", owner="me")
        await append(backend, "b", b"x", owner="you")
        await append(backend, "c", b"x")
        found = await backend.list_sessions(owner="me", query=None, limit=10, after=None)
        assert [record.session_id for record in found] == ["a"]

    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ("user", ["user-1", "user%2"]),
            ("USER-1", ["user-1"]),
            ("r%2", ["user%2"]),
            ("r_2", []),
            ("refund", ["plain"]),
            ("Größe", ["plain"]),
            ("\\", []),
            ("", ["user-1", "user%2", "plain"]),
        ],
    )
    async def test_a_query_is_a_substring_of_the_id_or_of_the_metadata(
        self, backend: Backend, query: str, names: list[str]
    ) -> None:
        for name in ("user-1", "user%2", "plain"):
            await append(backend, name, b"x")
        await backend.commit(Annotate(session_id="plain", metadata={"title": "A Refund in Größe 7"}))
        found = await backend.list_sessions(owner=None, query=query, limit=10, after=None)
        assert {record.session_id for record in found} == set(names)

    async def test_search_is_either_absent_or_complete(self, backend: Backend) -> None:
        texts = ["alpha beta", "Alphabet soup", "gamma", "beta_alpha"]
        for text in texts:
            data = msgspec.json.encode({"role": "user", "content": text})
            await append(backend, "s", data, words=(text.casefold().replace("_", " "),))
        found = await backend.search(["alpha"], session_id="s", owner=None, limit=10, skip=0)
        if found is None:
            return
        assert {0, 1, 3} <= {entry.seq for entry in found}
        assert {entry.session_id for entry in found} == {"s"}
        paged: list[SearchCandidate] = []
        while page := await backend.search(["alpha"], session_id="s", owner=None, limit=1, skip=len(paged)):
            paged += page
        assert paged == found
