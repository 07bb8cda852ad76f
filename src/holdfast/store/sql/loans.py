"""Connections borrowed from an engine, and work on them that ends properly although its caller does not wait."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool

from holdfast.base.errors import Closed
from holdfast.store.sql.errors import OutcomeUnknown, explained

T = TypeVar("T")
_log = logging.getLogger(__name__)

OVERTAKEN_AFTER = 10.0
"""Seconds after which a commit no longer waits for one whose caller was cancelled."""


class Loans:
    """The connections of one store that are out, and what is under way on them."""

    def __init__(self, engine: AsyncEngine, where: str) -> None:
        # Transactions are begun and ended by statements, so that a commit may also be one statement without any.
        self.autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.where = where
        self.is_sqlite = engine.dialect.name == "sqlite"
        # A database in memory lives on one connection, which takes one caller at a time.
        self.turns = asyncio.Lock() if isinstance(engine.pool, StaticPool) else None
        self.count = 0
        self.all_back = asyncio.Event()
        self.all_back.set()
        self.under_way: set[asyncio.Task[Any]] = set()
        self.left_behind: set[asyncio.Task[Any]] = set()
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.where} is closed")

    async def close(self, *, patience: float) -> None:
        """Lend no more, and let what is under way come to its end."""
        self.closed = True
        try:
            async with asyncio.timeout(patience):
                await self.all_back.wait()
                if self.under_way:
                    await asyncio.wait(self.under_way)
        except TimeoutError:
            for task in self.under_way:
                task.cancel()

    async def borrow(self) -> AsyncConnection:
        """A connection that is alive as far as the driver knows, which costs no round trip to ask."""
        if self.turns is not None:
            await self.turns.acquire()
        self.count += 1
        self.all_back.clear()
        if self.closed:
            self.end_loan()
            self.check_open()
        connecting = asyncio.ensure_future(self.connect()) if self.is_sqlite else self.connect()
        try:
            # A SQLite driver that is cancelled while it connects leaves its thread behind, so it is not told.
            return await (asyncio.shield(connecting) if isinstance(connecting, asyncio.Task) else connecting)
        except asyncio.CancelledError:
            if isinstance(connecting, asyncio.Task):
                self.track(asyncio.ensure_future(self.give_back_unused(connecting)))
            else:
                self.end_loan()
            raise
        except Exception as error:
            self.end_loan()
            raise explained(error, self.where) from error

    async def connect(self) -> AsyncConnection:
        while True:
            connection = await self.autocommit.connect()
            if not has_hung_up(connection.sync_connection):
                return connection
            await asyncio.shield(discard(connection))

    async def give_back(self, connection: AsyncConnection) -> None:
        try:
            await connection.close()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, it changes nothing about what was done
            _log.debug("%s: a connection could not be given back: %s", self.where, type(error).__name__)
        finally:
            self.end_loan()

    async def give_back_unused(self, connecting: asyncio.Task[AsyncConnection]) -> None:
        try:
            connection = await connecting
        except Exception:  # noqa: BLE001 - nobody waits for it any more
            self.end_loan()
        else:
            await self.give_back(connection)

    def end_loan(self) -> None:
        if self.turns is not None:
            self.turns.release()
        self.count -= 1
        if not self.count:
            self.all_back.set()

    async def on_connection(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        connection = await self.borrow()
        try:
            return await self.run_on(connection, work)
        except OutcomeUnknown as lost:
            raise explained(lost.error, self.where) from lost.error
        except (SQLAlchemyError, OSError) as error:
            raise explained(error, self.where) from error

    async def run_on(self, connection: AsyncConnection, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Do the work and give the connection back, whatever happens."""
        try:
            result = await connection.run_sync(work)
        except BaseException:
            await asyncio.shield(self.give_back(connection))
            raise
        await self.give_back(connection)
        return result

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Let what has begun come to its end, even if its caller is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self.track(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self.left_behind.add(task)
            raise

    async def caught_up(self) -> None:
        """Until cancelled callers have left nothing behind that a later commit could overtake; in bounded time."""
        if self.left_behind:
            await asyncio.wait(self.left_behind, timeout=OVERTAKEN_AFTER)

    def track(self, task: asyncio.Task[Any]) -> None:
        self.under_way.add(task)
        task.add_done_callback(self.untrack)

    def untrack(self, task: asyncio.Task[Any]) -> None:
        self.under_way.discard(task)
        self.left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # when its caller was cancelled, nobody else looks at it


def has_hung_up(raw: sqlalchemy.Connection | None) -> bool:
    """Whether the driver already knows that the other side is gone. The drivers call it differently."""
    driver: Any = raw.connection.driver_connection if raw is not None else None
    gone = getattr(driver, "is_closed", None) or getattr(driver, "closed", False)
    return bool(gone() if callable(gone) else gone)


async def discard(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()
