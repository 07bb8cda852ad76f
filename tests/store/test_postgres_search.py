"""Full-text search in PostgreSQL."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from standfast.store.operations import Erase, Splice, ViewUpdate
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.tape import TapeSpan
from standfast.testing import FakeClock, closing_backend


@pytest.fixture(params=[True, False], ids=["with function", "with statements"])
async def backend(request: pytest.FixtureRequest, postgres_tables_url: str) -> AsyncIterator[SqlBackend]:
    clock = FakeClock()
    engine = create_async_engine(postgres_tables_url)
    async with closing_backend(SqlBackend(engine, owns_engine=True, clock=clock, server_side=request.param)) as backend:
        texts_by_session = {"old": ["the quick fox", "a lazy dog"], "new": ["quick thinking", "it's über o'clock", ""]}
        for number, (name, texts) in enumerate(texts_by_session.items()):
            add = tuple(text.encode() for text in texts)
            words = tuple(text.replace("'", " ") for text in texts)
            await backend.commit(Splice(session_id=name, add=add, words=words, owner=name.upper(), tape=number + 1))
            clock.advance(1)
        view = ViewUpdate((TapeSpan(1, 0, 1),), 0, 1)
        await backend.commit(Splice(session_id="fork", view_update=view, expected=0, links=((1, 1),), tape=3))
        yield backend


async def search(backend: SqlBackend, *terms: str, **filters: Any) -> list[tuple[str, bytes]]:
    where = {"session_id": None, "owner": None, "limit": 10, "skip": 0, **filters}
    return [(hit.session_id, hit.data) for hit in await backend.search(terms, **where) or []]


async def test_words_are_found_by_prefix_newest_sessions_first(backend: SqlBackend) -> None:
    fox, thinking = b"the quick fox", b"quick thinking"
    assert await search(backend, "qui") == [("fork", fox), ("new", thinking), ("old", fox)]
    assert await search(backend, "quick", "f") == [("fork", fox), ("old", fox)]
    assert await search(backend, "uick") == []
    assert await search(backend, "übe") == [("new", "it's über o'clock".encode())]


async def test_a_search_can_be_narrowed_and_paged(backend: SqlBackend) -> None:
    fox, thinking = b"the quick fox", b"quick thinking"
    assert await search(backend, "quick", session_id="old") == [("old", fox)]
    assert await search(backend, "quick", owner="NEW") == [("new", thinking)]
    assert await search(backend, "quick", limit=1, skip=1) == [("new", thinking)]


@pytest.mark.parametrize("term", ["'", "\\", "a & !b", "x':*", ":*", "()", "<->"])
async def test_a_search_term_is_never_a_query(backend: SqlBackend, term: str) -> None:
    assert await search(backend, term) == []


async def test_erased_words_are_not_found(backend: SqlBackend) -> None:
    await backend.commit(Erase(session_id="new"), Erase(session_id="old"))
    assert await search(backend, "quick") == [("fork", b"the quick fox")]
    assert await search(backend, "lazy") == []


async def test_other_databases_have_no_search_index() -> None:
    async with closing_backend(SqlBackend.from_url("sqlite://")) as backend:
        assert not backend.indexes_words
        assert await backend.search(["x"], session_id=None, owner=None, limit=1, skip=0) is None
