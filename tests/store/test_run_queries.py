"""Queries of runs: their cost does not grow with the number of ended runs, and old databases get the index."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from factories.migrations import list_undo_statements
from servers import dsn
from standfast import RunShared
from standfast.store.backend import Backend
from standfast.store.operations import DeleteRun, PutDocument, SaveRun
from standfast.store.sql import run_queries, schema
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend
from standfast.store.sqlite.connections import SqliteConnection
from standfast.store.urls import open_backend
from standfast.testing import closing_backend
from standfast.testing.store.fixtures import append, read_data

ACTIVE = ("queued", "woken", "running", "waiting", "blocked")
INDEX = "standfast_runs_by_session_status"


def make_ended_runs(first: int, last: int) -> list[SaveRun]:
    return [
        SaveRun(run_id=f"run{n}", expected=0, status="completed", data=b"{}", session_id="s")
        for n in range(first, last)
    ]


def count_query_steps(path: Path) -> int:
    """The number of virtual machine steps that SQLite needs to find the first active run, in tens."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(path)) as raw:
        connection = SqliteConnection(raw, TableNames())
        raw.set_progress_handler(count, 10)
        assert run_queries.list_runs(connection, status=ACTIVE, session_id="s", limit=1, after=0) == []
        return steps


async def test_finding_the_active_run_of_a_session_does_not_read_ended_runs(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with closing_backend(SqliteBackend(path)) as backend:
        await backend.commit(*make_ended_runs(0, 10))
        few = count_query_steps(path)
        await backend.commit(*make_ended_runs(10, 1000))
        assert count_query_steps(path) <= few + 2


async def test_runs_of_several_statuses_are_listed_in_order(tmp_path: Path) -> None:
    async with closing_backend(SqliteBackend(tmp_path / "store.db")) as backend:
        for number in range(12):
            status = ("queued", "completed", "running")[number % 3]
            await backend.commit(
                SaveRun(run_id=f"run{number}", expected=0, status=status, data=b"{}", session_id="s" if number else "t")
            )
        found = await backend.list_runs(status=("running", "queued"), session_id="s", limit=4, after=3)
        assert [run.run_id for run in found] == ["run3", "run5", "run6", "run8"]
        assert await backend.list_runs(status=(), session_id="s", limit=4, after=0) == []


async def test_a_file_of_an_earlier_version_gets_the_index(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with closing_backend(SqliteBackend(path)) as backend:
        await backend.commit(*make_ended_runs(0, 2))
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in list_undo_statements(schema.RUNS_BY_SESSION_STATUS, "sqlite"):
            raw.execute(statement)
    async with closing_backend(SqliteBackend(path)) as backend:
        assert len(await backend.list_runs(status=None, session_id="s", limit=9, after=0)) == 2
        await backend.commit(*make_ended_runs(2, 3))
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (INDEX,)).fetchone()
        assert raw.execute("SELECT MAX(version) FROM standfast_schema").fetchone() == (schema.LATEST_VERSION,)


async def test_a_database_of_an_earlier_version_gets_the_index(postgres_url: str) -> None:
    async with closing_backend(await open_backend(postgres_url)) as backend:
        await backend.commit(*make_ended_runs(0, 2))
    admin = await asyncpg.connect(dsn(postgres_url))
    try:
        for statement in list_undo_statements(schema.RUNS_BY_SESSION_STATUS, "postgresql"):
            await admin.execute(statement)
        async with closing_backend(await open_backend(postgres_url)) as backend:
            assert len(await backend.list_runs(status=("completed",), session_id="s", limit=9, after=0)) == 2
        assert await admin.fetchval("SELECT 1 FROM pg_indexes WHERE indexname = $1", INDEX)
    finally:
        await admin.close()


async def test_open_programs_continue_while_another_migrates(postgres_url: str) -> None:
    """The functions of an earlier version are replaced while commits call them; nothing fails and nothing is lost."""
    async with closing_backend(await open_backend(postgres_url)) as backend:
        admin = await asyncpg.connect(dsn(postgres_url))
        try:
            for statement in list_undo_statements(schema.DOCUMENTS, "postgresql"):
                await admin.execute(statement)
            for name in ("put_document(jsonb, bytea[], double precision)", "delete_document(jsonb)"):
                await admin.execute(f"DROP FUNCTION standfast_commit_{name}")
        finally:
            await admin.close()
        migrated = asyncio.Event()

        async def write(session_id: str) -> int:
            count = 0
            while not migrated.is_set() or count < 5:
                await append(backend, session_id, b"x")
                count += 1
            return count

        async def migrate() -> None:
            async with closing_backend(await open_backend(postgres_url)) as later:
                await later.commit(PutDocument(kind="k", key="a", data=b""))
            migrated.set()

        *counts, _ = await asyncio.gather(write("a"), write("b"), migrate())
        assert [len(await read_data(backend, name)) for name in ("a", "b")] == counts


FORK_HEADER = b'{"agent":"support","request":"","answer":{"text":"\\u0000 \\"parent\\":\\"run_no\\""},"parent":"run_1"}'


async def test_a_fork_that_an_earlier_version_stored_keeps_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with closing_backend(SqliteBackend(path)) as backend:
        await backend.commit(*make_forked_runs())
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in list_undo_statements(schema.RUN_PARENTS, "sqlite"):
            raw.execute(statement)
    async with closing_backend(SqliteBackend(path)) as backend:
        await check_parent_is_kept(backend)


async def test_a_fork_that_an_earlier_version_stored_on_a_server_keeps_its_parent(postgres_url: str) -> None:
    async with closing_backend(await open_backend(postgres_url)) as backend:
        await backend.commit(*make_forked_runs())
    admin = await asyncpg.connect(dsn(postgres_url))
    try:
        for statement in list_undo_statements(schema.RUN_PARENTS, "postgresql"):
            await admin.execute(statement)
    finally:
        await admin.close()
    async with closing_backend(await open_backend(postgres_url)) as backend:
        await check_parent_is_kept(backend)


def make_forked_runs() -> list[SaveRun]:
    return [
        SaveRun(run_id="run_1", expected=0, status="completed", data=b'{"agent":"support","request":"x"}'),
        SaveRun(run_id="run_2", expected=0, status="completed", data=FORK_HEADER),
        SaveRun(run_id="run_no", expected=0, status="completed", data=b"\xff"),
    ]


async def check_parent_is_kept(backend: Backend) -> None:
    with pytest.raises(RunShared):
        await backend.commit(DeleteRun(run_id="run_1", expected=1))
    await backend.commit(DeleteRun(run_id="run_no", expected=1))
    await backend.commit(DeleteRun(run_id="run_2", expected=1), DeleteRun(run_id="run_1", expected=1))
