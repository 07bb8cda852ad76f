"""Clauses of the session contract about search."""

import asyncio
from typing import Any

import pytest

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.text import extract_text, extract_words, matches_terms
from standfast.history.search import MAX_QUERY_LENGTH
from standfast.store.operations import Erase
from standfast.testing.sessions.fixtures import StoredSessionFixtures, user_messages

SEARCHED_TEXTS = [
    "The refund was paid",
    "refunds take 5 days",
    "prerefund snake_refund_case",
    "REFUND Größe GRÖSSE straße",
    "nothing of the kind",
    "日本語 テスト refund",
    "𰀀 rare letters 𰀀x ᦱ",
    "café cafe\u0301 naïve",
    "① ½ x² ٣",
    'quoted "refund" AND NOT OR * ^ : ( )',
    "a-b a_b ab",
    "refund " * 50,
]


QUERIES = [
    *("refund", "REFUND", "ref", "fund", "refund paid", "the", "größe", "STRASSE", "strasse", "日本", "語", "テスト"),
    *(
        "𰀀",
        "𰀀x",
        "ᦱ",
        "café",
        "cafe",
        "①",
        "½",
        "x²",
        "٣",
        "٣ refund",
        "a-b",
        "a_b",
        "ab",
        "b",
        "refund AND",
        "NOT",
        "*",
    ),
    *('"refund"', "refund*", "(refund)", "", "   ", "\x00", "'", "refund nothing", "x" * 200, "days 5"),
]


class SearchClauses(StoredSessionFixtures):
    """Search for items by their words."""

    async def test_a_search_finds_the_same_items_as_a_scan(self, session: Any) -> None:
        await session.add_items(user_messages(*SEARCHED_TEXTS))
        for query in QUERIES:
            await self.assert_matches_scan(session, query)

    async def test_a_hit_has_a_position_an_item_and_its_text(self, session: Any) -> None:
        await session.add_items(user_messages("one", "two words", "three"))
        (hit,) = await session.search("word")
        assert (hit.session_id, hit.position, hit.item, hit.text) == (
            "s",
            1,
            user_messages("two words")[0],
            "two words",
        )

    async def test_the_newest_hits_come_first(self, session: Any) -> None:
        await session.add_items(user_messages(*(f"word {n}" for n in range(30))))
        assert [hit.position for hit in await session.search("word", limit=3)] == [29, 28, 27]
        assert len(await session.search("word")) == 20
        assert await session.search("word", limit=0) == []

    async def test_a_search_is_correct_after_every_change(self, session: Any) -> None:
        await session.add_items(user_messages(*SEARCHED_TEXTS))
        await self.assert_matches_scan(session, "refund")
        await session.pop_item()
        await self.assert_matches_scan(session, "refund")
        await session.splice_items(1, 3, user_messages("a refund in the middle", "and another refund"))
        await self.assert_matches_scan(session, "refund")
        await session.rewind(3)
        await self.assert_matches_scan(session, "refund")
        await session.add_items(user_messages("a last refund"))
        await self.assert_matches_scan(session, "refund")
        await session.restore(0)
        await self.assert_matches_scan(session, "refund")
        await session.replace_items(user_messages("no more"))
        await self.assert_matches_scan(session, "refund")
        await session.clear_session()
        await self.assert_matches_scan(session, "refund")

    async def test_forks_search_the_items_that_they_show(self, session: Any) -> None:
        await session.add_items(user_messages(*(f"refund {n}" for n in range(6))))
        child = await session.fork(4, "child")
        await child.add_items(user_messages(*(f"refund child {n}" for n in range(6))))
        grandchild = await child.fork(8, "grandchild")
        await grandchild.add_items(user_messages("refund grandchild", "other"))
        for one in (session, child, grandchild):
            for limit in (2, 5, 50):
                await self.assert_matches_scan(one, "refund", limit=limit)

    @pytest.mark.parametrize("forget", [False, True])
    async def test_a_fork_is_searched_after_its_parent_is_erased(self, storage: Any, forget: bool) -> None:
        session = self.open_session(storage, "s")
        await session.add_items(user_messages("refund one", "refund two", "refund three"))
        child = await session.fork(2, "child")
        await session.clear_session()
        if forget:
            await self.get_backend(storage).commit(Erase(session_id="s", forget=True))
        await self.assert_matches_scan(child, "refund")

    async def test_a_search_covers_one_session_only(self, storage: Any) -> None:
        for name in ("s", "t"):
            await self.open_session(storage, name).add_items(user_messages(f"refund in {name}"))
        (hit,) = await self.open_session(storage, "s").search("refund")
        assert hit.session_id == "s"

    async def test_a_search_in_a_session_that_does_not_exist_finds_nothing(self, session: Any) -> None:
        assert await session.search("refund") == []

    async def test_a_query_that_is_too_long_is_refused(self, session: Any) -> None:
        await session.add_items([{"role": "user", "content": "refund"}])
        longest = " ".join("ab" for _ in range(MAX_QUERY_LENGTH // 3))
        assert await session.search(longest) == []
        assert await session.search(" ".join(f"{n:x}" for n in range(250))) == []
        for query in ("x" * 100_000, "x " * 50_000):
            with pytest.raises(InvalidInput, match="query must have at most 1000 characters, got 100000"):
                await session.search(query)

    async def test_searches_and_writes_may_be_concurrent(self, session: Any) -> None:
        await asyncio.gather(
            *(session.add_items(user_messages(f"refund {n}")) for n in range(10)),
            *(session.search("refund") for _ in range(10)),
        )
        await self.assert_matches_scan(session, "refund")

    async def assert_matches_scan(self, session: Any, query: str, *, limit: int = 20) -> None:
        """Compare a search with a scan of all items."""
        terms = extract_words(query)
        items: list[Item] = await session.get_items()
        expected = [
            (position, item)
            for position, item in enumerate(items)
            if terms and matches_terms(extract_text(item), terms)
        ]
        hits = await session.search(query, limit=limit)
        assert [(hit.position, hit.item) for hit in hits] == expected[::-1][:limit], f"search for {query!r}"
