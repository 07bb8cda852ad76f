"""Variables and files of a conversation in a store: plain calls, by real workers."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast import EncryptedSession, open_store
from standfast.base.errors import InvalidInput, NotFound, Unsupported
from standfast.store.operations import DeleteWorkspace
from standfast.workers import (
    PoolConfig,
    PythonSessions,
    SandboxPolicy,
    SessionConfig,
    SessionPool,
    WorkspaceRefused,
    python_function,
)
from standfast.workspaces.retention import prune_workspaces
from standfast.workspaces.view import open_workspace


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        yield pool


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


async def run(sessions: PythonSessions, code: str, key: str = "talk") -> str:
    return (await sessions.run(code, key=key)).as_text()


async def test_another_process_continues_with_variables_and_files(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        assert await run(first, "x = [1, 2]; y = x; open('a.txt', 'w').write('hello')") == "5"
        await run(first, "x.append(3)")
        await first.save("talk")
        first.close()
    async with open_store(url) as store:
        second = PythonSessions(pool, store=store)
        text = await run(second, "y, open('a.txt').read(), x is y")
        assert text.splitlines()[-1] == "([1, 2, 3], 'hello', True)"
        assert "restored" in text
        assert await run(second, "len(x)") == "3"
        second.close()


async def test_a_second_process_waits_for_the_call_of_the_first_and_sees_what_it_made(
    url: str, pool: SessionPool
) -> None:
    async with open_store(url) as one, open_store(url) as two:
        first, second = PythonSessions(pool, store=one), PythonSessions(pool, store=two)
        await run(first, "n = 0")
        texts = await asyncio.gather(
            *(run(sessions, "import time; time.sleep(0.01); n += 1; n") for sessions in (first, second) * 4)
        )
        assert sorted(text.splitlines()[-1] for text in texts) == [str(number) for number in range(1, 9)]
        first.close()
        second.close()


async def test_a_workspace_is_looked_at_without_a_worker(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        sessions = PythonSessions(pool, store=store)
        await run(sessions, "x = 'abc'; f = open('a.txt', 'w'); f.write('one'); f.flush()")
        await sessions.save("talk")
        await run(sessions, "y = {1: 2}; open('d.txt', 'w').write('two')")
        await sessions.save("talk")
        sessions.close()
        key = store.name_workspace("talk")
        latest, before = await open_workspace(store.backend, key), await open_workspace(store.backend, key, at=1)
        assert {one.name: one.type for one in latest.variables if one.name in "xy"} == {"x": "str", "y": "dict"}
        assert [one.path for one in latest.files] == ["a.txt", "d.txt"]
        assert (latest.version, before.version, latest.pending) == (2, 1, ())
        assert [one.path for one in before.files] == ["a.txt"]
        assert "f" in latest.unkept
        assert await latest.read("d.txt") == b"two"
        with pytest.raises(NotFound):
            await before.read("d.txt")
        with pytest.raises(InvalidInput):
            await open_workspace(store.backend, key, at=3)
        history = [one async for one in latest.history()]
        assert [(one.version, one.parent) for one in history] == [(1, 0), (2, 1)]
        assert all(one.checkpoint for one in history)


async def test_the_latest_version_is_saved_although_the_one_before_it_was_still_being_written(
    url: str, pool: SessionPool
) -> None:
    async with open_store(url) as store:
        sessions = PythonSessions(pool, store=store)
        await run(sessions, "import os; big = os.urandom(24 << 20)")
        await run(sessions, "x = 1")
        key = store.name_workspace("talk")
        async with asyncio.timeout(60):
            while (await open_workspace(store.backend, key)).pending:  # noqa: ASYNC110 - it depends on the store
                await asyncio.sleep(0.02)
        assert "x" in {one.name for one in (await open_workspace(store.backend, key)).variables}
        sessions.close()


async def test_a_variable_that_cannot_be_saved_is_reported(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        await run(first, "x = 1; g = (n for n in range(3))")
        await first.save("talk")
        first.close()
        second = PythonSessions(pool, store=store)
        text = await run(second, "x")
        assert "could not be kept: g" in text
        second.close()


async def test_retention_keeps_the_latest_checkpoint_and_sweeps_what_is_left(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        sessions = PythonSessions(pool, store=store)
        for number in range(4):
            await run(sessions, f"import os; x = os.urandom(300_000); n = {number}")
            await sessions.save("talk")
        sessions.close()
        backend, key = store.backend, store.name_workspace("talk")
        report = await prune_workspaces(backend, keep=2)
        assert (report.dropped, report.kept) == (2, 2)
        assert report.blobs >= 2
        report = await prune_workspaces(backend, older_than=0, max_mb=0)
        assert (report.dropped, report.kept) == (1, 1)
        again = PythonSessions(pool, store=store)
        assert (await run(again, "n")).splitlines()[-1] == "3"
        again.close()
        for refused in ({"keep": 0}, {"older_than": -1}, {"max_mb": "x"}):
            with pytest.raises(InvalidInput):
                await prune_workspaces(backend, **refused)
        await backend.commit(DeleteWorkspace(key))
        await prune_workspaces(backend, keep=1, sweep_after=-10)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
        assert raw.execute("SELECT COUNT(*) FROM standfast_blobs").fetchone() == (0,)
        assert raw.execute("SELECT COUNT(*) FROM standfast_blob_data").fetchone() == (0,)


async def test_a_workspace_above_the_limit_is_reported_and_replayed(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store, max_checkpoint_mb=1)
        await run(first, "x = 1")
        await first.save("talk")
        await run(first, "big = bytes(range(256)) * 8192")
        await first.save("talk")
        assert "could not be saved" in await run(first, "x = 2")
        first.close()
        second = PythonSessions(pool, store=store, max_checkpoint_mb=1)
        text = await run(second, "x, len(big)")
        assert text.splitlines()[-1] == "(2, 2097152)"
        assert "2 earlier calls were run again" in text
        second.close()


@pytest.mark.parametrize("damage", ["cut", "foreign", "too new", "tampered", "missing chunk", "changed chunk"])
async def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_is_used(
    url: str, pool: SessionPool, damage: str
) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        for number in range(2):
            await run(first, f"x = [{number}] * 1000")
            await first.save("talk")
        first.close()
    changes = {
        "cut": lambda data: data[:-10],
        "foreign": lambda data: b"PK" + data[2:],
        "too new": lambda data: data[: len(b"standfast-workspace")] + b"\xff" + data[len(b"standfast-workspace") + 1 :],
        "tampered": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    }
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw, raw:
        (data, blobs) = raw.execute("SELECT data, blobs FROM standfast_checkpoints WHERE version = 2").fetchone()
        (older,) = raw.execute("SELECT blobs FROM standfast_checkpoints WHERE version = 1").fetchone()
        own = [(digest,) for digest in sorted(set(json.loads(blobs)) - set(json.loads(older)))]
        if damage == "missing chunk":
            raw.executemany("DELETE FROM standfast_blob_data WHERE digest = ?", own)
        elif damage == "changed chunk":
            raw.executemany("UPDATE standfast_blob_data SET data = X'00' || data WHERE digest = ?", own)
        else:
            changed = changes[damage](data)
            raw.execute("UPDATE standfast_checkpoints SET data = ? WHERE version = 2", (changed,))
    async with open_store(url) as store:
        second = PythonSessions(pool, store=store)
        text = await run(second, "x[0], len(x)")
        assert text.splitlines()[-1] == "(1, 1000)"
        assert "1 earlier call was run again" in text
        second.close()


async def test_a_workspace_is_not_found_under_another_conversation(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        sessions = PythonSessions(pool, store=store)
        await run(sessions, "secret = 1", key="ann")
        assert await run(sessions, "'secret' in globals()", key="bob") == "False"
        sessions.close()


async def test_files_that_the_program_writes_are_kept(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        async with first.session("talk") as session:
            await session.files.write("in.csv", "a,b\n1,2\n")
        first.close()
        second = PythonSessions(pool, store=store)
        assert (await run(second, "open('in.csv').read()")).splitlines()[-1] == r"'a,b\n1,2\n'"
        second.close()


async def test_the_function_for_other_frameworks_keeps_a_named_conversation(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        for expected in ("1", "2"):
            sessions = PythonSessions(pool, store=store)
            count = python_function(sessions, conversation="user-7")
            assert (await count("n = globals().get('n', 0) + 1; n")).splitlines()[-1] == expected
            sessions.close()
        assert [one.key for one in await store.backend.list_workspaces(limit=9, after="")] == ["conversation:user-7"]


@pytest.mark.parametrize("options", [{"durability": "always"}, {"max_checkpoint_mb": 0}, {"live_snapshots": -1}])
async def test_wrong_options_are_refused(pool: SessionPool, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        PythonSessions(pool, **options)


async def test_the_workspace_of_an_encrypted_session_is_not_stored_in_clear(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        session = store.session("user-7")
        await EncryptedSession("user-7", session, "k" * 32).add_items([{"role": "user", "content": "hi"}])
        sessions = PythonSessions(pool, store=store)
        with pytest.raises(Unsupported, match="encrypted"):
            await run(sessions, "x = 1", key=session.conversation_key)
        assert await store.backend.list_workspaces(limit=9, after="") == []
        sessions.close()


@pytest.mark.parametrize(
    "policy", [{"network": "host"}, {"level": "plain", "require": "plain"}], ids=["network", "plain"]
)
async def test_no_cell_is_replayed_where_code_may_have_outside_effects(url: str, policy: dict[str, Any]) -> None:
    config = PoolConfig(session=SessionConfig(sandbox=SandboxPolicy(**policy)), min_idle=0, max_sessions=2)
    async with open_store(url) as store, SessionPool(config) as pool:
        first = PythonSessions(pool, store=store, durability="on_pause")
        await run(first, "x = 1")
        await first.save("talk")
        await run(first, "x = 2")
        first.close()
        second = PythonSessions(pool, store=store)
        text = await run(second, "x")
        assert text.splitlines()[-1] == "1"
        assert "the effects of 1 earlier call are lost" in text
        second.close()


@pytest.mark.parametrize("data", [b"\xff", b'{"parent": 2, "code": "1"}', b'{"parent": -1, "code": "1"}'])
async def test_a_version_that_was_changed_is_refused_by_name(url: str, pool: SessionPool, data: bytes) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        for number in range(2):
            await run(first, f"x = {number}")
        first.close()
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw, raw:
            (before,) = raw.execute("SELECT data FROM standfast_versions WHERE version = 2").fetchone()
            raw.execute("UPDATE standfast_versions SET data = ? WHERE version = 2", (data,))
        second = PythonSessions(pool, store=store)
        with pytest.raises(WorkspaceRefused, match="version 2"):
            await run(second, "x")
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw, raw:
            raw.execute("UPDATE standfast_versions SET data = ? WHERE version = 2", (before,))
        assert (await run(second, "x")).splitlines()[-1] == "1"
        second.close()


@pytest.mark.parametrize("change", ["UPDATE standfast_workspaces SET version = 1", "DELETE FROM standfast_workspaces"])
async def test_a_workspace_that_was_put_back_is_refused_by_name(url: str, pool: SessionPool, change: str) -> None:
    path = url.removeprefix("sqlite:///")
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        for number in range(2):
            await run(first, f"x = {number}")
        await first.save("talk")
        first.close()
        with closing(sqlite3.connect(path)) as raw, raw:
            row = raw.execute("SELECT * FROM standfast_workspaces").fetchone()
            raw.execute(change)
        second = PythonSessions(pool, store=store)
        with pytest.raises(WorkspaceRefused, match="version 2"):
            await run(second, "x")
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("INSERT OR REPLACE INTO standfast_workspaces VALUES (?, ?, ?, ?, ?)", row)
        assert (await run(second, "x")).splitlines()[-1] == "1"
        second.close()


async def test_code_has_priority_over_the_checkpoint_that_is_written_meanwhile(url, pool):
    code = (
        "import os\nclass Priority:\n    def __reduce__(self): return int, (os.nice(0),)\n"
        "found = Priority(); own = os.nice(0)"
    )
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        await first.run(code, key="talk")
        await first.save("talk")
        first.close()
        second = PythonSessions(pool, store=store)
        text = (await second.run("found > own or own == 19", key="talk")).as_text()
        assert text.splitlines()[-1] == "True"
        second.close()
