"""Encrypted sessions with a time to live."""

import pytest

from factories.history import REASONING, EncryptedFile, call, make_encrypted_session, message, numbered_messages, output
from standfast.base.item_pairs import find_unpaired
from standfast.store.backend import Backend
from standfast.testing import FakeClock


async def test_nothing_expires_without_a_ttl(backend: Backend) -> None:
    clock = FakeClock()
    session = make_encrypted_session(backend, clock=clock)
    await session.add_items(numbered_messages(1))
    clock.now += 10**9
    assert await session.get_items() == numbered_messages(1)
    assert await session.purge_expired() == 0


async def test_no_method_returns_an_expired_item(backend: Backend) -> None:
    clock = FakeClock()
    session = make_encrypted_session(backend, ttl=600, clock=clock)
    await session.add_items(numbered_messages(2))
    clock.now += 599
    await session.add_items(numbered_messages(2, 2))
    assert await session.get_items() == numbered_messages(4)
    clock.now += 1
    assert await session.get_items() == numbered_messages(2, 2)
    assert await session.get_items(limit=1) == numbered_messages(1, 3)
    assert await session.get_items(limit=3) == numbered_messages(2, 2)
    assert [hit.position for hit in await session.search("item")] == [3, 2]
    assert [row.position async for row, _ in session.export()] == [2, 3]
    assert await session.pop_item() == message("item 3")
    clock.now += 600
    assert await session.get_items() == []
    assert await session.pop_item() is None
    assert await session.search("item") == []
    assert (await session.head()).length == 3


async def test_the_time_of_writing_is_authenticated(file: EncryptedFile) -> None:
    clock = FakeClock()
    session = file.session(ttl=600, clock=clock)
    await session.add_items(numbered_messages(1))
    file.execute("UPDATE standfast_sessions SET created_at = 9e9, updated_at = 9e9")
    clock.now += 601
    assert await session.get_items() == []


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4, 5, 50])
async def test_a_call_expires_together_with_its_output_and_its_reasoning(backend: Backend, limit: int | None) -> None:
    clock = FakeClock()
    session = make_encrypted_session(backend, ttl=600, clock=clock)
    await session.add_items([message("go"), REASONING, call("a"), call("b")])
    clock.now += 300
    await session.add_items([output("a")])
    clock.now += 100
    await session.add_items([output("b"), message("done", "assistant")])
    expected = [
        REASONING,
        call("a"),
        call("b"),
        output("a"),
        output("b"),
        message("done", "assistant"),
    ]
    clock.now += 201  # the calls are too old by themselves, their outputs are not
    assert await session.get_items() == expected
    shown = await session.get_items(limit)
    assert shown == expected[-limit:] if limit else shown == expected
    clock.now += 400
    assert await session.get_items(limit) == []


async def test_no_pair_is_ever_separated_by_its_age(backend: Backend) -> None:
    clock = FakeClock()
    session = make_encrypted_session(backend, ttl=600, clock=clock)
    turn = [
        message("go"),
        REASONING,
        call("a"),
        call("b"),
        output("b"),
        output("a"),
        message("done", "assistant"),
    ]
    for item in turn:
        await session.add_items([item])
        clock.now += 100
    for _ in range(16):
        assert find_unpaired(await session.get_items()) == []
        clock.now += 50
    assert await session.get_items() == []


async def test_old_items_after_a_young_summary_expire(backend: Backend) -> None:
    clock = FakeClock()
    session = make_encrypted_session(backend, ttl=600, clock=clock)
    await session.add_items(numbered_messages(4))
    clock.now += 500
    await session.splice_items(0, 2, [message("summary")])
    await session.add_items([message("new")])
    clock.now += 200
    assert await session.get_items() == [message("summary"), message("new")]
    assert await session.get_items(limit=2) == [message("summary"), message("new")]


async def test_purge_deletes_expired_items_in_one_commit(file: EncryptedFile) -> None:
    clock = FakeClock()
    session = file.session(ttl=600, clock=clock)
    await session.add_items([*numbered_messages(3), call("a")])
    await session.rewind(4)
    clock.now += 400
    await session.add_items([output("a"), *numbered_messages(2, 3)])
    version = (await session.head()).version
    assert await session.purge_expired() == 0
    clock.now += 300
    assert await session.purge_expired() == 3
    remaining = [call("a"), output("a"), *numbered_messages(2, 3)]
    assert await file.session().get_items() == remaining
    assert (await session.head()).version == version + 2
    assert file.execute("SELECT count(*) FROM standfast_items") == [(4,)]
    assert await session.generations() == []
    assert (await session.check()).ok
    clock.now += 301
    assert await session.purge_expired() == 4  # as old as they were before they were rewritten
    assert file.execute("SELECT count(*) FROM standfast_items") == [(0,)]
    assert await session.get_items() == []
    await session.add_items(numbered_messages(1))
    assert await session.get_items() == numbered_messages(1)


async def test_purge_deletes_expired_items_of_earlier_generations(file: EncryptedFile) -> None:
    clock = FakeClock()
    session = file.session(ttl=600, clock=clock)
    await session.add_items(numbered_messages(4))
    clock.now += 500
    await session.splice_items(0, 4, [message("summary")])
    assert await session.purge_expired() == 0
    assert await session.get_items(generation=0) == numbered_messages(4)
    clock.now += 200
    assert await session.get_items(generation=0) == []
    assert await session.purge_expired() == 4
    assert await session.get_items() == [message("summary")]
    assert file.execute("SELECT count(*) FROM standfast_items") == [(1,)]


async def test_purge_keeps_unreadable_records(file: EncryptedFile) -> None:
    clock = FakeClock()
    session = file.session(ttl=600, clock=clock, strict=False)
    await session.add_items(numbered_messages(2))
    file.write_record(1, b"not an item")
    clock.now += 601
    await session.add_items(numbered_messages(1, 2))
    assert await session.purge_expired() == 1
    assert await session.get_items() == numbered_messages(1, 2)
    assert file.execute("SELECT data FROM standfast_items ORDER BY seq")[0] == (b"not an item",)
    assert [entry.position for entry in (await session.check()).corrupt] == [0]
