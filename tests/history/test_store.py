"""Stores refuse invalid input with a typed error and change nothing."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from standfast import InvalidInput, NotFound, StandfastError, open_store
from standfast.history.store import Store
from standfast.store.sql.connection import TableNames
from standfast.testing import SqliteFaults

HUGE = 10**30
BROKEN = "\ud800"


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        await store.session("s").add_items([{"role": "user", "content": "word"}])
        yield store


def header(**more: Any) -> str:
    return json.dumps({"standfast": "session", "format": 1, "session_id": "new", **more})


REFUSED = {
    "an owner that is not a string": lambda store: store.sessions(owner={"a": 1}),
    "an owner that is not valid Unicode": lambda store: store.sessions(owner=BROKEN),
    "a search by an owner that is not a string": lambda store: store.search("word", owner=5),
    "an annotation by an owner that is not a string": lambda store: store.annotate("s", {}, owner=5),
    "a query that is not a string": lambda store: store.sessions(query=5),
    "a query that is not valid Unicode": lambda store: store.sessions(query=BROKEN),
    "a cursor that is not a string": lambda store: store.sessions(after=5),
    "a generation that is not an integer": lambda store: store.session("s").get_items(generation=[1]),
    "a generation to restore that is not an integer": lambda store: store.session("s").restore("x"),
    "bytes that are not base64": lambda store: store.import_([header(), '{"unreadable": "a"}']),
    "bytes that are not base64 either": lambda store: store.import_([header(), '{"unreadable": "!!!!"}']),
    "an imported owner that is not a string": lambda store: store.import_([header(owner={"a": 1})]),
    "imported annotations that are a list": lambda store: store.import_([header(metadata=[1])]),
    "imported annotations that are a text": lambda store: store.import_([header(metadata="abc")]),
    "a string instead of lines": lambda store: store.import_(header()),
    "a line that is not a string": lambda store: store.import_([header(), None]),
    "a number instead of lines": lambda store: store.import_(5),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
async def test_invalid_input_is_refused(store: Store, call: Any) -> None:
    before = await store.sessions()
    with pytest.raises(InvalidInput):
        await call(store)
    assert await store.sessions() == before


async def test_an_owner_is_checked_before_anything_is_written(store: Store) -> None:
    for owner in ({"a": 1}, BROKEN, 5):
        with pytest.raises(InvalidInput, match="owner"):
            store.session("new", owner=owner)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [HUGE, None])
async def test_a_huge_limit_and_none_mean_no_limit(store: Store, limit: int | None) -> None:
    assert len(await store.sessions(limit=limit)) == 1
    assert len(await store.search("word", limit=limit)) == 1
    assert len(await store.session("s").search("word", limit=limit)) == 1
    assert len(await store.session("s").get_items(limit=limit)) == 1


@pytest.mark.parametrize("generation", [-1, 7, HUGE])
async def test_an_unknown_generation_is_not_found(store: Store, generation: int) -> None:
    with pytest.raises(NotFound):
        await store.session("s").get_items(generation=generation)
    with pytest.raises(NotFound):
        await store.session("s").restore(generation)


async def test_a_bad_line_is_named_by_its_number_in_the_file(store: Store) -> None:
    with pytest.raises(InvalidInput, match=r"^line 4:"):
        await store.import_([header(), "", "\n", '{"no": "item"}'])


@pytest.mark.parametrize(
    "url",
    [
        "postgres//ann:secret@host/db",
        "//ann:secret@host/db",
        "ann:secret@host/db",
        "postgresql://[host:secret",
        "postgresql://ann:x@host:secret/db",
        "postgresql+asyncpg://ann:a/secret@host/db",
    ],
)
async def test_an_error_about_an_invalid_url_does_not_contain_secrets(url: str) -> None:
    with pytest.raises(StandfastError) as refused:
        await open_store(url)
    said, cause = str(refused.value), refused.value.__cause__
    assert "secret" not in said + str(cause or "")


async def test_an_object_that_is_neither_an_engine_nor_a_client_is_refused() -> None:
    from sqlalchemy import create_engine, make_url

    for handle in (make_url("postgresql+asyncpg://ann:secret@host/db"), create_engine("sqlite://")):
        with pytest.raises(InvalidInput, match="AsyncEngine") as refused:
            await open_store(handle)
        assert "secret" not in str(refused.value)


async def test_a_search_with_many_hidden_candidates_needs_few_queries(tmp_path: Path) -> None:
    asked: list[str] = []

    def connect(*args: Any, **kwargs: Any) -> Any:
        raw = SqliteFaults().connect(*args, **kwargs)
        raw.set_trace_callback(lambda said: asked.append(said) if "MATCH" in said else None)
        return raw

    async with open_store(f"sqlite:///{tmp_path}/store.db", connect=connect) as store:
        session = store.session("s")
        await session.add_items([{"role": "user", "content": f"word {n}"} for n in range(2_000)])
        await session.rewind(3)  # nearly all that matches is not shown any more
        assert len(await store.search("word", limit=5)) == 3
        assert len(asked) < 12


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("memory://", "clock"),
        ("sqlite:///{path}/a.db", "synchronous, busy_timeout"),
        ("sqlite+aiosqlite:///{path}/a.db", "engine_kwargs"),
        ("redis://localhost:1/0", "prefix, ttl"),
    ],
)
async def test_an_unknown_option_is_refused_with_the_known_ones(tmp_path: Path, url: str, known: str):
    with pytest.raises(InvalidInput) as refused:
        await open_store(url.format(path=tmp_path), colour="red")
    assert "takes no colour" in str(refused.value)
    assert known in str(refused.value)


@pytest.fixture(params=["sqlite", "sqlite+aiosqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_tables_url")
    return f"{request.param}:///{tmp_path}/a.db"


async def test_names_that_share_their_stem_with_another_store_are_refused(database_url: str) -> None:
    async with open_store(database_url, names=TableNames("shop_sessions", "shop_items")) as store:
        await store.session("s").add_items([{"role": "user", "content": "word"}])
    for names in (
        TableNames("shop_sessions", "others"),
        TableNames("shop", "shop_items"),
        TableNames("shop", "others"),
    ):
        with pytest.raises(InvalidInput, match="shop_schema belongs to a store with other tables"):
            await open_store(database_url, names=names)
    async with open_store(database_url, names=TableNames("shop_sessions", "shop_items")) as store:
        assert len(await store.session("s").get_items()) == 1
    async with open_store(database_url, names=TableNames("other_sessions", "others")) as store:
        assert await store.sessions() == []
