"""Durable runs are not encrypted, so nothing of one is written for a session that is."""

import pytest

from factories.history import KEY, message
from factories.runtime import text_agent, wait_for
from standfast import CompactingSession, EncryptedSession, InvalidInput, Runtime, SessionEncrypted
from standfast.history import Trigger


async def test_a_run_on_an_encrypted_session_is_refused_before_anything_is_written(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        session = EncryptedSession("secret", runtime.store.session("secret"), KEY)
        await session.add_items([message("sealed words")])
        before = await runtime.store.describe("secret")
        with pytest.raises(SessionEncrypted, match="Runner") as refused:
            await runtime.start("support", "a dugong", session_id="secret", key="request-1")
        assert refused.value.session_id == "secret"
        assert await runtime.runs() == []
        assert await runtime.store.describe("secret") == before


async def test_a_key_that_started_a_run_before_its_session_was_encrypted_still_names_that_run(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        run = await runtime.start("support", "hi", session_id="s", key="request-1")
        await wait_for(run.wait())
        await EncryptedSession("s", runtime.store.session("s"), KEY).reseal()
        assert (await runtime.start("support", "hi", session_id="s", key="request-1")).id == run.id


async def test_a_run_is_not_forked_into_an_encrypted_session(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        await EncryptedSession("s", runtime.store.session("s"), KEY).reseal()
        with pytest.raises(SessionEncrypted):
            await runtime.fork(run.id)
        assert [info.run_id for info in await runtime.runs()] == [run.id]


async def test_a_session_object_in_place_of_its_id_is_refused_with_what_to_pass(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        plain = runtime.store.session("s")
        compacting = CompactingSession(plain, summarise=lambda items: "short", trigger=Trigger(items=20))
        for session in (plain, compacting, EncryptedSession("s", plain, KEY)):
            with pytest.raises(InvalidInput, match=f"{type(session).__name__}.*session id"):
                await runtime.start("support", "hi", session_id=session)
        assert await runtime.runs() == []
