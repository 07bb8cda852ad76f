"""The ``--store`` option, and opening the store that it names."""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated

import typer

from standfast.base.errors import NotFound
from standfast.history.store import Store, open_store

DEFAULT_STORE = "sqlite:///standfast.db"
SQLITE_SESSION_TABLES = ("agent_sessions", "agent_messages")

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        "-s",
        envvar="STANDFAST_STORE",
        help="The URL of the store: sqlite:///PATH, postgresql+asyncpg://..., redis://...",
    ),
]


def format_store_option(url: str) -> list[str]:
    """Return the option that selects this store, or nothing if it is the default."""
    return [] if url == os.environ.get("STANDFAST_STORE", DEFAULT_STORE) else ["--store", url]


class StoreNotFound(NotFound):
    """There is no database at the URL yet."""

    def __init__(self, url: str) -> None:
        super().__init__("store", url)
        self.args = (f"there is no store at {url}: choose another with --store or STANDFAST_STORE",)


def require_existing_store(url: str) -> str:
    """Return the URL; raise :class:`StoreNotFound` rather than create a missing SQLite file."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:///") and path not in ("", ":memory:") and not Path(path).exists():
        raise StoreNotFound(url)
    return url


@asynccontextmanager
async def open_existing_store(url: str) -> AsyncIterator[Store]:
    """Open an existing store. Errors about a missing session mention other tables of the same file."""
    async with open_store(require_existing_store(url)) as store:
        try:
            yield store
        except NotFound as missing:
            missing.args = ("; ".join([str(missing), *find_other_tables(url)]),)
            raise


def find_other_tables(url: str) -> list[str]:
    """Describe tables that ``SQLiteSession`` has written to the same file under other names."""
    path, _, query = url.removeprefix("sqlite:///").partition("?")
    if not url.startswith("sqlite:///") or path in ("", ":memory:") or "tables=" in query:
        return []
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
        names = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names.issuperset(SQLITE_SESSION_TABLES):
        return []
    other = f"{url}{'&' if query else '?'}tables={','.join(SQLITE_SESSION_TABLES)}"
    return [f"this file also has sessions written by SQLiteSession: --store '{other}'"]
