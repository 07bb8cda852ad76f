"""Sessions of openai-agents in Redis are used together with their owner until they are adopted."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents.extensions.memory import EncryptedSession as TheirEncryptedSession
from agents.extensions.memory.redis_session import RedisSession as TheirRedisSession
from redis.asyncio import Redis

from redis_server import redis_cluster_url, redis_url
from standfast import EncryptedSession, RedisSession
from standfast.base.errors import HistoryMoved, InvalidInput, NotAdopted, SessionDamaged
from standfast.base.ids import new_id
from standfast.history.imports.adoption import adopt, undo_adoption

__all__ = ["redis_cluster_url", "redis_url"]
KEY = "your-secret-encryption-key"


def make_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture(params=[False, True], ids=["bytes", "texts"])
async def client(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Any]:
    client = Redis.from_url(redis_url, decode_responses=request.param)
    yield client
    await client.aclose()


@pytest.fixture
def place(client: Any) -> dict[str, Any]:
    return {"redis_client": client, "key_prefix": new_id("prefix")}


async def list_keys(place: dict[str, Any]) -> list[str]:
    found = await place["redis_client"].keys(f"{place['key_prefix']}*")
    return sorted(key.decode() if isinstance(key, bytes) else key for key in found)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_both_programs_use_a_session_in_turn(place: dict[str, Any], encrypted: bool) -> None:
    theirs: Any = TheirRedisSession("ann", **place)
    ours: Any = RedisSession("ann", **place)
    if encrypted:
        theirs, ours = TheirEncryptedSession("ann", theirs, KEY), EncryptedSession("ann", ours, KEY)
    await ours.add_items([make_message("1, ours é")])
    await theirs.add_items([make_message("2, theirs é"), make_message("3")])
    await ours.add_items([make_message("4"), make_message("5")])
    both = [make_message(text) for text in ("1, ours é", "2, theirs é", "3", "4", "5")]
    assert await theirs.get_items() == await ours.get_items() == both
    assert await theirs.get_items(2) == await ours.get_items(2) == both[3:]
    assert await ours.pop_item() == both[4]
    assert await theirs.pop_item() == both[3]
    head = await ours.head()
    await theirs.add_items([make_message("6")])
    with pytest.raises(HistoryMoved):
        await ours.add_items([make_message("too late")], expected=head)
    await ours.splice_items(0, 3, [make_message("summary")])
    assert await theirs.get_items() == await ours.get_items() == [make_message("summary"), make_message("6")]
    assert (await ours.check()).ok
    names = [f"{place['key_prefix']}:ann{part}" for part in ("", ":messages")]
    assert await list_keys(place) == names
    await ours.clear_session()
    assert await theirs.get_items() == await ours.get_items() == []
    assert await list_keys(place) == []
    await theirs.add_items([make_message("again")])
    assert await ours.get_items() == [make_message("again")]
    await theirs.clear_session()
    assert await ours.get_items() == []


async def test_the_keys_have_no_place_for_forks(place: dict[str, Any]) -> None:
    await TheirRedisSession("ann", **place).add_items([make_message("1")])  # type: ignore[list-item]
    ours = RedisSession("ann", **place)
    before = await list_keys(place)
    with pytest.raises(NotAdopted, match="standfast adopt URL"):
        await ours.fork()
    assert await list_keys(place) == before
    assert (await ours.generations(), await ours.get_items()) == ([], [make_message("1")])


async def test_unreadable_items_are_skipped_and_popped(place: dict[str, Any]) -> None:
    theirs, ours = TheirRedisSession("ann", **place), RedisSession("ann", **place)
    await ours.add_items([make_message("1"), make_message("2")])
    await place["redis_client"].rpush(f"{place['key_prefix']}:ann:messages", "nonsense{")
    assert await ours.get_items() == await theirs.get_items() == [make_message("1"), make_message("2")]
    assert await ours.get_items(1) == await theirs.get_items(1) == [make_message("2")]
    assert await ours.pop_item() == make_message("2")
    assert await theirs.get_items() == [make_message("1")]


async def test_every_write_prolongs_the_session_as_openai_agents_does(place: dict[str, Any]) -> None:
    client, prefix = place["redis_client"], place["key_prefix"]
    await TheirRedisSession("ann", ttl=1000, **place).add_items([make_message("1")])  # type: ignore[list-item]
    await RedisSession("ann", ttl=5000, **place).add_items([make_message("2")])
    for part in ("", ":messages"):
        assert 4000 < await client.ttl(f"{prefix}:ann{part}") <= 5000
    await RedisSession("bob", **place).add_items([make_message("1")])
    assert await client.ttl(f"{prefix}:bob:messages") == -1


async def test_large_batches_are_written_whole(place: dict[str, Any]) -> None:
    items = [make_message(f"{number} é") for number in range(12_001)]
    ours = RedisSession("ann", **place)
    await ours.add_items(items)
    assert await TheirRedisSession("ann", **place).get_items() == items
    await ours.splice_items(1, 3, items[:2500])
    assert await TheirRedisSession("ann", **place).get_items() == [items[0], *items[:2500], *items[3:]]


async def test_a_key_of_another_kind_is_reported(place: dict[str, Any]) -> None:
    await place["redis_client"].set(f"{place['key_prefix']}:ann:messages", "something else")
    with pytest.raises(SessionDamaged, match=":ann:messages' is a string"):
        await RedisSession("ann", **place).get_items()


async def test_writers_of_both_programs_at_once(place: dict[str, Any]) -> None:
    """Nothing is lost, and both see one order."""

    async def write(session: Any, name: str) -> None:
        for number in range(30):
            await session.add_items([make_message(f"{name} {number}"), make_message(f"{name} {number} again")])

    theirs, ours = TheirRedisSession("ann", **place), RedisSession("ann", **place)
    await asyncio.gather(write(theirs, "theirs"), write(ours, "ours"))
    found = await ours.get_items()
    assert found == await theirs.get_items()
    for name in ("theirs", "ours"):
        texts = [item["content"] for item in found if item["content"].startswith(name)]
        assert texts == [f"{name} {number}{again}" for number in range(30) for again in ("", " again")]
    pairs = [(first["content"], second["content"]) for first, second in zip(found[::2], found[1::2], strict=True)]
    assert all(second == f"{first} again" for first, second in pairs)


@pytest.mark.parametrize(("prefix", "session_id"), [("agents:{x}", "ann"), ("agents", "{ann}")])
async def test_in_a_cluster_a_hash_tag_keeps_a_session_in_one_slot(
    redis_cluster_url: str, prefix: str, session_id: str
) -> None:
    from redis.asyncio import RedisCluster

    client = RedisCluster.from_url(redis_cluster_url.replace("+cluster", ""))
    ours = RedisSession(session_id, redis_client=client, key_prefix=prefix)  # type: ignore[arg-type]
    await ours.clear_session()
    await ours.add_items([make_message("1"), make_message("2")])
    assert await client.lrange(f"{prefix}:{session_id}:messages", 0, -1) == [
        b'{"role":"user","content":"1"}',
        b'{"role":"user","content":"2"}',
    ]
    assert await ours.pop_item() == make_message("2")
    await client.aclose()


async def test_in_a_cluster_without_a_hash_tag_the_keys_are_those_of_standfast(redis_cluster_url: str) -> None:
    """openai-agents cannot use such a session: its keys are in different slots."""
    from redis.asyncio import RedisCluster

    client = RedisCluster.from_url(redis_cluster_url.replace("+cluster", ""))
    ours = RedisSession("ann", redis_client=client, key_prefix=new_id("prefix"))  # type: ignore[arg-type]
    await ours.add_items([make_message("1")])
    branch = await ours.fork()
    assert await branch.get_items() == [make_message("1")]
    await client.aclose()


# --- adoption -------------------------------------------------------------------------------------


async def test_adopted_sessions_have_all_features_and_are_given_back(place: dict[str, Any], redis_url: str) -> None:
    prefix = place["key_prefix"]
    await TheirRedisSession("ann", ttl=5000, **place).add_items([make_message("1 é")])  # type: ignore[list-item]
    secret: Any = TheirEncryptedSession("secret", TheirRedisSession("secret", **place), KEY)
    await secret.add_items([make_message("hidden")])
    open_before = RedisSession("ann", **place)
    assert await open_before.get_items() == [make_message("1 é")]
    before = await list_keys(place)
    planned = await adopt(redis_url, prefix=prefix, secrets=[KEY], dry_run=True)
    assert await list_keys(place) == before
    assert [(entry.session_id, entry.outcome, entry.items) for entry in planned] == [
        ("ann", "adopted", 1),
        ("secret", "adopted", 1),
    ]
    assert await adopt(redis_url, prefix=prefix, secrets=[KEY]) == planned
    with pytest.raises(InvalidInput, match="adopted already"):
        await adopt(redis_url, prefix=prefix)

    theirs = TheirRedisSession("ann", **place)
    for attempt in (theirs.add_items([make_message("too late")]), theirs.get_items(), theirs.pop_item()):  # type: ignore[list-item]
        with pytest.raises(Exception, match=r"wrong kind of value|WRONGTYPE|string"):
            await attempt
    branch = await open_before.fork(session_id="branch")
    await branch.add_items([make_message("2")])
    assert await RedisSession("branch", **place).get_items() == [make_message("1 é"), make_message("2")]
    for key in (f"{prefix}:{{ann}}", f"{prefix}:ann:messages"):
        assert 4000 < await place["redis_client"].ttl(key) <= 5000
    await RedisSession("new", **place).add_items([make_message("n")])
    with pytest.raises(Exception, match=r"wrong kind of value|WRONGTYPE|string"):
        await TheirRedisSession("new", **place).add_items([make_message("a second history")])  # type: ignore[list-item]
    hidden = EncryptedSession("secret", RedisSession("secret", **place), KEY)
    await hidden.add_items([make_message("hidden, too")])

    refused = await undo_adoption(redis_url, prefix=prefix)
    assert [entry.session_id for entry in refused if entry.outcome == "refused"] == ["secret"]
    assert await branch.get_items() == [make_message("1 é"), make_message("2")]
    returned = await undo_adoption(redis_url, prefix=prefix, secrets=[KEY])
    assert {entry.session_id: entry.items for entry in returned} == {"ann": 1, "branch": 2, "new": 1, "secret": 2}
    assert await list_keys(place) == sorted(
        f"{prefix}:{name}{part}" for name in ("ann", "branch", "new", "secret") for part in ("", ":messages")
    )
    assert await theirs.get_items() == await RedisSession("ann", **place).get_items() == [make_message("1 é")]
    assert await TheirRedisSession("branch", **place).get_items() == [make_message("1 é"), make_message("2")]
    assert await secret.get_items() == [make_message("hidden"), make_message("hidden, too")]
    await theirs.add_items([make_message("again")])  # type: ignore[list-item]
    assert await open_before.get_items() == [make_message("1 é"), make_message("again")]
    with pytest.raises(InvalidInput, match="not adopted"):
        await undo_adoption(redis_url, prefix=prefix)


async def test_adoption_beside_a_writer_loses_nothing(place: dict[str, Any], redis_url: str) -> None:
    accepted: dict[str, list[str]] = {}
    started = asyncio.Event()

    async def write() -> None:
        number = 0
        while True:
            number += 1
            name = f"s{number % 7}"
            try:
                await TheirRedisSession(name, **place).add_items([make_message(f"{number}")])  # type: ignore[list-item]
            except Exception:  # adopted
                return
            accepted.setdefault(name, []).append(f"{number}")
            if number == 70:
                started.set()

    writer = asyncio.create_task(write())
    await started.wait()
    await adopt(redis_url, prefix=place["key_prefix"])
    await writer
    for name, texts in accepted.items():
        found = await RedisSession(name, **place).get_items()
        assert [item["content"] for item in found] == texts


KILLED_PROGRAM = """
import asyncio, os, signal, sys
from redis.asyncio.connection import AbstractConnection
from standfast.history.imports import redis_adoption
from standfast.history.imports.adoption import adopt, undo_adoption

url, prefix = sys.argv[1:]
send = AbstractConnection.send_packed_command

async def count(self, *args, **options):
    global left
    left -= 1
    done = await send(self, *args, **options)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

AbstractConnection.send_packed_command = count
for line in sys.stdin:
    action, number = line.split()
    left = int(number)
    pid = os.fork()
    if not pid:
        asyncio.run((adopt if action == "adopt" else undo_adoption)(url, prefix=prefix))
        os._exit(0)
    print("killed" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) else "done", flush=True)
"""


async def test_a_killed_adoption_leaves_every_session_whole(redis_url: str) -> None:
    """Killed after each number of commands in turn: then both programs together see everything, and it is run again."""
    client, prefix, ids = Redis.from_url(redis_url), new_id("prefix"), ["a", "b"]
    place: dict[str, Any] = {"redis_client": client, "key_prefix": prefix}
    for session_id in ids:
        await TheirRedisSession(session_id, **place).add_items([make_message(session_id), make_message("2")])  # type: ignore[list-item]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_PROGRAM, redis_url, prefix, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    for action in ("adopt", "undo"):
        commands, ended = 0, b""
        while ended != b"done\n":
            commands += 1
            process.stdin.write(f"{action} {commands}\n".encode())
            ended = await process.stdout.readline()
            assert ended
            for session_id in ids:
                assert await RedisSession(session_id, **place).get_items() == [
                    make_message(session_id),
                    make_message("2"),
                ]
        assert commands > 10
    for session_id in ids:
        assert await TheirRedisSession(session_id, **place).get_items() == [make_message(session_id), make_message("2")]
    process.stdin.close()
    await process.wait()
    await client.aclose()
