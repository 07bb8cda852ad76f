"""A server of the next version on the database that one of this version is using."""

import asyncio
import re
from pathlib import Path

import pytest

from factories.serve_process import start_server
from standfast import SchemaTooNew
from standfast.store.sql import schema
from standfast.store.urls import open_backend

NEXT_VERSION = (str(Path(__file__).parent / "next_version.py"),)
TOKEN = "t" * 40


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    """A database of its own, since it is migrated beyond what other tests can open."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else f"sqlite:///{tmp_path}/a.db"


async def keep_running(client, name, stop):
    """Start runs one after the other, some with an approval, until told to stop; return what became of them."""
    ended, number = [], 0
    while not stop.is_set():
        number += 1
        run = await client.start("speaker", "pay" if number % 2 else "talk", session_id=f"{name}-{number}")
        outcome = await run.wait()
        for approval in outcome.approvals:
            await client.decide(approval.id, "approve")
            outcome = await run.wait()
        ended.append(outcome.status)
    return ended


async def test_servers_of_two_versions_work_side_by_side(store):
    stop = asyncio.Event()
    async with start_server(store, token=TOKEN) as old, old.client as of_old:
        early = await of_old.start("speaker", "pay")
        [approval] = (await early.wait()).approvals
        working = asyncio.ensure_future(keep_running(of_old, "old", stop))
        # It opens the store, and so migrates it, while the other one works.
        async with start_server(store, token=TOKEN, program=NEXT_VERSION) as new, new.client as of_new:
            beside = asyncio.ensure_future(keep_running(of_new, "new", stop))
            await of_new.decide(approval.id, "approve")
            assert (await early.wait()).status == "completed"
            late = await of_new.start("speaker", "pay")
            [approval] = (await late.wait()).approvals
            await of_old.decide(approval.id, "approve")
            assert (await late.wait()).status == "completed"
            queue = [await client.start("speaker", "talk", session_id="shared") for client in (of_old, of_new) * 2]
            assert [(await run.wait()).status for run in queue] == ["completed"] * 4
            stop.set()
            for ended in (await working, await beside):
                assert ended
                assert set(ended) == {"completed"}
            left = await of_old.start("speaker", "talk")
            old.process.kill()
            assert (await (await of_new.run(left.id)).wait()).status == "completed"
    with pytest.raises(SchemaTooNew, match="upgrade standfast"):  # what an old process says when it is started again
        await open_and_close(store)


async def open_and_close(store):
    backend = await open_backend(store)
    try:
        await backend.get_time()
        await backend.get_run("run_1")
    finally:
        await backend.close()


ADDITIONS = (
    r"CREATE (UNIQUE )?INDEX ",
    r"CREATE TABLE ",
    r"ALTER TABLE \S+ ADD COLUMN \w+ <?\w+>?( NOT NULL DEFAULT \S+)?$",
    r"UPDATE ",
    r"(--.*\n|\s)*CREATE OR REPLACE FUNCTION ",
)


@pytest.mark.parametrize("migration", schema.MIGRATIONS, ids=lambda migration: migration.name)
def test_a_migration_only_adds(migration):
    """A process of the previous version keeps running its own statements: the tables that it uses must not change."""
    for statement in migration.iter_statements():
        assert any(re.match(pattern, statement.strip()) for pattern in ADDITIONS), statement[:200]
