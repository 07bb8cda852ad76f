"""A server on PostgreSQL with row-level security: the database keeps the requests of an owner to its own rows."""

import contextlib

import asyncpg
import pytest

from factories.server import open_server
from servers import dsn
from standfast import open_store
from standfast.client import Client

OWN_READS = (
    "/runs/{run}",
    "/runs/{run}/outcome",
    "/runs/{run}/state",
    "/runs/{run}/step",
    "/runs/{run}/events?until=pause",
    "/approvals/{approval}",
    "/approvals/{approval}/tool",
    "/sessions/{session}",
    "/sessions/{session}/items",
    "/sessions/{session}/view",
    "/sessions/{session}/generations",
    "/sessions/{session}/check",
    "/sessions/{session}/compaction",
    "/sessions/{session}/export",
)
LISTINGS = ("/runs", "/sessions", "/approvals", "/sessions/search?q=refund")


@pytest.fixture
async def server(postgres_url):
    async with open_store(postgres_url) as store:
        await store.backend.enable_row_security()
    async with open_server(postgres_url) as opened:
        yield opened


@pytest.fixture
async def names(server):
    async with Client(server.url, token="ann") as ann:
        run = await ann.start("desk", "refund, please", session_id="talk")
        [approval] = (await run.wait()).approvals
    return {"run": run.id, "session": "talk", "approval": approval.id}


@contextlib.asynccontextmanager
async def hide_everything(url):
    """Let the policies of the scoped role show nothing: a request that still gets data reads the whole store."""
    admin = await asyncpg.connect(dsn(url))
    try:
        rows = await admin.fetch("SELECT tablename, qual FROM pg_policies WHERE policyname = 'standfast_own'")
        assert rows
        for row in rows:
            await admin.execute(f'ALTER POLICY standfast_own ON "{row["tablename"]}" USING (false)')
        yield
    finally:
        await admin.close()


async def test_an_owner_reads_and_changes_what_it_has(server, names):
    ann = server.sign_in("ann")
    for path in (*OWN_READS, *LISTINGS):
        answer = await ann.http.get(path.format(**names))
        assert (path, answer.status_code) == (path, 200), answer.text
        if path not in ("/sessions/{session}/generations", "/sessions/{session}/compaction"):  # there are none yet
            assert names["session"] in answer.text or names["run"] in answer.text or "refund" in answer.text, path
    async with Client(server.url, token="ann") as client:
        session = client.session("mine")
        await session.add_items([{"role": "user", "content": str(number)} for number in range(4)])
        await session.compact("short", keep_last=1)
        await session.undo_compaction()
        await session.rewind(2)
        await session.pop_item()
        fork = await session.fork(session_id="child")
        assert len(await fork.get_items()) == 1
        await session.clear_session()
        await client.store.annotate("mine", {"a": 1})
        await client.cancel(names["run"], mode="immediate")
        await client.delete(names["run"])
        await client.store.delete("talk")


async def test_the_database_decides_what_an_owner_gets(server, names, postgres_url):
    ann, olga = server.sign_in("ann"), server.sign_in("olga")
    async with hide_everything(postgres_url):
        for path in OWN_READS:
            answer = await ann.http.get(path.format(**names))
            assert (path, answer.status_code) == (path, 404), answer.text
            assert (await olga.http.get(path.format(**names))).status_code == 200, path
        for path in LISTINGS:
            answer = await ann.http.get(path)
            found = answer.json()
            assert (path, found if isinstance(found, list) else found["items"]) == (path, [])
        for method, path in (
            ("DELETE", "/sessions/{session}"),
            ("DELETE", "/runs/{run}"),
            ("DELETE", "/sessions/{session}/items"),
        ):
            answer = await ann.http.request(method, path.format(**names))
            assert (path, answer.status_code) == (path, 404)
        answer = await ann.post(f"/runs/{names['run']}/cancel", {})
        assert answer.status_code == 404
    assert (await server.runtime.approval(names["approval"])).status == "pending"
    assert len(await server.runtime.session("talk").get_items()) > 0


async def test_a_stream_follows_the_run_of_its_owner(server, names):
    ann, eve = server.sign_in("ann"), server.sign_in("eve")
    assert (await eve.post(f"/approvals/{names['approval']}", {"decision": "approve"})).status_code == 200
    events = await ann.read_events(names["run"])
    assert events[-1][1:] == ("end", {"status": "completed", "steps": int(events[-2][0])})


async def test_a_foreign_request_is_recorded_as_denied(server, names):
    assert (await server.sign_in("bob").get(f"/runs/{names['run']}")).status_code == 404
    entries = (await server.sign_in("root").get("/audit")).json()["items"]
    assert [(entry["subject"], entry["action"]) for entry in entries] == [("bob", "denied")]
