"""Databases that were written when the product was called holdfast are opened as they are."""

import gzip
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis

from factories.items import user_message
from redis_server import running
from servers import dsn
from standfast import open_store
from standfast.history.store import Store
from standfast.store.sql.connection import FORMER_DEFAULT_NAMES

GOLDEN = Path(__file__).parents[1] / "golden" / "holdfast.db.gz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    return path


def get_prefixes(path: Path) -> set[str]:
    """The prefixes of all tables in an SQLite file."""
    with closing(sqlite3.connect(path)) as raw:
        names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name.partition("_")[0] for (name,) in names} - {"sqlite"}


async def get_texts(store: Store, session_id: str) -> list[str]:
    return [item["content"] for item in await store.session(session_id).get_items()]


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
async def test_a_file_written_under_the_former_name_is_read_and_written(path: Path, scheme: str) -> None:
    async with open_store(f"{scheme}:///{path}") as store:
        listed = {info.session_id for info in await store.sessions()}
        assert listed == {"user-7", "user-7-b", "replaced", "secret", "paused", "ended", "long"}
        assert await get_texts(store, "user-7") == ["a refund please", "which order?"]
        assert (await store.describe("user-7")).metadata == {"plan": "gold"}
        assert (await get_texts(store, "user-7-b"))[:2] == ["a refund please", "which order?"]
        assert len(await get_texts(store, "user-7-b")) == 3
        assert len(await store.session("long").get_items()) == 122
        assert {(hit.session_id, hit.position) for hit in await store.search("refund")} >= {
            ("user-7", 0),
            ("user-7-b", 0),
        }
        await store.session("user-7").add_items([user_message("thank you")])
        await store.session("new").add_items([user_message("hello")])
        assert (await store.session("user-7").check()).ok
    async with open_store(f"{scheme}:///{path}") as store:
        assert (await get_texts(store, "user-7"))[-1] == "thank you"
        assert await get_texts(store, "new") == ["hello"]
    assert get_prefixes(path) == {"holdfast"}


async def test_forks_of_a_former_file_outlive_their_parent(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        before = await get_texts(store, "user-7-b")
        await store.delete("user-7")
        assert await get_texts(store, "user-7-b") == before


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
async def test_a_new_file_gets_the_present_names(tmp_path: Path, scheme: str) -> None:
    async with open_store(f"{scheme}:///{tmp_path / 'app.db'}") as store:
        await store.session("s").add_items([user_message("hello")])
    assert get_prefixes(tmp_path / "app.db") == {"standfast"}


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
async def test_present_tables_win_over_former_ones(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:///{tmp_path / 'app.db'}"
    async with open_store(url) as store:
        await store.session("s").add_items([user_message("present")])
    async with open_store(url, names=FORMER_DEFAULT_NAMES) as store:
        await store.session("s").add_items([user_message("former")])
    async with open_store(url) as store:
        assert await get_texts(store, "s") == ["present"]


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
async def test_a_table_of_another_program_is_left_alone(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("CREATE TABLE holdfast_sessions (prompt TEXT)")
    async with open_store(f"{scheme}:///{path}") as store:
        await store.session("s").add_items([user_message("hello")])
    assert get_prefixes(path) == {"holdfast", "standfast"}


async def test_a_postgres_database_written_under_the_former_name_is_read_and_written(postgres_url: str) -> None:
    async with open_store(postgres_url, names=FORMER_DEFAULT_NAMES) as store:
        await fill(store)
    async with open_store(postgres_url) as store:
        await check_filled(store)
        assert [hit.session_id for hit in await store.search("refund")] == ["user-7", "user-7-b"]
    admin = await asyncpg.connect(dsn(postgres_url))
    try:
        tables = await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    finally:
        await admin.close()
    assert {name.partition("_")[0] for (name,) in tables} == {"holdfast"}


@pytest.fixture(params=[False, True], ids=["one server", "cluster"])
async def own_redis_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A server without other tests' keys: the default prefix is the same for all of them."""
    with running(cluster=request.param) as server:
        yield server.url


async def test_a_redis_server_written_under_the_former_prefix_is_read_and_written(own_redis_url: str) -> None:
    async with open_store(own_redis_url, prefix="holdfast") as store:
        await fill(store)
    async with open_store(own_redis_url) as store:
        await check_filled(store)
        assert {hit.session_id for hit in await store.search("refund")} == {"user-7", "user-7-b"}
    async with Redis.from_url(own_redis_url.replace("+cluster", "")) as client:
        assert {key.partition(b":")[0] async for key in client.scan_iter()} == {b"holdfast"}
        await client.flushall()
    async with open_store(own_redis_url) as store:
        await fill(store)
    async with open_store(own_redis_url, prefix="holdfast") as store:
        await store.session("former").add_items([user_message("hello")])
    async with open_store(own_redis_url) as store:
        assert {info.session_id for info in await store.sessions()} == {"user-7", "user-7-b"}


async def test_a_redis_user_without_access_to_the_former_prefix_can_use_the_present_one() -> None:
    with running() as server:
        async with Redis.from_url(server.url) as client:
            await client.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~standfast:*", "+@all")
        async with open_store(server.url.replace("unix://", "unix://limited:secret@")) as store:
            await fill(store)
            await check_filled(store)


async def fill(store: Store) -> None:
    session = store.session("user-7")
    await session.add_items([user_message("a refund please"), user_message("which order?")])
    await session.fork(at=1, session_id="user-7-b")


async def check_filled(store: Store) -> None:
    assert {info.session_id for info in await store.sessions()} == {"user-7", "user-7-b"}
    assert await get_texts(store, "user-7") == ["a refund please", "which order?"]
    assert await get_texts(store, "user-7-b") == ["a refund please"]
    await store.session("user-7").add_items([user_message("thank you")])
    assert (await get_texts(store, "user-7"))[-1] == "thank you"
