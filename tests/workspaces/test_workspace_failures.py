"""Storage that fails while variables and files are saved or restored: the error has a name, and nothing is lost."""

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import obstore
import pytest

from factories.workers import list_child_pids
from servers import CUT_OTHERS, dsn
from standfast import Store, open_store
from standfast.base.errors import StoreUnavailable
from standfast.store.object_blobs import open_objects
from standfast.store.sqlite.backend import SqliteBackend
from standfast.workers import PoolConfig, PythonSessions, SessionConfig, SessionPool, SessionState

LARGE = "import random; big = random.Random(1).randbytes(3_000_000); n += 1; n"


@pytest.fixture(scope="module", autouse=True)
def object_store_threads() -> None:
    """The library starts its threads with the first request and keeps them."""
    obstore.put(open_objects("memory:///"), "warm-up", b"")


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        yield pool


async def run(sessions: PythonSessions, code: str) -> str:
    return (await sessions.run(code, key="talk")).as_text()


async def test_a_full_disk_prevents_the_checkpoint_and_is_reported(tmp_path: Path, pool: SessionPool) -> None:
    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 300")  # of 4096 bytes; SQLite's error is that of a full disk
        return connection

    backend: Any = SqliteBackend(tmp_path / "app.db", connect=connect)
    first = PythonSessions(pool, store=Store(backend))
    await run(first, "n = 1")
    await first.save("talk")
    assert await run(first, LARGE) == "2"
    await first.save("talk")
    text = await run(first, "n += 1; n")
    assert "could not be saved" in text
    assert "disk is full" in text
    assert text.splitlines()[-1] == "3"
    first.close()
    second = PythonSessions(pool, store=Store(backend))
    text = await run(second, "n, len(big)")
    assert text.splitlines()[-1] == "(3, 3000000)"
    assert "2 earlier calls were run again" in text
    second.close()
    await backend.close()


async def test_an_object_store_that_fails_costs_a_call_and_no_content(tmp_path: Path, pool: SessionPool) -> None:
    objects = tmp_path / "objects"
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}", blobs=objects.as_uri()) as store:
        first = PythonSessions(pool, store=store)
        await run(first, LARGE.replace("n += 1", "n = 1"))
        await first.save("talk")
        (objects / "blobs").rename(tmp_path / "away")
        (objects / "blobs").touch()  # no object can be read or written below a file
        await run(first, "n += 1; more = random.Random(2).randbytes(100_000)")
        await first.save("talk")
        assert "could not be saved" in await run(first, "n")
        first.close()
        second = PythonSessions(pool, store=store)
        with pytest.raises(StoreUnavailable, match="object store"):
            await run(second, "n")
        (objects / "blobs").unlink()
        (tmp_path / "away").rename(objects / "blobs")
        text = await run(second, "n, len(big), len(more)")
        assert text.splitlines()[-1] == "(2, 3000000, 100000)"
        second.close()


async def run_until_it_succeeds(sessions: PythonSessions, code: str) -> str:
    """Run the code again while it meets connections that were cut, and whose end has not arrived yet."""
    while True:
        with suppress(StoreUnavailable):
            return await run(sessions, code)


async def test_connections_that_are_cut_lose_no_version(postgres_tables_url: str, pool: SessionPool) -> None:
    admin = await asyncpg.connect(dsn(postgres_tables_url))
    choose, seen = random.Random(3), []
    async with open_store(postgres_tables_url) as store:
        sessions = PythonSessions(pool, store=store)
        await run(sessions, "n = 0; big = b''")
        for _ in range(12):
            call = asyncio.create_task(run(sessions, "n += 1; big = bytes([n]) * 2_000_000; n"))
            await asyncio.wait([call], timeout=choose.random() * 0.05)
            await admin.execute(CUT_OTHERS)
            with suppress(StoreUnavailable):
                seen.append(int((await call).splitlines()[-1]))
        await run_until_it_succeeds(sessions, "n += 1")
        await admin.close()
        sessions.close()
        assert seen == sorted(set(seen))
        other = PythonSessions(pool, store=store)
        record = await store.backend.get_workspace(store.name_workspace("talk"))
        assert record is not None
        # A version whose acknowledgement was cut off may be there, and then its cell was run.
        assert (await run(other, "n, len(big)")).splitlines()[-1] == f"({record.version - 1}, 2000000)"
        other.close()


async def test_on_pause_durability_writes_a_checkpoint_only_when_saved(tmp_path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        for code, expected, note in (
            ("n = 1; n", "1", ""),
            ("n += 1; n", "2", "1 earlier call was run again"),
            ("n += 1; n", "3", "2 earlier calls were run again"),
        ):
            sessions = PythonSessions(pool, store=store, durability="on_pause")
            text = await run(sessions, code)
            assert text.splitlines()[-1] == expected
            assert note in text
            sessions.close()
        versions = await store.backend.read_versions(store.name_workspace("talk"))
        assert [version.checkpoint_id for version in versions] == [None] * 3
        sessions = PythonSessions(pool, store=store, durability="on_pause")
        await run(sessions, "n += 1")
        await sessions.save("talk")
        sessions.close()
        sessions = PythonSessions(pool, store=store, durability="on_pause")
        text = await run(sessions, "n")
        assert text.splitlines()[-1] == "4"
        assert "run again" not in text
        sessions.close()


async def test_a_cell_that_ends_each_worker_is_not_replayed_forever(tmp_path: Path, pool: SessionPool) -> None:
    deadly = SessionConfig(environment={"DEADLY": "1"})
    async with (
        open_store(f"sqlite:///{tmp_path / 'app.db'}") as store,
        SessionPool(PoolConfig(session=deadly, min_idle=0, max_sessions=3)) as elsewhere,
    ):
        first = PythonSessions(pool, store=store, durability="on_pause")
        for code in ("n = 1", "n += 1", "import os; n += 1; os.environ.get('DEADLY') and os._exit(1)", "n += 1"):
            await run(first, code)
        first.close()
        second = PythonSessions(elsewhere, store=store)
        text = await run(second, "n")
        assert text.splitlines()[-1] == "2"
        assert "the effects of 2 earlier calls are lost (calls 3, 4)" in text
        assert await run(second, "n") == "2"
        second.close()


def list_children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


async def kill_supervisors(pool: SessionPool, count: int) -> None:
    """Kill the supervisor of a session that runs code, and that of the session after it, and so on."""
    while count:
        await asyncio.sleep(0.001)
        if any(info.state is SessionState.BUSY for _, info in pool.list_sessions()):
            for supervisor in [pid for server in list_child_pids() for pid in list_children(server)]:
                os.kill(supervisor, signal.SIGKILL)
                count -= 1


async def test_a_cell_whose_supervisor_is_killed_repeatedly_is_still_replayed(
    tmp_path: Path, pool: SessionPool
) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        first = PythonSessions(pool, store=store, durability="on_pause")
        for code in ("n = 1", "for _ in range(3_000_000): n += 1", "n += 1"):
            await run(first, code)
        first.close()
        second = PythonSessions(pool, store=store)
        killer = asyncio.create_task(kill_supervisors(pool, 5))
        text = await run(second, "n")
        await killer
        assert text.splitlines()[-1] == "3000002"
        assert "all variables and files are as they were" in text
        second.close()


async def test_the_note_for_the_model_names_calls_with_another_output(tmp_path, pool):
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        first = PythonSessions(pool, store=store, durability="on_pause")
        for code in ("n = 1", "import os; os.urandom(8)", "n += 1", "os.urandom(8)"):
            await run(first, code)
        first.close()
        second = PythonSessions(pool, store=store)
        text = await run(second, "n")
        assert "2 of them gave a different output (calls 2, 4)" in text
        assert text.splitlines()[-1] == "2"
        second.close()


async def test_a_call_that_was_stopped_and_is_run_again_is_named(tmp_path):
    """It may be stopped at another moment, and that shows in no output."""
    store = await open_store(f"sqlite:///{tmp_path / 'app.db'}")
    for code in ("x = 0\nwhile True: x += 1", "'x' in globals()"):
        async with SessionPool(PoolConfig(min_idle=0, max_sessions=1)) as pool:
            sessions = PythonSessions(pool, store=store, durability="on_pause", timeout=0.5)
            text = (await sessions.run(code, key="talk")).as_text()
    assert "1 of them gave a different output (call 1)" in text
    await store.close()


async def test_closing_a_pool_leaves_no_task_that_still_saves(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with open_store(f"sqlite:///{path}") as store:
        before = asyncio.all_tasks()
        async with SessionPool(PoolConfig(min_idle=0, max_sessions=1, drain_timeout=0.1)) as pool:
            sessions = PythonSessions(pool, store=store)
            for number in range(3):  # the last versions are saved one after the other
                await sessions.run(f"n = {number}", key="talk")
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")  # no checkpoint can be written
        left = asyncio.all_tasks() - before
        other.close()
        assert not left
        again = SessionPool(PoolConfig(min_idle=0, max_sessions=1))
        async with again:
            assert (await run(PythonSessions(again, store=store), "n")).splitlines()[-1] == "2"


DEADLY = """
import os
def end():
    if "DEADLY" in os.environ: os._exit(1)
class Deadly:
    def __reduce__(self): return end, ()
deadly = Deadly()
"""


async def test_variables_that_end_each_worker_which_loads_them_are_made_again(
    tmp_path: Path, pool: SessionPool
) -> None:
    deadly = SessionConfig(environment={"DEADLY": "1"})
    async with (
        open_store(f"sqlite:///{tmp_path / 'app.db'}") as store,
        SessionPool(PoolConfig(session=deadly, min_idle=0, max_sessions=3)) as elsewhere,
    ):
        first = PythonSessions(pool, store=store)
        for code in ("n = 1", DEADLY, "n += 1", "n += 1"):
            await run(first, code)
            await first.save("talk")
        first.close()
        second = PythonSessions(elsewhere, store=store)
        text = await run(second, "n, type(deadly).__name__")
        assert text.splitlines()[-1] == "(3, 'Deadly')"
        assert "earlier calls were run again" in text
        second.close()


async def test_a_name_that_is_no_text_costs_only_itself(tmp_path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        first = PythonSessions(pool, store=store)
        await run(first, r"globals()['\ud800'] = 1; globals()[7] = 1; n = 1")
        await first.save("talk")
        first.close()
        second = PythonSessions(pool, store=store)
        text = await run(second, "n")
        assert "could not be kept: '\\ud800', 7" in text
        assert text.splitlines()[-1] == "1"
        second.close()


async def test_a_store_that_is_closed_before_the_last_checkpoint_is_no_reason_to_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = (
        "import time\nclass Slow:\n    def __reduce__(self): return time.sleep, (time.sleep(0.3) or 0,)\nslow = Slow()"
    )
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=1)) as pool,
        open_store(f"sqlite:///{tmp_path / 'app.db'}") as store,
    ):
        await run(PythonSessions(pool, store=store), slow)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
