"""Redis: a damaged session hides no other, and a write whose caller was cancelled is not overtaken."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from factories.history import message
from redis_server import redis_url
from standfast import NotFound, SessionDamaged, open_store

__all__ = ["redis_url"]

DAMAGE: dict[str, dict[str, str]] = {
    "a time that is no number": {"updated_at": "junk"},
    "a version that is no number": {"version": "x"},
    "spans that are no JSON": {"closed": "{"},
}


@pytest.mark.parametrize("damage", [*DAMAGE, "closed", "tape"])
async def test_a_damaged_session_does_not_hide_others(redis_url: str, damage: str) -> None:
    prefix = secrets.token_hex(8)
    async with open_store(redis_url, prefix=prefix) as store, Redis.from_url(redis_url) as client:
        for number in range(102):  # more than a page of the listing
            await store.session(f"s{number}").add_items([message("word")])
        victim = (await store.sessions(limit=100))[-1].session_id
        key = f"{prefix}:{{{victim}}}"
        if damage in DAMAGE:
            await client.hset(key, mapping=DAMAGE[damage])
        else:
            await client.hdel(key, damage)
        assert len(await store.sessions(limit=None)) == len(await store.search("word", limit=None)) == 101
        for refused in (
            store.session(victim).get_items(),
            store.session(victim).head(),
            store.session(victim).check(),
            store.session(victim).fork(),
            store.describe(victim),
        ):
            with pytest.raises(SessionDamaged):
                await refused
        before = await client.hgetall(key)
        if damage != "spans that are no JSON":  # an append does not need the earlier spans
            with pytest.raises(SessionDamaged):
                await store.session(victim).add_items([message("more")])
            assert await client.hgetall(key) == before
        if damage == "tape":  # without it the items could not be found
            with pytest.raises(SessionDamaged):
                await store.delete(victim)
            return
        await store.delete(victim)
        with pytest.raises(NotFound):
            await store.describe(victim)
        assert [name async for name in client.scan_iter(f"{key}*")] == []


async def test_unreadable_metadata_does_not_hide_the_history(redis_url: str) -> None:
    prefix = secrets.token_hex(8)
    async with open_store(redis_url, prefix=prefix) as store, Redis.from_url(redis_url) as client:
        await store.session("s").add_items([message("word")])
        await store.annotate("s", {"title": "one", "rank": 2})
        await client.hset(f"{prefix}:{{s}}", "#title", "junk")
        assert len(await store.session("s").get_items()) == 1
        assert (await store.describe("s")).metadata == {"rank": 2}


class SlowLink:
    """A proxy that holds back what a client sends, from the first bytes with ``marker`` on, until it is released."""

    def __init__(self, url: str, marker: bytes) -> None:
        self.address, self.marker = urlsplit(url), marker
        self.held, self.released = asyncio.Event(), asyncio.Event()
        self.tasks = set[asyncio.Task[None]]()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self.serve(reader, writer)))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.scheme == "unix":
            return await asyncio.open_unix_connection(self.address.path)
        return await asyncio.open_connection(self.address.hostname, self.address.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await self.connect()

        async def answer() -> None:
            while data := await server_reader.read(2**16):
                writer.write(data)

        answering = asyncio.create_task(answer())
        try:
            while data := await reader.read(2**16):
                if self.marker in data:
                    self.held.set()
                    await self.released.wait()
                server_writer.write(data)
            server_writer.write_eof()
            await answering
        finally:
            answering.cancel()
            server_writer.close()
            writer.close()


@asynccontextmanager
async def slow_link(url: str, marker: bytes) -> AsyncIterator[tuple[SlowLink, str]]:
    link = SlowLink(url, marker)
    async with await asyncio.start_server(link.accept, "127.0.0.1", 0) as server:
        yield link, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    await asyncio.gather(*link.tasks)


async def test_a_cancelled_write_does_not_arrive_behind_a_later_one(redis_url: str) -> None:
    prefix = secrets.token_hex(8)
    async with slow_link(redis_url, b"cancelled") as (link, url), open_store(url, prefix=prefix) as store:
        session = store.session("s")
        await session.add_items([message("first")])
        writing = asyncio.create_task(session.add_items([message("cancelled")]))
        await link.held.wait()
        writing.cancel()
        await asyncio.wait([writing])
        later = asyncio.create_task(session.add_items([message("later")]))
        async with open_store(redis_url, prefix=prefix) as direct:
            for _ in range(100):  # as many round trips as the later write would need, and more
                await direct.session("s").head()
            link.released.set()
            await later
            while len(items := await direct.session("s").get_items()) < 3:  # noqa: ASYNC110 - another connection writes
                await asyncio.sleep(0)
        assert [item["content"] for item in items] == ["first", "cancelled", "later"]
