"""Engines, and connections acquired from them."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import URL, event
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, StaticPool

from standfast.base.errors import Closed, InvalidInput, MissingExtra
from standfast.base.log import get_logger
from standfast.store.shielded_work import ShieldedWork
from standfast.store.sqlalchemy.dialects import CommitOutcomeUnknown, translate_error
from standfast.store.sqlite.files import create_private_file

T = TypeVar("T")
_log = get_logger(__name__)

DEFAULT_TIMEOUT = 30.0
"""Seconds to wait for the lock of another process, and for running work when a store is closed."""
DEFAULT_POOL_SIZE = 10
_DEFAULT_DRIVERS = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
}


class BorrowedConnections(ShieldedWork):
    """Acquires the connections of one store from its engine, and tracks the work that runs on them."""

    def __init__(self, engine: AsyncEngine, location: str) -> None:
        super().__init__()
        # Transactions are begun and ended by statements, so that a commit can also be a single statement.
        self.autocommit_engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.engine = engine
        self.location = location
        self.is_sqlite = engine.dialect.name == "sqlite"
        # An in-memory database exists on one connection, which serves one caller at a time.
        self.connection_lock = asyncio.Lock() if isinstance(engine.pool, StaticPool) else None
        self.acquired_count = 0
        self.all_released = asyncio.Event()
        self.all_released.set()
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.location} is closed")

    async def close(self, *, timeout: float) -> None:
        """Refuse new work and wait for running work; cancel it after ``timeout`` seconds."""
        self.closed = True
        try:
            async with asyncio.timeout(timeout):
                await self.all_released.wait()
                if self.pending_tasks:
                    await asyncio.wait(self.pending_tasks)
        except TimeoutError:
            for task in self.pending_tasks:
                task.cancel()

    async def acquire(self) -> AsyncConnection:
        """Return a connection that is alive as far as the driver knows, without asking the server."""
        await self.acquire_slot()
        connecting = asyncio.ensure_future(self.connect()) if self.is_sqlite else self.connect()
        try:
            # A SQLite driver that is cancelled while it connects would leave its thread behind.
            return await (asyncio.shield(connecting) if isinstance(connecting, asyncio.Task) else connecting)
        except asyncio.CancelledError:
            if isinstance(connecting, asyncio.Task):
                self.track(asyncio.ensure_future(self.release_when_connected(connecting)))
            else:
                self.release_slot()
            raise
        except Exception as error:
            self.release_slot()
            raise translate_error(error, self.location) from error

    async def connect(self) -> AsyncConnection:
        while True:
            connection = await self.autocommit_engine.connect()
            if not is_disconnected(connection.sync_connection):
                return connection
            await asyncio.shield(discard(connection))

    async def release(self, connection: AsyncConnection) -> None:
        try:
            await connection.close()
        except Exception as error:  # noqa: BLE001 - drivers raise anything; the work itself is done
            _log.debug("%s: could not release a connection: %s", self.location, type(error).__name__)
        finally:
            self.release_slot()

    async def release_when_connected(self, connecting: asyncio.Task[AsyncConnection]) -> None:
        try:
            connection = await connecting
        except Exception:  # noqa: BLE001 - its caller was cancelled
            self.release_slot()
        else:
            await self.release(connection)

    async def acquire_slot(self) -> None:
        """Count one more connection as acquired. Its release has to call :meth:`release_slot`."""
        if self.connection_lock is not None:
            await self.connection_lock.acquire()
        self.acquired_count += 1
        self.all_released.clear()
        if self.closed:
            self.release_slot()
            self.check_open()

    def release_slot(self) -> None:
        if self.connection_lock is not None:
            self.connection_lock.release()
        self.acquired_count -= 1
        if not self.acquired_count:
            self.all_released.set()

    async def acquire_and_run(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        try:
            return await self.read(work)
        except CommitOutcomeUnknown as lost:
            raise translate_error(lost.error, self.location) from lost.error
        except (SQLAlchemyError, OSError) as error:
            raise translate_error(error, self.location) from error

    async def read(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Run ``work`` on a connection. If the caller is cancelled, the work is too."""
        if self.is_sqlite:
            connection = await self.acquire()
            # A cancelled read closes its connection, which would destroy an in-memory database.
            return await self.run_shielded(self.run_and_release(connection, work))
        return await self.run_detached(self.acquire_run_and_release(work))

    async def acquire_run_and_release(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        return await self.run_and_release(await self.acquire(), work)

    async def run_and_release(self, connection: AsyncConnection, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Run ``work`` and release the connection in any case."""
        try:
            result = await connection.run_sync(work)
        except BaseException:
            await asyncio.shield(self.release(connection))
            raise
        await self.release(connection)
        return result


def is_disconnected(raw: sqlalchemy.Connection | None) -> bool:
    """Return whether the driver knows that the connection is closed."""
    driver: Any = raw.connection.driver_connection if raw is not None else None
    gone = getattr(driver, "is_closed", None) or getattr(driver, "closed", False)
    return bool(gone() if callable(gone) else gone)


async def discard(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()


# --- engines ------------------------------------------------------------------------------------


def create_engine(url: str | URL, kwargs: dict[str, Any]) -> AsyncEngine:
    parsed = parse_url(url)
    try:
        parsed = parsed.set(drivername=_DEFAULT_DRIVERS.get(parsed.drivername, parsed.drivername))
        if parsed.get_backend_name() != "sqlite":
            return create_async_engine(parsed, **choose_pool_size(kwargs))
        return create_sqlite_engine(parsed, kwargs)
    except ModuleNotFoundError as error:
        if error.name in ("asyncpg", "aiosqlite"):
            raise MissingExtra("sql", f"the driver {error.name}") from error
        raise InvalidInput(f"the driver {error.name} is not installed: pip install {error.name}") from error
    except (ArgumentError, InvalidRequestError, NoSuchModuleError) as error:
        raise InvalidInput(f"not a database URL: {error}") from None


def choose_pool_size(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add the size of the pool, unless the caller chose it.

    One process cannot keep more connections busy. SQLAlchemy's default closes those above five after each use, and
    opening one takes the server many times as long as a commit.
    """
    if kwargs.keys() & {"poolclass", "pool", "pool_size", "max_overflow"}:
        return kwargs
    return {"pool_size": DEFAULT_POOL_SIZE, "max_overflow": 0, **kwargs}


def parse_url(url: str | URL) -> URL:
    try:
        return sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # their messages may contain the password
        raise InvalidInput(
            "not a database URL: special characters in the user name and password must be quoted,"
            " see urllib.parse.quote"
        ) from None


def create_private_database(url: URL) -> None:
    """Create the file of an SQLite database, readable by its user only, unless it exists."""
    path = url.database
    if url.get_backend_name() == "sqlite" and path not in (None, "", ":memory:") and not path.startswith("file:"):
        create_private_file(path)


def create_sqlite_engine(url: URL, kwargs: dict[str, Any]) -> AsyncEngine:
    kwargs["connect_args"] = {"timeout": DEFAULT_TIMEOUT, **kwargs.get("connect_args", {})}
    if url.database in (None, "", ":memory:"):
        kwargs = {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0, **kwargs}
    engine = create_async_engine(url, **kwargs)

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        # A hand-edited column may contain any bytes; they must not prevent reading the other rows.
        connection.driver_connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.close()

    return engine
