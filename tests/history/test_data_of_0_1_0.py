"""Sessions that were written before version 0.1.0 was released, when the product was called holdfast."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from factories.history import KEY, OTHER_KEY, ThirdPartySession, numbered_messages
from standfast import EncryptedSession, InvalidInput, WrongKey, open_store
from standfast.history.store import Store
from standfast.store.sql.connection import TableNames

GOLDEN = Path(__file__).parent.parent / "golden"
PASSPHRASE = "correct horse battery staple"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    path = tmp_path / "holdfast.db"
    path.write_bytes(gzip.decompress((GOLDEN / "holdfast.db.gz").read_bytes()))
    names = TableNames("holdfast_sessions", "holdfast_items")
    async with open_store(f"sqlite:///{path}", names=names) as store:
        yield store


async def test_sessions_forks_and_generations_are_read_and_written(store: Store) -> None:
    assert {info.session_id for info in await store.sessions()} >= {"user-7", "user-7-b", "replaced", "secret"}
    session = store.session("user-7")
    items = await session.get_items()
    assert items[0] == {"role": "user", "content": "a refund please"}
    assert (await store.describe("user-7")).metadata == {"plan": "gold"}
    assert [hit.position for hit in await session.search("refund")] == [0]
    assert (await store.session("user-7-b").get_items())[0] == items[0]
    assert await store.session("replaced").generations()
    await session.add_items(numbered_messages(1))
    assert await session.get_items() == [*items, *numbered_messages(1)]
    for info in await store.sessions():
        if not info.encrypted:
            report = await store.session(info.session_id).check()
            assert (report.corrupt, report.tampered) == ([], None)


async def test_an_encrypted_session_is_read_and_written(store: Store) -> None:
    session = EncryptedSession("secret", store.session("secret"), PASSPHRASE)
    [item] = await session.get_items()
    assert "the code is 4711" in str(item)
    assert (await session.check()).ok
    await session.add_items(numbered_messages(1))
    assert await session.get_items() == [item, *numbered_messages(1)]
    with pytest.raises(WrongKey):
        await EncryptedSession("secret", store.session("secret"), OTHER_KEY).get_items()


async def test_an_export_is_imported() -> None:
    lines = (GOLDEN / "session.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"holdfast":"session"' in lines[0]
    async with open_store("memory://") as store:
        session = await store.import_(lines)
        assert [item["content"] for item in await session.get_items()] == ["a refund please", "which order?"]
        info = await store.describe("user-7")
        assert (info.session_id, info.metadata) == ("user-7", {"plan": "gold"})
        exported = [line async for line in await store.export("user-7")]
        assert '"standfast":"session"' in exported[0]
        assert exported[1:] == lines[1:]
        with pytest.raises(InvalidInput, match="line 1"):
            await store.import_([lines[0].replace("holdfast", "otherfast"), *lines[1:]], session_id="new")


async def test_envelopes_in_a_third_party_session_are_read_and_continued() -> None:
    underlying = ThirdPartySession()
    session = EncryptedSession("s", underlying, KEY)
    await session.add_items(numbered_messages(2))
    for item in underlying.items:
        assert item["type"] == "standfast.sealed"
        item["type"] = "holdfast.sealed"
    assert await session.get_items() == numbered_messages(2)
    await session.add_items(numbered_messages(1, 2))
    assert [item["type"] for item in underlying.items] == ["holdfast.sealed", "holdfast.sealed", "standfast.sealed"]
    assert await session.get_items() == numbered_messages(3)
    assert (await session.check()).ok
    with pytest.raises(WrongKey):
        await EncryptedSession("s", underlying, OTHER_KEY).get_items()
