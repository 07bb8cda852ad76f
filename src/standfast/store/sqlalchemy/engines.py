"""Engines for URLs, as standfast wants them."""

from typing import Any

import sqlalchemy
from sqlalchemy import URL, event
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from standfast.base.errors import InvalidInput, MissingExtra

DEFAULT_TIMEOUT = 30.0
"""How many seconds are waited for somebody else's lock, and in closing for what is under way."""

_DEFAULT_DRIVERS = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
}


def create_engine(url: str | URL, kwargs: dict[str, Any]) -> AsyncEngine:
    parsed = parse_url(url)
    try:
        parsed = parsed.set(drivername=_DEFAULT_DRIVERS.get(parsed.drivername, parsed.drivername))
        if parsed.get_backend_name() != "sqlite":
            return create_async_engine(parsed, **kwargs)
        return create_sqlite_engine(parsed, kwargs)
    except ModuleNotFoundError as error:
        if error.name in ("asyncpg", "aiosqlite"):
            raise MissingExtra("sql", f"the driver {error.name}") from error
        raise InvalidInput(f"the driver {error.name} is not installed: pip install {error.name}") from error
    except (ArgumentError, InvalidRequestError, NoSuchModuleError) as error:
        raise InvalidInput(f"not the URL of a database: {error}") from None


def parse_url(url: str | URL) -> URL:
    try:
        return sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # what they say may quote the password
        raise InvalidInput(
            "not the URL of a database: special characters in its user name and password must be quoted,"
            " see urllib.parse.quote"
        ) from None


def create_sqlite_engine(url: URL, kwargs: dict[str, Any]) -> AsyncEngine:
    kwargs["connect_args"] = {"timeout": DEFAULT_TIMEOUT, **kwargs.get("connect_args", {})}
    if url.database in (None, "", ":memory:"):
        kwargs = {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0, **kwargs}
    engine = create_async_engine(url, **kwargs)

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        # A hand-edited column may hold any bytes; they must not stop the rows beside them from being read.
        connection.driver_connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()

    return engine
