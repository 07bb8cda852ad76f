"""Connections borrowed from an engine, and work on them that ends properly although its caller does not wait."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool

from standfast.base.errors import Closed
from standfast.store.sqlalchemy.errors import CommitOutcomeUnknown, translate_error

T = TypeVar("T")
_log = logging.getLogger(__name__)

ABANDONED_COMMIT_TIMEOUT = 10.0
"""Seconds after which a commit no longer waits for one whose caller was cancelled."""


class BorrowedConnections:
    """The connections of one store that are out, and what is under way on them."""

    def __init__(self, engine: AsyncEngine, location: str) -> None:
        # Transactions are begun and ended by statements, so that a commit may also be one statement without any.
        self.autocommit_engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.location = location
        self.is_sqlite = engine.dialect.name == "sqlite"
        # A database in memory lives on one connection, which takes one caller at a time.
        self.connection_lock = asyncio.Lock() if isinstance(engine.pool, StaticPool) else None
        self.acquired_count = 0
        self.all_released = asyncio.Event()
        self.all_released.set()
        self.pending_tasks: set[asyncio.Task[Any]] = set()
        self.abandoned_tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.location} is closed")

    async def close(self, *, timeout: float) -> None:
        """Lend no more, and let what is under way come to its end."""
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
        """A connection that is alive as far as the driver knows, which costs no round trip to ask."""
        if self.connection_lock is not None:
            await self.connection_lock.acquire()
        self.acquired_count += 1
        self.all_released.clear()
        if self.closed:
            self.release_slot()
            self.check_open()
        connecting = asyncio.ensure_future(self.connect()) if self.is_sqlite else self.connect()
        try:
            # A SQLite driver that is cancelled while it connects leaves its thread behind, so it is not told.
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
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, it changes nothing about what was done
            _log.debug("%s: a connection could not be given back: %s", self.location, type(error).__name__)
        finally:
            self.release_slot()

    async def release_when_connected(self, connecting: asyncio.Task[AsyncConnection]) -> None:
        try:
            connection = await connecting
        except Exception:  # noqa: BLE001 - nobody waits for it any more
            self.release_slot()
        else:
            await self.release(connection)

    def release_slot(self) -> None:
        if self.connection_lock is not None:
            self.connection_lock.release()
        self.acquired_count -= 1
        if not self.acquired_count:
            self.all_released.set()

    async def acquire_and_run(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        connection = await self.acquire()
        try:
            return await self.run_and_release(connection, work)
        except CommitOutcomeUnknown as lost:
            raise translate_error(lost.error, self.location) from lost.error
        except (SQLAlchemyError, OSError) as error:
            raise translate_error(error, self.location) from error

    async def run_and_release(self, connection: AsyncConnection, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Do the work and give the connection back, whatever happens."""
        try:
            result = await connection.run_sync(work)
        except BaseException:
            await asyncio.shield(self.release(connection))
            raise
        await self.release(connection)
        return result

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Let what has begun come to its end, even if its caller is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self.track(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self.abandoned_tasks.add(task)
            raise

    async def wait_for_abandoned(self) -> None:
        """Until cancelled callers have left nothing behind that a later commit could overtake; in bounded time."""
        if self.abandoned_tasks:
            await asyncio.wait(self.abandoned_tasks, timeout=ABANDONED_COMMIT_TIMEOUT)

    def track(self, task: asyncio.Task[Any]) -> None:
        self.pending_tasks.add(task)
        task.add_done_callback(self.untrack)

    def untrack(self, task: asyncio.Task[Any]) -> None:
        self.pending_tasks.discard(task)
        self.abandoned_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # when its caller was cancelled, nobody else looks at it


def is_disconnected(raw: sqlalchemy.Connection | None) -> bool:
    """Whether the driver already knows that the other side is gone. The drivers call it differently."""
    driver: Any = raw.connection.driver_connection if raw is not None else None
    gone = getattr(driver, "is_closed", None) or getattr(driver, "closed", False)
    return bool(gone() if callable(gone) else gone)


async def discard(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()
