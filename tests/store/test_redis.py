"""The Redis backend: the store contract, and what is specific to Redis."""

import asyncio
import contextlib
import itertools
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from redis_server import RedisFaults, redis_cluster_url, redis_url, running
from standfast.base.errors import FenceLost, HistoryMoved, InvalidInput, StoreUnavailable, Unsupported
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendJournal,
    BatchKey,
    CheckFence,
    Erase,
    LeaseHeld,
    PutDocument,
    Quarantine,
    ReleaseLease,
    RenewLease,
    RequireVersion,
    SaveRun,
    Splice,
)
from standfast.store.records import Head
from standfast.store.redis.backend import MAX_TTL, RedisBackend
from standfast.testing import FakeClock, StoreContract, closing_backend
from standfast.testing.store.contract import RandomCommitClauses
from standfast.testing.store.fixtures import append, make_fork, make_rewind, read_data

__all__ = ["redis_cluster_url", "redis_url"]


@pytest.fixture
def prefix() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def faults() -> RedisFaults:
    return RedisFaults()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def backend(redis_url: str, prefix: str) -> AsyncIterator[RedisBackend]:
    async with closing_backend(RedisBackend.from_url(redis_url, prefix=prefix)) as backend:
        yield backend


@asynccontextmanager
async def open_faulty(faults: RedisFaults, url: str, prefix: str, **options: object) -> AsyncIterator[RedisBackend]:
    """A backend whose connections break on request."""
    async with faults.client(url) as client, closing_backend(RedisBackend(client, prefix=prefix, **options)) as backend:
        yield backend


async def list_keys(client: Redis, prefix: str) -> set[str]:
    return {key.decode().removeprefix(prefix) async for key in client.scan_iter(f"{prefix}:*", count=1000)}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110 - only the server knows when
            await asyncio.sleep(0.01)


# --- the contract -------------------------------------------------------------------------------


class RedisFixtures:
    runs = False

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url

    @pytest.fixture
    def reopen(self, url: str, prefix: str, clock: FakeClock):
        return lambda: closing_backend(RedisBackend.from_url(url, prefix=prefix, clock=clock))

    @pytest.fixture
    def corrupt(self) -> Callable[..., object]:
        async def corrupt(backend: RedisBackend, session_id: str, position: int, data: bytes | None) -> None:
            page = await backend.read(session_id, start=position, stop=position + 1)
            key = f"{backend.keys.prefix}:{{{session_id}}}:tape:{page.rows[0].tape}"
            if data is None:
                await backend.connection.client.hdel(key, str(page.rows[0].seq))
            else:
                await backend.connection.client.hset(key, str(page.rows[0].seq), data)

        return corrupt

    @pytest.fixture
    def list_items(self) -> Callable[..., object]:
        async def list_items(backend: RedisBackend) -> dict[tuple[int, int], bytes]:
            client, found = backend.connection.client, {}
            async for key in client.scan_iter(f"{backend.keys.prefix}:*:tape:*", count=1000):
                tape = int(key.rpartition(b":")[2])
                found |= {(tape, int(seq)): data for seq, data in (await client.hgetall(key)).items()}
            return found

        return list_items


class RedisContract(RedisFixtures, StoreContract):
    async def test_a_link_of_an_earlier_version_keeps_all_items_its_fork_may_contain(
        self, backend: RedisBackend, list_items
    ) -> None:
        await append(backend, "parent", b"a", b"removed", tape=1)
        await backend.commit(await make_rewind(backend, "parent", 1, b"b", b"c"))
        await backend.commit(await make_fork(backend, "parent", "child", 2))
        links = f"{backend.keys.prefix}:{{parent}}:links:1"
        (link,) = await backend.connection.client.hkeys(links)
        await backend.connection.client.hset(links, link, "3")
        await backend.commit(Erase(session_id="parent", forget=True))
        assert await read_data(backend, "child") == [b"a", b"b"]
        assert await list_items(backend) == {(1, 0): b"a", (1, 1): b"removed", (1, 2): b"b"}


class FaultyRedisFixtures(RedisFixtures):
    """Connections that break on request."""

    @pytest.fixture
    def reopen(self, url: str, prefix: str, clock: FakeClock, faults: RedisFaults):
        return lambda: open_faulty(faults, url, prefix, clock=clock)

    @pytest.fixture
    def failing_after(self, faults: RedisFaults):
        return faults.fail_after


class TestRedis(FaultyRedisFixtures, RedisContract):
    examples = 4

    async def test_a_driver_failure_at_any_statement_changes_nothing(self, backend, failing_after) -> None:
        # The test of the suite expects several statements for a commit; here there is one.
        await self.populate(backend)
        before = await self.dump(backend)
        ops = await self.make_ops_of_every_kind(backend)
        for commands in itertools.count():
            with failing_after(commands) as fault, contextlib.suppress(StoreUnavailable):
                await backend.commit(*ops)
            if not fault.triggered:
                break
            assert await self.dump(backend) == before
        assert await self.dump(backend) != before


@pytest.mark.soak
class TestRandomCommits(FaultyRedisFixtures, RandomCommitClauses):
    examples = 60


class TestRedisCluster(RedisContract):
    @pytest.fixture
    def url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url

    @pytest.fixture(autouse=True)
    def refused_across_slots(self, request: pytest.FixtureRequest) -> None:
        """Tests whose commits concern several sessions fail only because such commits are refused."""
        if request.node.originalname == "test_random_commits_match_the_reference":
            pytest.skip("most of them cross slots; test_redis_differential.py has random commits for a cluster")
        if request.node.originalname in {
            "test_every_operation_has_its_own_result_in_order",
            "test_a_failing_operation_changes_nothing",
            "test_everything_is_kept_after_reopening",
            "test_a_fence_refuses_the_writes_of_a_former_owner",
            "test_a_lease_and_a_fence_may_share_a_commit",
        }:
            request.node.add_marker(pytest.mark.xfail(raises=Unsupported, strict=True))


# --- commits ------------------------------------------------------------------------------------


async def test_a_commit_and_a_read_are_one_round_trip_each(
    redis_url: str, prefix: str, faults: RedisFaults, client: Redis
) -> None:
    async with open_faulty(faults, redis_url, prefix) as backend:
        await append(backend, "s", b"a", b"b")
        for expected, call in (
            (1, lambda: append(backend, "s", b"c", key=BatchKey("k", "d"))),
            (1, lambda: backend.read("s", last=20)),
            (1, lambda: backend.commit(Erase(session_id="s"), AcquireLease(name="l", owner="me", ttl=5))),
            (1, lambda: backend.list_sessions(owner=None, query=None, limit=10, after=None)),
        ):
            faults.sent = 0
            await call()
            assert faults.sent == expected


async def test_a_batch_whose_last_operation_fails_writes_nothing(backend: RedisBackend, client: Redis) -> None:
    await append(backend, "s", b"a")
    (held,) = await backend.commit(AcquireLease(name="l", owner="me", ttl=60))
    before = {
        key: await client.dump(f"{backend.keys.prefix}{key}") for key in await list_keys(client, backend.keys.prefix)
    }
    for last in (RequireVersion("s", 99), CheckFence("l", held.token + 1), AcquireLease(name="l", owner="you", ttl=1)):
        with pytest.raises((HistoryMoved, FenceLost, LeaseHeld)):
            await backend.commit(
                Splice(session_id="s", add=(b"b",), key=BatchKey("k", "d")),
                Splice(session_id="new", add=(b"b",)),
                Annotate(session_id="s", metadata={"title": "x"}),
                Quarantine(session_id="s", tape=1, seq=0, reason="bad"),
                RenewLease(name="l", token=held.token, ttl=90),
                Erase(session_id="s", forget=True),
                last,
            )
    after = {
        key: await client.dump(f"{backend.keys.prefix}{key}") for key in await list_keys(client, backend.keys.prefix)
    }
    assert after == before


async def test_operations_after_a_forget_in_one_commit_see_a_new_session(backend: RedisBackend) -> None:
    keyed = Splice(session_id="s", add=(b"a",), key=BatchKey("k", "d"), seal=b"seal", owner="me")
    await backend.commit(keyed, keyed, Annotate(session_id="s", metadata={"title": "x"}))
    again = Splice(session_id="s", add=(b"b",), key=BatchKey("k", "other"))
    assert await backend.commit(Erase(session_id="s", forget=True), again, again) == [Head(0, 0), *[Head(1, 1)] * 2]
    record = await backend.get_session("s")
    assert (record.seal, record.owner, record.metadata) == (None, None, {})
    assert await read_data(backend, "s") == [b"b"]


async def test_a_key_of_another_type_is_refused_before_anything_is_written(
    backend: RedisBackend, client: Redis
) -> None:
    await client.set(f"{backend.keys.prefix}:{{s}}:keys", "a string")
    with pytest.raises(StoreUnavailable):
        await append(backend, "s", b"a", key=BatchKey("k", "d"))
    assert await list_keys(client, backend.keys.prefix) == {":{s}:keys"}


async def test_eight_writers_lose_nothing(redis_url: str, prefix: str) -> None:
    async with (
        closing_backend(RedisBackend.from_url(redis_url, prefix=prefix)) as one,
        closing_backend(RedisBackend.from_url(redis_url, prefix=prefix)) as two,
    ):

        async def write(backend: RedisBackend, task: int) -> None:
            for n in range(25):
                await append(backend, "s", b"%d.%d" % (task, n), b"%d.%d" % (task, n))

        await asyncio.gather(*(write(backend, task) for task, backend in enumerate([one, two] * 4)))
        there = await read_data(one, "s")
        assert there[::2] == there[1::2]
        assert sorted(filter(None, there[::2])) == sorted(b"%d.%d" % (t, n) for t in range(8) for n in range(25))
        assert await one.get_session("s") == await two.get_session("s")


async def test_more_callers_than_connections_wait_for_their_turn(redis_url: str, prefix: str) -> None:
    options = {"max_connections": 2}
    async with closing_backend(RedisBackend.from_url(redis_url, prefix=prefix, redis_kwargs=options)) as backend:
        await asyncio.gather(*(append(backend, "s", b"x") for _ in range(100)))
        assert len(await read_data(backend, "s")) == 100


async def test_runs_are_refused_before_anything_is_sent(redis_url: str, prefix: str, faults: RedisFaults) -> None:
    async with open_faulty(faults, redis_url, prefix) as backend:
        await append(backend, "s", b"a")
        faults.sent = 0
        for op in (
            SaveRun(run_id="r", expected=0, status="x", data=b""),
            AppendJournal(run_id="r", entries=()),
            PutDocument(kind="k", key="a", data=b""),
        ):
            with pytest.raises(Unsupported):
                await backend.commit(Splice(session_id="s", add=(b"b",)), op)
        with pytest.raises(Unsupported):
            await backend.list_runs(status=None, session_id=None, limit=1, after=0)
        with pytest.raises(Unsupported):
            await backend.list_documents("k", limit=1)
        assert faults.sent == 0


async def test_long_histories_and_batches_go_through(backend: RedisBackend) -> None:
    items = tuple(b"%d" % n for n in range(20_001))
    await append(backend, "s", *items)
    assert await read_data(backend, "s") == list(items)
    assert await read_data(backend, "s", last=3) == list(items[-3:])
    await backend.commit(await make_fork(backend, "s", "fork", 5))
    await backend.commit(Erase(session_id="s"))
    assert await read_data(backend, "fork") == list(items[:5])


# --- failures -----------------------------------------------------------------------------------


async def test_a_keyed_commit_with_a_lost_response_is_sent_again(
    redis_url: str, prefix: str, faults: RedisFaults
) -> None:
    async with open_faulty(faults, redis_url, prefix) as backend:
        await append(backend, "s", b"a")
        with faults.fail_after(0, late=True) as fault:
            assert await append(backend, "s", b"b", key=BatchKey("k", "d")) == Head(2, 2)
        assert fault.triggered
        assert await read_data(backend, "s") == [b"a", b"b"]


async def test_a_batch_without_key_is_never_sent_twice(redis_url: str, prefix: str, faults: RedisFaults) -> None:
    async with open_faulty(faults, redis_url, prefix) as backend:
        await append(backend, "s", b"a")
        faults.sent = 0
        with faults.fail_after(0, late=True), pytest.raises(StoreUnavailable):
            await append(backend, "s", b"b")
        assert faults.sent == 1
        assert await read_data(backend, "s") == [b"a", b"b"]


async def test_scripts_are_sent_again_to_a_server_that_lost_them(backend: RedisBackend, client: Redis) -> None:
    await append(backend, "s", b"a")
    await client.script_flush()
    assert await append(backend, "s", b"b") == Head(2, 2)
    await client.script_flush()
    assert await read_data(backend, "s") == [b"a", b"b"]


async def test_a_server_that_comes_back_is_used_again(prefix: str) -> None:
    with running() as server:
        async with closing_backend(RedisBackend.from_url(server.url, prefix=prefix)) as backend:
            await append(backend, "s", b"a")
            server.stop()
            assert not await backend.ping()
            with pytest.raises(StoreUnavailable):
                await append(backend, "s", b"b")
            with pytest.raises(StoreUnavailable):
                await backend.read("s")
            server.start()
            assert await backend.ping()
            await append(backend, "t", b"c")
            assert await read_data(backend, "t") == [b"c"]


async def test_an_error_does_not_contain_the_password(prefix: str) -> None:
    url = "redis://me:s3cret@127.0.0.1:1/0?socket_connect_timeout=1"
    async with closing_backend(RedisBackend.from_url(url, prefix=prefix)) as backend:
        with pytest.raises(StoreUnavailable) as problem:
            await backend.read("s")
    assert "s3cret" not in str(problem.value)
    assert "127.0.0.1:1" in str(problem.value)


async def test_cancelled_callers_leak_no_connection(redis_url: str, prefix: str) -> None:
    chance = random.Random(7)
    async with (
        Redis.from_url(redis_url, max_connections=4) as client,
        closing_backend(RedisBackend(client, prefix=prefix)) as backend,
    ):
        for name in "abcd":
            await append(backend, name, name.encode())
        for _ in range(100):
            calls = [
                asyncio.create_task(append(backend, "a", b"a")),
                asyncio.create_task(read_data(backend, "b")),
                asyncio.create_task(backend.commit(AcquireLease(name="l", owner="me", ttl=5))),
            ]
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            for call in chance.sample(calls, 2):
                call.cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            problems = [answer for answer in answers if isinstance(answer, Exception)]
            assert problems == []
        # A commit waits for those whose callers were cancelled. All connections of the pool still return the response
        # to their own command.
        await append(backend, "a", b"a")
        answers = await asyncio.gather(*(client.echo(f"{n}") for n in range(4)))
        assert answers == [b"0", b"1", b"2", b"3"]
        assert await asyncio.gather(*(read_data(backend, name, last=1) for name in "abcd")) == [
            [b"a"],
            [b"b"],
            [b"c"],
            [b"d"],
        ]


# --- clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode_responses", [False, True])
async def test_any_client_can_be_used_and_stays_open(
    redis_url: str, prefix: str, protocol: int, decode_responses: bool
) -> None:
    async with Redis.from_url(redis_url, protocol=protocol, decode_responses=decode_responses) as client:
        backend = RedisBackend(client, prefix=prefix)
        await append(backend, "größe", b"\xff\x00", seal=b"\xfe")
        await backend.commit(Annotate(session_id="größe", metadata={"title": "ü"}, owner="ö"))
        await backend.commit(Quarantine(session_id="größe", tape=2**62, seq=3, reason="bäd"))
        (lease,) = await backend.commit(AcquireLease(name="l", owner="ä", ttl=60))
        assert await read_data(backend, "größe") == [b"\xff\x00"]
        (record,) = await backend.list_sessions(owner="ö", query="Ü", limit=5, after=None)
        assert (record.session_id, record.seal, record.metadata) == ("größe", b"\xfe", {"title": "ü"})
        assert [entry.reason for entry in await backend.list_quarantined("größe")] == ["bäd"]
        assert await backend.get_lease("l") == lease
        await backend.close()
        assert await client.ping()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), MAX_TTL * 2, True, "60"])
def test_a_ttl_out_of_range_is_refused(ttl: object) -> None:
    with pytest.raises(InvalidInput):
        RedisBackend.from_url("redis://localhost", ttl=ttl)


@pytest.mark.parametrize("bad", ["", "a{b}", "x" * 300, "a\x00"])
def test_an_invalid_prefix_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput):
        RedisBackend.from_url("redis://localhost", prefix=bad)


@pytest.mark.parametrize("bad", ["http://localhost", "redis://localhost:port", "nonsense"])
def test_an_invalid_url_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput):
        RedisBackend.from_url(bad)


# --- leases by the server's clock ---------------------------------------------------------------


async def test_an_expired_lease_is_granted_and_fences_off_its_former_owner(redis_url: str, prefix: str) -> None:
    far_ahead = FakeClock(now=9e9)
    async with (
        closing_backend(RedisBackend.from_url(redis_url, prefix=prefix)) as one,
        closing_backend(RedisBackend.from_url(redis_url, prefix=prefix)) as two,
    ):
        (first,) = await one.commit(AcquireLease(name="l", owner="one", ttl=60))
        with pytest.raises(LeaseHeld) as held:
            await two.commit(AcquireLease(name="l", owner="two", ttl=60))
        assert held.value.owner == "one"
        await one.commit(CheckFence("l", first.token), Splice(session_id="s", add=(b"by one",)))
        await one.commit(RenewLease(name="l", token=first.token, ttl=0.1))

        async def is_granted() -> bool:
            with contextlib.suppress(LeaseHeld):
                await two.commit(AcquireLease(name="l", owner="two", ttl=60))
                return True
            return False

        await until(is_granted)
        with pytest.raises(FenceLost):
            await one.commit(Splice(session_id="s", add=(b"late",)), CheckFence("l", first.token))
        with pytest.raises(FenceLost):
            await one.commit(RenewLease(name="l", token=first.token, ttl=60))
        second = await two.get_lease("l")
        assert second.token > first.token
        await two.commit(ReleaseLease(name="l", token=second.token))
        (third,) = await one.commit(AcquireLease(name="l", owner="one", ttl=60))
        assert third.token > second.token
        assert await read_data(one, "s") == [b"by one"]
        assert far_ahead() > third.expires_at


# --- expiry -------------------------------------------------------------------------------------

EXPIRIES = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do found[#found + 1] = {key, redis.call('PTTL', key)} end
return found
"""


async def read_expiries(client: Redis, prefix: str) -> dict[str, int]:
    """The milliseconds until each key of a session expires, read in one script."""
    found = await client.eval(EXPIRIES, 0, f"{prefix}:{{*")
    return {key.decode().removeprefix(prefix): milliseconds for key, milliseconds in found}


async def write_every_kind_of_key(backend: Backend, session_id: str) -> None:
    """Write a session that has every kind of key."""
    session = StoredSession(session_id, backend)
    await session.add_items([{"role": "user", "content": str(n)} for n in range(3)], key="k")
    await session.rewind(2)
    await backend.commit(Quarantine(session_id=session_id, tape=1, seq=0, reason="bad"))


async def test_all_keys_of_a_session_expire_together(redis_url: str, prefix: str, client: Redis) -> None:
    async with closing_backend(RedisBackend.from_url(redis_url, prefix=prefix, ttl=3)) as backend:
        await write_every_kind_of_key(backend, "s")
        found = await read_expiries(client, prefix)
        assert len(found) == 5
        assert 0 < min(found.values()) <= 3000

        async def expire_together() -> bool:
            # In Redis 6 the clock of PTTL advances inside a script: the values are only equal within a millisecond.
            return len(set((await read_expiries(client, prefix)).values())) == 1

        await until(expire_together)

        async def is_expired() -> bool:
            return await backend.get_session("s") is None

        await until(is_expired)
        assert await read_expiries(client, prefix) == {}
        assert await backend.list_sessions(owner=None, query=None, limit=5, after=None) == []
        assert await list_keys(client, prefix) == set()
        assert await append(backend, "s", b"new") == Head(1, 1)


@pytest.mark.parametrize("where", ["redis_url", "redis_cluster_url"])
async def test_items_of_a_fork_expire_with_the_fork(request: pytest.FixtureRequest, where: str, prefix: str) -> None:
    url = request.getfixturevalue(where)
    async with (
        closing_backend(RedisBackend.from_url(url, prefix=prefix, ttl=1000)) as short,
        closing_backend(RedisBackend.from_url(url, prefix=prefix, ttl=2000)) as long,
        Redis.from_url(url.replace("+cluster", "")) as client,
    ):
        await append(short, "parent", b"a", b"b")
        await short.commit(await make_fork(short, "parent", "child", 1))
        await short.commit(await make_fork(short, "child", "grandchild", 1))
        assert max((await read_expiries(client, prefix)).values()) <= 1_000_000
        await append(long, "grandchild", b"c")
        found = await read_expiries(client, prefix)
        lasting = {
            key.split(":tape")[0].split(":links")[0] for key, milliseconds in found.items() if milliseconds > 1_000_000
        }
        assert lasting == {":{parent}", ":{grandchild}"}
        assert found[":{parent}"] <= 1_000_000
        assert len([key for key in found if ":{parent}:" in key and found[key] > 1_000_000]) == 2


async def test_without_a_ttl_nothing_expires(backend: RedisBackend, client: Redis) -> None:
    await write_every_kind_of_key(backend, "s")
    assert set((await read_expiries(client, backend.keys.prefix)).values()) == {-1}


async def test_a_write_without_ttl_makes_all_keys_of_a_session_persistent(
    redis_url: str, prefix: str, client: Redis
) -> None:
    async with closing_backend(RedisBackend.from_url(redis_url, prefix=prefix, ttl=1000)) as backend:
        await write_every_kind_of_key(backend, "s")
    async with closing_backend(RedisBackend.from_url(redis_url, prefix=prefix)) as backend:
        await append(backend, "s", b"persistent")
    assert set((await read_expiries(client, prefix)).values()) == {-1}


# --- clusters -----------------------------------------------------------------------------------


class TestSlots:
    """A server in cluster mode, through the plain client: it refuses commands across slots, too."""

    @pytest.fixture
    def url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url.replace("+cluster", "")

    @pytest.fixture
    async def backend(self, url: str, prefix: str, faults: RedisFaults) -> AsyncIterator[RedisBackend]:
        async with open_faulty(faults, url, prefix) as backend:
            yield backend

    @pytest.fixture
    async def client(self, url: str) -> AsyncIterator[Redis]:
        async with Redis.from_url(url) as client:
            yield client

    async def test_appending_is_one_round_trip(self, backend: RedisBackend, faults: RedisFaults) -> None:
        await append(backend, "s", b"a")
        faults.sent = 0
        await append(backend, "s", b"b")
        assert faults.sent == 1

    async def test_forks_outlive_their_ancestors(self, backend: RedisBackend, client: Redis) -> None:
        parent = StoredSession("parent {a}", backend)
        items = [{"role": "user", "content": str(n)} for n in range(4)]
        await parent.add_items(items)
        child = await parent.fork(at=3, session_id="child }{")
        await child.add_items(items[:1])
        grandchild = await child.fork(session_id="grandchild")
        empty = await child.fork(at=0, session_id="empty")
        for session_id in (parent.session_id, child.session_id):
            await backend.commit(Erase(session_id=session_id, forget=True))
        assert await grandchild.get_items() == [*items[:3], items[0]]
        assert await empty.get_items() == []
        await backend.commit(Erase(session_id="grandchild", forget=True))
        await backend.commit(Erase(session_id="empty", forget=True))
        assert await list_keys(client, backend.keys.prefix) == {":sessions"}

    async def test_a_refused_fork_leaves_no_links(self, backend: RedisBackend, client: Redis) -> None:
        await append(backend, "parent", b"a", b"b")
        await append(backend, "child", b"x")
        fork = await make_fork(backend, "parent", "child", 2)
        for refused in (fork, RequireVersion("parent", 7)):
            with pytest.raises(HistoryMoved):
                await backend.commit(RequireVersion("parent", 1), refused, fork)
        assert not [key for key in await list_keys(client, backend.keys.prefix) if "links" in key]
        assert await read_data(backend, "child") == [b"x"]

    async def test_an_interrupted_erasure_is_finished_by_the_next_one(
        self, backend: RedisBackend, client: Redis, faults: RedisFaults
    ) -> None:
        await append(backend, "parent", b"a", b"b")
        await backend.commit(RequireVersion("parent", 1), await make_fork(backend, "parent", "child", 2))
        await backend.commit(Erase(session_id="parent", forget=True))
        with faults.fail_after(0, late=True), pytest.raises(StoreUnavailable):
            await backend.commit(Erase(session_id="child", forget=True))
        assert await backend.get_session("child") is None
        assert any("tape" in key for key in await list_keys(client, backend.keys.prefix))
        await backend.commit(Erase(session_id="child", forget=True))
        assert await list_keys(client, backend.keys.prefix) == {":sessions"}

    async def test_a_lease_is_in_the_slot_of_the_session_with_its_name(self, backend: RedisBackend) -> None:
        (lease,) = await backend.commit(AcquireLease(name="s", owner="me", ttl=60))
        await backend.commit(CheckFence("s", lease.token), Splice(session_id="s", add=(b"a",)))
        with pytest.raises(FenceLost):
            await backend.commit(Splice(session_id="s", add=(b"b",)), CheckFence("s", lease.token + 1))
        assert await read_data(backend, "s") == [b"a"]

    async def test_commits_across_slots_are_refused(self, backend: RedisBackend) -> None:
        await append(backend, "s", b"a")
        for other in (Splice(session_id="t", add=(b"x",)), CheckFence("l", 1), RequireVersion("t", 0)):
            with pytest.raises(Unsupported):
                await backend.commit(Splice(session_id="s", add=(b"b",)), other)
        assert await read_data(backend, "s") == [b"a"]

    async def test_only_old_names_without_a_session_are_removed_from_the_list(
        self, backend: RedisBackend, client: Redis
    ) -> None:
        await append(backend, "s", b"a")
        listed = f"{backend.keys.prefix}:sessions"
        await client.zadd(listed, {"about to be created": 4e9, "long gone": 5})
        records = await backend.list_sessions(owner=None, query=None, limit=5, after=None)
        assert [record.session_id for record in records] == ["s"]
        assert set(await client.zrange(listed, 0, -1)) == {b"s", b"about to be created"}
