"""Conversations of other frameworks are copied into a store, with a report, a dry run and a way back."""

from pathlib import Path
from typing import Any

import agents
import pytest
from agents.extensions.memory.advanced_sqlite_session import AdvancedSQLiteSession as TheirAdvancedSession
from agents.extensions.memory.encrypt_session import EncryptedSession as TheirEncryptedSession
from agents.extensions.memory.redis_session import RedisSession as TheirRedisSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession as TheirSQLAlchemySession
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import create_async_engine

from history.test_openai_agents_data import ITEMS, KEYS, describe, dump, make_branches, make_messages
from standfast import AdvancedSQLiteSession, EncryptedSession
from standfast.base.errors import InvalidInput, NotFound
from standfast.base.ids import new_id
from standfast.history.imports.copies import CopiedSession, copy_sessions, remove_copies
from standfast.history.imports.openai_agents import read_openai_agents, write_openai_agents_file
from standfast.history.store import Store, open_store


async def copy(url: str, store: Store, *, dry_run: bool = False, **options: Any) -> dict[str, CopiedSession]:
    report = await copy_sessions(
        read_openai_agents(url, **options),
        store,
        framework="openai-agents",
        dry_run=dry_run,
        secrets=options.get("secrets", ()),
    )
    return {entry.session_id: entry for entry in report}


def outcomes(report: dict[str, CopiedSession]) -> dict[str, tuple[str, int]]:
    return {name: (entry.outcome, entry.items) for name, entry in report.items()}


async def test_an_import_of_a_file_can_be_repeated_and_undone(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    url, target = f"sqlite:///{path}", f"sqlite:///{tmp_path}/new.db"
    ann, bob = agents.SQLiteSession("ann", path), agents.SQLiteSession("bob", path)
    await ann.add_items(ITEMS)  # type: ignore[arg-type]
    await bob.add_items(ITEMS[:1])  # type: ignore[arg-type]
    before = dump(path)
    async with open_store(target) as store:
        planned = await copy(url, store, dry_run=True)
        assert outcomes(planned) == {"ann": ("copied", 3), "bob": ("copied", 1)}
        assert await store.sessions() == []
        assert outcomes(await copy(url, store)) == outcomes(planned)
        assert await store.session("ann").get_items() == ITEMS
        assert outcomes(await copy(url, store)) == {"ann": ("unchanged", 0), "bob": ("unchanged", 0)}
        assert dump(path) == before
        # openai-agents continues one of them, standfast the other, and neither the rest.
        await ann.add_items(ITEMS[:1])  # type: ignore[arg-type]
        await store.session("bob").add_items(ITEMS[:1])
        assert outcomes(await copy(url, store)) == {"ann": ("extended", 1), "bob": ("unchanged", 0)}
        await bob.add_items([{"role": "user", "content": "elsewhere"}])
        assert outcomes(await copy(url, store))["bob"] == ("differs", 0)
        removed = await remove_copies(store, framework="openai-agents", dry_run=True)
        assert {entry.session_id: entry.outcome for entry in removed} == {"ann": "removed", "bob": "kept"}
        assert len(await store.sessions()) == 2
        await remove_copies(store, framework="openai-agents")
        assert [info.session_id for info in await store.sessions()] == ["bob"]
    ann.close()
    bob.close()


async def test_encrypted_sessions_stay_encrypted_and_need_their_key(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    plain = agents.SQLiteSession("ann", path)
    await TheirEncryptedSession("ann", plain, KEYS["text"]).add_items(ITEMS)  # type: ignore[arg-type]
    plain.close()
    async with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        for secrets in ([], ["x" * 20]):
            refused = (await copy(f"sqlite:///{path}", store, secrets=secrets))["ann"]
            assert refused.outcome == "refused"
            assert "key that it used" in refused.note
        assert (await copy(f"sqlite:///{path}", store, secrets=[KEYS["text"]]))["ann"].outcome == "copied"
        assert (await store.describe("ann")).encrypted
        assert await EncryptedSession("ann", store.session("ann"), KEYS["text"]).get_items() == ITEMS


async def test_branches_and_usage_are_copied(tmp_path: Path) -> None:
    theirs = await make_branches(tmp_path / "old.db")
    async with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        report = await copy(f"sqlite:///{tmp_path}/old.db", store)
        assert (report["ann"].items, report["ann"].branches) == (6, 2)
        ours = AdvancedSQLiteSession(
            session_id="ann",
            db_path=tmp_path / "new.db",
            sessions_table="standfast_sessions",
            messages_table="standfast_items",
        )
        assert await describe(ours) == await describe(theirs)
        ours.close()
    theirs.close()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_a_server_database_is_copied(kind: str, postgres_url: str, tmp_path: Path) -> None:
    url = postgres_url if kind == "postgresql" else f"sqlite+aiosqlite:///{tmp_path}/old.db"
    engine = create_async_engine(url)
    await TheirSQLAlchemySession("ann", engine=engine, create_tables=True).add_items(ITEMS)  # type: ignore[arg-type]
    await engine.dispose()
    async with open_store("memory://") as store:
        assert outcomes(await copy(url, store)) == {"ann": ("copied", 3)}
        assert await store.session("ann").get_items() == ITEMS


async def test_sessions_in_redis_are_copied(redis_url: str) -> None:
    client, prefix = Redis.from_url(redis_url), new_id("prefix")
    for name in ("ann", "bob:messages"):
        await TheirRedisSession(name, redis_client=client, key_prefix=prefix).add_items(ITEMS)  # type: ignore[arg-type]
    await client.aclose()
    async with open_store("memory://") as store:
        assert outcomes(await copy(redis_url, store, prefix=prefix)) == {
            "ann": ("copied", 3),
            "bob:messages": ("copied", 3),
        }


async def test_a_source_that_is_missing_or_something_else_is_refused(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        with pytest.raises(NotFound):
            await copy(f"sqlite:///{tmp_path}/none.db", store)
        assert not (tmp_path / "none.db").exists()
        with pytest.raises(InvalidInput, match="no table 'agent_messages' of openai-agents"):
            await copy(f"sqlite:///{tmp_path}/new.db", store)


async def test_branches_and_usage_are_exported(tmp_path: Path) -> None:
    theirs = await make_branches(tmp_path / "old.db")
    expected = await describe(theirs)
    theirs.close()
    async with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        await copy(f"sqlite:///{tmp_path}/old.db", store)
        await store.session("bob").add_items(ITEMS)
        written = await write_openai_agents_file(tmp_path / "back.db", store, ["ann", "bob"])
    assert written == {"ann": 12, "bob": 3}
    again = TheirAdvancedSession(session_id="ann", db_path=tmp_path / "back.db", create_tables=True)
    assert await describe(again) == expected
    await again.switch_to_branch("alt")
    await again.add_items(make_messages("goes on"))  # type: ignore[arg-type]
    await again.create_branch_from_turn(2, "another")
    assert len(await again.list_branches()) == 4
    again.close()
    plain = agents.SQLiteSession("bob", tmp_path / "back.db")
    assert await plain.get_items() == ITEMS
    plain.close()
