"""Links: short messages between the users of one store, in order for each sender and never twice."""

import asyncio
import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from servers import CUT_OTHERS, dsn
from standfast.store.links import LinkUnavailable
from standfast.store.sqlite.socket_link import SocketLink, get_link_folder
from standfast.store.urls import open_backend


class Listener:
    """What one end has received, and which losses were reported to it."""

    def __init__(self):
        self.received, self.losses, self.changed = [], [], asyncio.Event()

    def receive(self, sender, data):
        self.received.append((sender, data))
        self.changed.set()

    def note_loss(self, sender):
        self.losses.append(sender)
        self.changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    async def get(self, count):
        await self.until(lambda self: len(self.received) >= count)
        return self.received


@asynccontextmanager
async def open_end(url, name):
    """Open one end with a backend of its own, as another process would."""
    backend, listener = await open_backend(url), Listener()
    try:
        link = await backend.open_link(name, listener)
        try:
            yield link, listener
        finally:
            await link.close()
    finally:
        await backend.close()


@pytest.fixture(params=["sqlite", "sqlalchemy", "postgresql"])
def url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_tables_url")
    scheme = "sqlite" if request.param == "sqlite" else "sqlite+aiosqlite"
    return f"{scheme}:///{tmp_path / 'app.db'}"


async def test_messages_arrive_once_in_order_and_whole(url):
    sizes = [0, 1, 100, 5699, 5700, 5701, 70_000, 900_000]
    async with open_end(url, "one") as (one, _), open_end(url, "two") as (_, two):
        sent = [os.urandom(size) for size in sizes] + [str(n).encode() for n in range(500)]
        for data in sent:
            one.send("two", data)
        assert await two.get(len(sent)) == [("one", data) for data in sent]


async def test_a_broadcast_reaches_everybody_else(url):
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(open_end(url, name)) for name in ("a", "b", "c")]
        ends[0][0].broadcast(b"hello")
        for _, listener in ends[1:]:
            assert await listener.get(1) == [("a", b"hello")]
        ends[1][0].send("a", b"back")
        assert await ends[0][1].get(1) == [("b", b"back")]


async def test_sending_to_a_closed_link_is_not_an_error(url):
    async with open_end(url, "one") as (one, _):
        async with open_end(url, "two") as (_, listener):
            one.send("two", b"1")
            await listener.get(1)
        one.send("two", b"2")
        one.send("never", b"3")
        one.broadcast(b"4")
        async with open_end(url, "two") as (_, listener):
            one.send("two", b"5")
            assert (await listener.get(1))[-1] == ("one", b"5")


async def test_the_end_of_a_sender_is_noticed(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with open_end(url, "one") as (_, listener):
        async with open_end(url, "two") as (two, _):
            two.send("one", b"1")
            await listener.get(1)
        await listener.until(lambda self: self.losses == ["two"])


async def test_other_stores_hear_nothing(tmp_path, postgres_tables_url):
    for first, second in (
        (f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"),
        (postgres_tables_url, f"{postgres_tables_url}&tables=silent_sessions,silent_items"),
    ):
        async with open_end(first, "x") as (x, _), open_end(second, "y") as (_, y), open_end(first, "z") as (_, z):
            x.broadcast(b"secret")
            x.send("y", b"secret")
            x.send("z", b"last")
            await z.get(2)
            assert not y.received


async def test_sockets_of_dead_processes_are_removed(tmp_path):
    path = str(tmp_path / "app.db")
    dead = get_link_folder(path) / "dead"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(dead))
        left.listen()
    assert dead.exists()
    async with open_end(f"sqlite:///{path}", "one") as (one, _):
        one.broadcast(b"hello")
        assert sorted(os.listdir(dead.parent)) == ["one"]
    assert not dead.parent.exists()


async def test_a_directory_that_others_can_enter_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / f"standfast-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(LinkUnavailable, match="only this user"):
        async with open_end(f"sqlite:///{tmp_path / 'app.db'}", "one"):
            pass


async def test_a_reader_that_does_not_read_costs_a_limited_amount(tmp_path):
    path = str(tmp_path / "app.db")
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(os.fspath(get_link_folder(path) / "deaf"))
        deaf.listen()
        async with open_end(f"sqlite:///{path}", "one") as (one, _):
            one.send("deaf", b"1")
            await asyncio.sleep(0)
            for _ in range(100):
                one.send("deaf", bytes(2**18))
                await asyncio.sleep(0)
            [peer] = one.outgoing.values()
            assert peer._transport.get_write_buffer_size() < 6 * 2**20
    os.unlink(get_link_folder(path) / "deaf")


async def test_a_connection_that_is_cut_is_made_again(postgres_tables_url):
    admin = await asyncpg.connect(dsn(postgres_tables_url))
    try:
        async with open_end(postgres_tables_url, "one") as (one, _), open_end(postgres_tables_url, "two") as (_, two):
            one.send("two", b"before")
            await two.get(1)
            await admin.execute(CUT_OTHERS)
            await two.until(lambda self: None in self.losses)
            async with asyncio.timeout(60):
                while two.received[-1] != ("one", b"after"):  # it may be connecting itself
                    one.send("two", b"after")
                    await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def test_databases_without_links_say_so(tmp_path, postgres_tables_url):
    backend = await open_backend("sqlite:///:memory:")
    try:
        with pytest.raises(LinkUnavailable, match="memory"):
            await backend.open_link("one", Listener())
    finally:
        await backend.close()
    pytest.importorskip("psycopg")
    engine = create_async_engine(sqlalchemy.make_url(postgres_tables_url).set(drivername="postgresql+psycopg"))
    backend = await open_backend(engine)
    try:
        with pytest.raises(LinkUnavailable, match="asyncpg"):
            await backend.open_link("one", Listener())
    finally:
        await backend.close()
        await engine.dispose()


async def test_nothing_is_left_behind_by_a_link_to_a_file(tmp_path):
    path = str(tmp_path / "app.db")
    folder = get_link_folder(path)
    links = [await SocketLink.open(path, f"runtime_{number}", Listener()) for number in range(2)]
    assert len(list(folder.iterdir())) == 2
    for link in links:
        await link.close()
    assert not folder.exists()
    opening = asyncio.ensure_future(SocketLink.open(path, "runtime_3", Listener()))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    assert not opening.cancelled() or not folder.exists()
    if not opening.cancelled():
        await opening.result().close()


@pytest.mark.parametrize("ticks", range(5))
async def test_a_connection_that_arrives_while_a_link_closes_is_closed_with_it(tmp_path, ticks):
    path = str(tmp_path / "app.db")
    link = await SocketLink.open(path, "runtime_1", Listener())
    with socket.socket(socket.AF_UNIX) as raw:
        raw.setblocking(False)
        raw.connect(os.fspath(get_link_folder(path) / "runtime_1"))
        for _ in range(ticks):
            await asyncio.sleep(0)
        await link.close()
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(raw, 1) == b""
