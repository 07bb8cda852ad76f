"""Encrypted sessions over a store: with the key, without it, and with other keys."""

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factories.history import KEY, OTHER_KEY, EncryptedFile, make_encrypted_session, message, numbered_messages
from standfast.base.errors import AlreadyExists, HistoryMoved, InvalidInput, KeyReused, MissingExtra, NotFound, WrongKey
from standfast.history.compaction import CompactingSession, Trigger
from standfast.history.encryption.codec import EncryptingCodec
from standfast.history.encryption.session import EncryptedSession
from standfast.history.session import Session, SessionABC, SessionSettings
from standfast.history.store import Store
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.operations import Annotate, Splice
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock

# --- with the key ---------------------------------------------------------------------------------


async def test_every_method_works_as_it_does_without_encryption(backend: Backend) -> None:
    session = make_encrypted_session(backend)
    await session.add_items(numbered_messages(4))
    await session.add_items(numbered_messages(2, 4))
    assert await session.get_items() == numbered_messages(6)
    assert await session.get_items(2) == numbered_messages(2, 4)
    assert await session.get_items(limit=0) == []
    assert await session.pop_item() == message("item 5")
    await session.rewind(to=3)
    assert await session.get_items(generation=0) == numbered_messages(5)
    await session.splice_items(0, 2, [message("both")])
    assert await session.get_items() == [message("both"), message("item 2")]
    assert [entry.length for entry in await session.generations()] == [5, 3]
    await session.restore(0)
    assert await session.get_items() == [*numbered_messages(5), message("both")]
    await session.replace_items([message("new")], expected=await session.head())
    assert await session.get_paired_items() == [message("new")]
    assert [hit.item for hit in await session.search("new")] == [message("new")]
    assert [item async for _, item in session.export()] == [message("new")]
    assert (await session.check()).ok
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.generations() == []
    assert (await session.check()).ok


async def test_a_read_above_its_budget_is_refused(backend: Backend) -> None:
    session = EncryptedSession("s", StoredSession("s", backend), KEY, max_scan_items=3)
    await session.add_items(numbered_messages(2))
    assert await session.get_items() == numbered_messages(2)
    await session.add_items(numbered_messages(2, 2))
    assert await session.get_items(3) == numbered_messages(3, 1)
    with pytest.raises(RuntimeError, match="max_scan_items"):
        await session.get_items()


async def test_an_encrypted_session_implements_the_protocol(backend: Backend) -> None:
    session = make_encrypted_session(backend)
    assert isinstance(session, Session)
    assert isinstance(session, SessionABC)
    await session.add_items(numbered_messages(1), wrapper=object())
    assert await session.get_items(wrapper=object()) == numbered_messages(1)
    assert await session.pop_item(wrapper=object()) == message("item 0")
    await session.clear_session(wrapper=object())


async def test_the_file_contains_no_plaintext(file: EncryptedFile) -> None:
    session = file.session()
    await session.add_items([message("the launch code is 7741")], key="turn-1")
    await session.replace_items([message("the launch code is 7742")])
    await session.search("launch")
    await file.backend.close()
    assert b"launch" not in file.path.read_bytes()


async def test_settings_and_owner_of_the_underlying_session_are_kept(backend: Backend) -> None:
    plain = StoredSession("s", backend, settings=SessionSettings(limit=2), owner="ann")
    session = EncryptedSession("s", plain, KEY)
    await session.add_items(numbered_messages(5))
    assert await session.get_items() == numbered_messages(2, 3)
    assert await session.get_items(limit=4) == numbered_messages(4, 1)
    record = await backend.get_session("s")
    assert record is not None
    assert record.owner == "ann"
    session.session_settings = SessionSettings(limit=1)
    assert await session.get_items() == numbered_messages(1, 4)


async def test_both_ciphers_read_each_other(backend: Backend) -> None:
    await make_encrypted_session(backend, cipher="aes-gcm").add_items(numbered_messages(1))
    await make_encrypted_session(backend, cipher="chacha20-poly1305").add_items(numbered_messages(1, 1))
    assert await make_encrypted_session(backend).get_items() == numbered_messages(2)


async def test_a_fork_decrypts_the_items_of_its_ancestors_after_they_are_cleared(backend: Backend) -> None:
    parent = make_encrypted_session(backend)
    await parent.add_items(numbered_messages(3))
    child = await parent.fork(at=2, session_id="child")
    assert isinstance(child, EncryptedSession)
    await child.add_items([message("mine")])
    grandchild = await child.fork(session_id="grandchild")
    await parent.clear_session()
    await child.clear_session()
    reopened = make_encrypted_session(backend, "grandchild")
    assert await reopened.get_items() == [*numbered_messages(2), message("mine")]
    assert (await reopened.check()).ok
    with pytest.raises(AlreadyExists):
        await parent.fork(session_id="grandchild")
    assert await grandchild.pop_item() == message("mine")


async def test_a_session_that_was_only_annotated_can_be_written_and_forked_to(backend: Backend) -> None:
    for name in ("s", "child"):
        await backend.commit(Annotate(session_id=name, metadata={"title": "x"}))
    session = make_encrypted_session(backend)
    assert await session.get_items() == []
    await session.add_items(numbered_messages(2))
    child = await session.fork(session_id="child")
    assert await child.get_items() == numbered_messages(2)
    assert (await child.check()).ok


async def test_a_first_append_concurrent_with_an_annotation_is_not_lost(backend: Backend) -> None:
    for number in range(20):
        name = f"s{number}"
        note = Annotate(session_id=name, metadata={"n": number})
        await asyncio.gather(
            make_encrypted_session(backend, name).add_items(numbered_messages(2)), backend.commit(note)
        )
        assert await make_encrypted_session(backend, name).get_items() == numbered_messages(2)


async def test_concurrent_appends_are_atomic(backend: Backend) -> None:
    batches = [numbered_messages(3, start * 3) for start in range(12)]
    await asyncio.gather(*(make_encrypted_session(backend).add_items(batch) for batch in batches))
    shown = await make_encrypted_session(backend).get_items()
    assert sorted(map(str, shown)) == sorted(str(item) for batch in batches for item in batch)
    for start in range(0, len(shown), 3):
        assert shown[start : start + 3] in batches


async def test_a_keyed_batch_is_written_once_also_across_a_rotation(backend: Backend) -> None:
    await make_encrypted_session(backend).add_items(numbered_messages(2), key="turn-1")
    await make_encrypted_session(backend).add_items(numbered_messages(2), key="turn-1")
    await make_encrypted_session(backend, key=[OTHER_KEY, KEY]).add_items(numbered_messages(2), key="turn-1")
    assert await make_encrypted_session(backend, key=[OTHER_KEY, KEY]).get_items() == numbered_messages(2)
    with pytest.raises(KeyReused):
        await make_encrypted_session(backend).add_items(numbered_messages(3), key="turn-1")


async def test_an_append_expecting_another_head_is_refused(backend: Backend) -> None:
    session = make_encrypted_session(backend)
    await session.add_items(numbered_messages(1))
    head = await session.head()
    await session.add_items(numbered_messages(1, 1))
    with pytest.raises(HistoryMoved):
        await session.add_items(numbered_messages(1, 2), expected=head)
    assert await session.get_items() == numbered_messages(2)


async def test_a_generation_that_does_not_exist_is_not_found(backend: Backend) -> None:
    session = make_encrypted_session(backend)
    for attempt in (lambda: session.get_items(generation=3), lambda: session.restore(3)):
        with pytest.raises(NotFound):
            await attempt()


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["short", "fifteen letters", "", [], [KEY, "short"], b"x" * 32, 7, None, [b"x" * 32]])
def test_an_invalid_key_is_refused_without_appearing_in_the_message(key: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        EncryptingCodec(key)
    assert "short" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_session_accepts_a_short_key_with_a_warning(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    make_encrypted_session(backend, key="secret-key")
    assert "can be guessed" in caplog.text
    assert "secret-key" not in caplog.text


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), True, "600"])
def test_an_invalid_ttl_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidInput):
        EncryptingCodec(KEY, ttl=ttl)


def test_an_unknown_cipher_is_refused() -> None:
    with pytest.raises(InvalidInput):
        EncryptingCodec(KEY, cipher="rot13")


def test_without_cryptography_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"standfast\[encrypt\]"):
        EncryptingCodec(KEY)


async def test_a_wrong_key_is_named_by_id_and_leaves_the_file_as_it_was(file: EncryptedFile) -> None:
    await file.session().add_items(numbered_messages(3))
    await file.session().rewind(2)
    before = await file.read_bytes()
    wrong = file.session(key=OTHER_KEY)
    attempts: list[Callable[[], Any]] = [
        wrong.get_items,
        wrong.pop_item,
        wrong.clear_session,
        wrong.head,
        wrong.check,
        wrong.fork,
        wrong.generations,
        wrong.reseal,
        wrong.rekey,
        wrong.purge_expired,
        lambda: wrong.add_items(numbered_messages(1)),
        lambda: wrong.rewind(0),
        lambda: wrong.restore(0),
        lambda: wrong.replace_items([]),
        lambda: wrong.search("item"),
        lambda: wrong.get_items(generation=0),
    ]
    for attempt in attempts:
        with pytest.raises(WrongKey) as caught:
            await attempt()
        assert EncryptingCodec(KEY).keyring.primary.id.hex() in str(caught.value)
        assert KEY not in str(caught.value)
        assert OTHER_KEY not in str(caught.value)
    assert await file.read_bytes() == before
    assert await file.session().get_items() == numbered_messages(2)


async def test_without_a_key_an_encrypted_history_can_neither_be_read_nor_changed(backend: Backend) -> None:
    await make_encrypted_session(backend).add_items(numbered_messages(2))
    plain = StoredSession("s", backend)
    attempts: list[Callable[[], Any]] = [
        plain.get_items,
        plain.pop_item,
        plain.clear_session,
        plain.head,
        plain.fork,
        lambda: plain.add_items([message("injected", "system")]),
        lambda: plain.replace_items([]),
        lambda: backend.commit(Splice(session_id="s", add=(b"{}",))),
    ]
    for attempt in attempts:
        with pytest.raises(WrongKey):
            await attempt()
    assert await make_encrypted_session(backend).get_items() == numbered_messages(2)
    assert (await make_encrypted_session(backend).check()).ok
    await Store(backend).delete("s")
    assert await make_encrypted_session(backend).get_items() == []


async def test_after_rotation_old_items_are_read_and_new_ones_written(backend: Backend) -> None:
    await make_encrypted_session(backend, key=KEY).add_items(numbered_messages(1))
    await make_encrypted_session(backend, key=[OTHER_KEY, KEY]).add_items(numbered_messages(1, 1))
    assert await make_encrypted_session(backend, key=(OTHER_KEY, KEY)).get_items() == numbered_messages(2)
    assert await make_encrypted_session(backend, key=[KEY, OTHER_KEY]).get_items() == numbered_messages(2)


async def test_a_missing_key_of_part_of_the_history_raises_wrong_key(backend: Backend) -> None:
    old = make_encrypted_session(backend, key=KEY)
    await old.add_items(numbered_messages(1))
    both = make_encrypted_session(backend, key=[OTHER_KEY, KEY])
    await both.add_items(numbered_messages(1, 1))
    child = await both.fork(at=1, session_id="child")
    for name, key in (("s", OTHER_KEY), ("s", KEY), ("child", OTHER_KEY)):
        with pytest.raises(WrongKey):
            await make_encrypted_session(backend, name, key=key).get_items()
        with pytest.raises(WrongKey):
            await make_encrypted_session(backend, name, key=key).pop_item()
    assert await child.get_items() == numbered_messages(1)


async def test_after_rekey_the_old_key_is_no_longer_needed(backend: Backend) -> None:
    clock = FakeClock()
    await make_encrypted_session(backend, key=KEY, clock=clock).add_items(numbered_messages(3))
    both = make_encrypted_session(backend, key=[OTHER_KEY, KEY], clock=clock)
    await both.add_items(numbered_messages(2, 3))
    await both.rewind(4)
    child = await both.fork(at=2, session_id="child")
    clock.now += 100
    await both.rekey()
    assert await make_encrypted_session(backend, key=OTHER_KEY).get_items() == numbered_messages(4)
    assert await both.generations() == []
    assert (await make_encrypted_session(backend, key=OTHER_KEY).check()).ok
    # The items are as old as they were.
    assert await make_encrypted_session(backend, key=OTHER_KEY, ttl=50, clock=clock).get_items() == []
    assert await make_encrypted_session(backend, "child", key=[OTHER_KEY, KEY]).get_items() == numbered_messages(2)
    await child.rekey()
    assert await make_encrypted_session(backend, "child", key=OTHER_KEY).get_items() == numbered_messages(2)
    await make_encrypted_session(backend, "unwritten").rekey()


# --- sessions that can be wrapped -----------------------------------------------------------------


async def test_the_session_id_must_be_that_of_the_underlying_session(backend: Backend) -> None:
    with pytest.raises(InvalidInput):
        EncryptedSession("other", StoredSession("s", backend), KEY)


async def test_wrappers_that_would_be_bypassed_are_refused(backend: Backend) -> None:
    compacting = CompactingSession(StoredSession("s", backend), summarise=str, trigger=Trigger(items=20))
    with pytest.raises(InvalidInput, match="CompactingSession"):
        EncryptedSession("s", compacting, KEY)
    with pytest.raises(InvalidInput):
        EncryptedSession("s", make_encrypted_session(backend), KEY)


@pytest.mark.parametrize("examples", [4, pytest.param(200, marks=pytest.mark.soak)])
async def test_random_operations_on_an_encrypted_file_equal_those_on_plain_memory(
    tmp_path: Path, examples: int
) -> None:
    kinds = ["add", "add", "add", "pop", "rewind", "splice", "restore", "clear", "fork", "reopen", "rekey"]
    operations = st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 10**6)), min_size=5, max_size=25)
    count = iter(range(10**9))

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operations)
    def check(steps: list[tuple[str, int]]) -> None:
        asyncio.run(run_both(tmp_path / f"{next(count)}.db", steps))

    await asyncio.to_thread(check)


async def run_both(path: Path, steps: list[tuple[str, int]]) -> None:
    file, memory = SqliteBackend(path), MemoryBackend()
    ours, model = make_encrypted_session(file), StoredSession("s", memory)
    rekeyed = False
    try:
        for number, (step, value) in enumerate(steps):
            pick = random.Random(value)
            head = await model.head()
            if step == "reopen":
                await file.close()
                file = SqliteBackend(path)
                ours = make_encrypted_session(file, ours.session_id)
            elif step == "rekey":
                await ours.rekey()
                rekeyed = True
            elif step == "fork":
                if head.version:
                    at, name = pick.randint(0, head.length), f"fork-{number}"
                    ours, model = await ours.fork(at, name), await model.fork(at, name)
            elif step == "restore":
                earlier = await model.generations()
                if earlier and not rekeyed:
                    chosen = pick.choice(earlier).number
                    await ours.restore(chosen)
                    await model.restore(chosen)
            else:
                outcomes = [
                    await run_step(session, step, random.Random(value), head.length) for session in (ours, model)
                ]
                assert outcomes[0] == outcomes[1]
            assert await ours.get_items() == await model.get_items()
            assert await ours.get_items(3) == await model.get_items(3)
            assert (await ours.head()).length == (await model.head()).length
        if not rekeyed:
            for entry in await model.generations():
                assert await ours.get_items(generation=entry.number) == await model.get_items(generation=entry.number)
        assert (await ours.check()).ok
    finally:
        await file.close()


async def run_step(session: Any, step: str, pick: random.Random, length: int) -> Any:
    items = numbered_messages(pick.randint(0, 4), pick.randint(0, 1000))
    if step == "add":
        return await session.add_items(items)
    if step == "pop":
        return await session.pop_item()
    if step == "clear":
        return await session.clear_session()
    start = pick.randint(0, length)
    if step == "rewind":
        return (await session.rewind(start)).length
    return (await session.splice_items(start, pick.randint(start, length), items)).length
