"""The clauses of the session contract about searching."""

import asyncio
from typing import Any

import pytest

from standfast.base.items import Item, extract_text, extract_words, matches_terms
from standfast.store.contract import Erase
from standfast.testing.sessions.fixtures import StoredSessionFixtures
from standfast.testing.sessions.plain import user_messages

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
    """Finding items by their words."""

    @pytest.mark.parametrize("query", QUERIES)
    async def test_a_search_finds_what_a_scan_would_find(self, session: Any, query: str) -> None:
        await session.add_items(user_messages(*SEARCHED_TEXTS))
        await self.assert_matches_scan(session, query)

    async def test_a_hit_says_where_it_stands_and_what_it_says(self, session: Any) -> None:
        await session.add_items(user_messages("one", "two words", "three"))
        (hit,) = await session.search("word")
        assert (hit.session_id, hit.position, hit.item, hit.text) == (
            "s",
            1,
            user_messages("two words")[0],
            "two words",
        )

    async def test_the_newest_hits_come_first_and_the_limit_keeps_those(self, session: Any) -> None:
        await session.add_items(user_messages(*(f"word {n}" for n in range(30))))
        assert [hit.position for hit in await session.search("word", limit=3)] == [29, 28, 27]
        assert len(await session.search("word")) == 20
        assert await session.search("word", limit=0) == []

    async def test_a_search_follows_every_change(self, session: Any) -> None:
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

    async def test_forks_search_what_they_show(self, session: Any) -> None:
        await session.add_items(user_messages(*(f"refund {n}" for n in range(6))))
        child = await session.fork(4, "child")
        await child.add_items(user_messages(*(f"refund child {n}" for n in range(6))))
        grandchild = await child.fork(8, "grandchild")
        await grandchild.add_items(user_messages("refund grandchild", "other"))
        for one in (session, child, grandchild):
            for limit in (2, 5, 50):
                await self.assert_matches_scan(one, "refund", limit=limit)

    @pytest.mark.parametrize("forget", [False, True])
    async def test_a_fork_finds_what_its_erased_parent_left_it(self, place: Any, forget: bool) -> None:
        session = self.open_session(place, "s")
        await session.add_items(user_messages("refund one", "refund two", "refund three"))
        child = await session.fork(2, "child")
        await session.clear_session()
        if forget:
            await self.get_backend(place).commit(Erase(session_id="s", forget=True))
        await self.assert_matches_scan(child, "refund")

    async def test_a_search_sees_one_session_only(self, place: Any) -> None:
        for name in ("s", "t"):
            await self.open_session(place, name).add_items(user_messages(f"refund in {name}"))
        (hit,) = await self.open_session(place, "s").search("refund")
        assert hit.session_id == "s"

    async def test_a_session_that_does_not_exist_has_nothing_to_find(self, session: Any) -> None:
        assert await session.search("refund") == []

    async def test_searches_and_writes_at_once_do_not_disturb_each_other(self, session: Any) -> None:
        await asyncio.gather(
            *(session.add_items(user_messages(f"refund {n}")) for n in range(10)),
            *(session.search("refund") for _ in range(10)),
        )
        await self.assert_matches_scan(session, "refund")

    async def assert_matches_scan(self, session: Any, query: str, *, limit: int = 20) -> None:
        terms = extract_words(query)
        shown: list[Item] = await session.get_items()
        expected = [
            (position, item)
            for position, item in enumerate(shown)
            if terms and matches_terms(extract_text(item), terms)
        ]
        hits = await session.search(query, limit=limit)
        assert [(hit.position, hit.item) for hit in hits] == expected[::-1][:limit]
