"""Open the backend that a URL names, or one over an existing engine or client."""

from collections.abc import Awaitable, Callable
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from standfast.base.errors import InvalidInput, MissingExtra
from standfast.store.backend import Backend
from standfast.store.sql.connection import TableNames

if TYPE_CHECKING:
    from standfast.store.sqlalchemy.backend import SqlBackend
    from standfast.store.sqlite.backend import SqliteBackend

SUPPORTED_URLS = "memory:// · sqlite:///path · postgresql+asyncpg://... · mysql+asyncmy://... · redis://..."


async def open_backend(url: Any, *, blobs: str | None = None, **options: Any) -> Backend:
    """Open a backend. ``options`` are the keyword arguments of its class; ``blobs`` is the URL of an object store."""
    if blobs is not None:
        from standfast.store.object_blobs import ObjectBlobs, open_objects

        objects = open_objects(blobs)
        stacked: Any = ObjectBlobs(await open_backend(url, **options), objects)
        return stacked  # type: ignore[no-any-return]
    if not isinstance(url, str):
        return await open_existing(url, options)
    scheme, separator, _ = url.partition("://")  # errors must not quote the rest, which may contain a password
    if not separator:
        raise InvalidInput(f"not the URL of a store; for a file use sqlite:///app.db; known are {SUPPORTED_URLS}")
    for supported, opener in _OPENERS.items():
        if scheme == supported or scheme.startswith(f"{supported}+"):
            return await opener(url, options)
    raise InvalidInput(f"unknown kind of store {scheme!r}; known are {SUPPORTED_URLS}")


def validate_options(options: dict[str, Any], factory: Callable[..., Any], kind: str) -> dict[str, Any]:
    """Return the options if ``factory`` accepts all of them."""
    parameters = signature(factory).parameters.values()
    supported = [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in supported]:
        raise InvalidInput(f"{kind} takes no {', '.join(unknown)}; its options are {', '.join(supported)}")
    return options


async def open_memory(url: str, options: dict[str, Any]) -> Backend:
    from standfast.store.memory import MemoryBackend

    return MemoryBackend(**validate_options(options, MemoryBackend, "a store in memory"))


async def open_sqlite(url: str, options: dict[str, Any]) -> Backend:
    if not url.startswith("sqlite://"):  # such as sqlite+aiosqlite://, which names an SQLAlchemy driver
        return await open_sql(url, options)
    from standfast.store.sqlite.backend import MEMORY, SqliteBackend
    from standfast.store.sqlite.shared_backends import get_shared_backend

    address, _, query = url.removeprefix("sqlite://").partition("?")
    parameters = dict(parse_qsl(query))
    if "tables" in parameters:
        options = {"names": parse_table_names(parameters.pop("tables")), **options}
    if "synchronous" in parameters:
        options = {"synchronous": parameters.pop("synchronous").upper(), **options}
    if parameters:
        raise InvalidInput(f"sqlite takes no {', '.join(parameters)}; it takes synchronous=normal or full, and tables=")
    path = address.removeprefix("/")
    validate_options(options, SqliteBackend, "a store in SQLite")
    return await prepare_backend(get_shared_backend(path if path not in ("", MEMORY) else MEMORY, **options))


async def open_sql(url: str, options: dict[str, Any]) -> Backend:
    try:
        from standfast.store.sqlalchemy.backend import SqlBackend
    except ImportError as error:
        raise MissingExtra("sql", "a store in an SQL database") from error
    address, _, query = url.partition("?")
    rest = [part for part in query.split("&") if part and not part.startswith("tables=")]
    if tables := dict(parse_qsl(query)).get("tables"):
        url, options = (
            "?".join([address, *(["&".join(rest)] if rest else [])]),
            {"names": parse_table_names(tables), **options},
        )
    return await prepare_backend(
        SqlBackend.from_url(url, **validate_options(options, SqlBackend.from_url, "a store in an SQL database"))
    )


def parse_table_names(tables: str) -> TableNames:
    """Parse ``tables=SESSIONS,ITEMS`` of a URL."""
    names = tables.split(",")
    if len(names) != 2:
        raise InvalidInput(f"tables= takes two names, such as agent_sessions,agent_messages, not {tables!r}")
    return TableNames(*names)


async def open_redis(url: str, options: dict[str, Any]) -> Backend:
    try:
        from standfast.store.redis.backend import RedisBackend
    except ImportError as error:
        raise MissingExtra("redis", "a store in Redis") from error
    return RedisBackend.from_url(url, **validate_options(options, RedisBackend.from_url, "a store in Redis"))


async def open_existing(handle: Any, options: dict[str, Any]) -> Backend:
    """Open a backend over an engine or client that the caller created and will close."""
    module = type(handle).__module__.partition(".")[0]
    if module == "sqlalchemy" and hasattr(handle, "sync_engine"):
        from standfast.store.sqlalchemy.backend import SqlBackend

        return await prepare_backend(
            SqlBackend(handle, **validate_options(options, SqlBackend, "a store with your engine"))
        )
    if module == "redis":
        from standfast.store.redis.backend import RedisBackend

        return RedisBackend(handle, **validate_options(options, RedisBackend, "a store with your client"))
    raise InvalidInput(f"a store is opened from a URL, an AsyncEngine or a Redis client, not {type(handle).__name__}")


async def prepare_backend(backend: "SqliteBackend | SqlBackend") -> Backend:
    try:
        await backend.open()
    except BaseException:
        await backend.close()
        raise
    return backend


_OPENERS: dict[str, Callable[[str, dict[str, Any]], Awaitable[Backend]]] = {
    "memory": open_memory,
    "sqlite": open_sqlite,
    "postgresql": open_sql,
    "postgres": open_sql,  # as hosting services write it
    "mysql": open_sql,
    "mariadb": open_sql,
    "redis": open_redis,
    "rediss": open_redis,
    "unix": open_redis,
}
