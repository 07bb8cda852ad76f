"""A backend whose transactions see and change the rows of one owner only: PostgreSQL sees to it."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy
from msgspec.structs import replace
from sqlalchemy.exc import DBAPIError

from standfast.base.errors import OutsideScope, Unsupported
from standfast.store.links import Link, LinkListener, LinkUnavailable
from standfast.store.operations import Annotate, AppendVersions, Op, OpResult, Quarantine, RequireVersion, Splice
from standfast.store.records import SearchCandidate
from standfast.store.sql.commit import apply
from standfast.store.sql.queries import RelationalQueries
from standfast.store.sqlalchemy import dialects, postgres
from standfast.store.sqlalchemy.dialects import CommitOutcomeUnknown, SqlConnection
from standfast.store.sqlalchemy.row_security import ENTER_SCOPE

if TYPE_CHECKING:
    from standfast.store.sqlalchemy.backend import SqlBackend

T = TypeVar("T")
_INSUFFICIENT_PRIVILEGE = "42501"
_UNIQUE_VIOLATION = "23505"
_MAX_ATTEMPTS = 6
_SUPPORTED_OPS = (Splice, Annotate, RequireVersion, Quarantine, AppendVersions)


class ScopedBackend(RelationalQueries):
    """What one owner has in a store, and nothing else: sessions to read and write, runs and workspaces to read.

    Sessions that are created get the owner. What another owner has does not exist, and its names cannot be used
    (:class:`OutsideScope`). Operations that destroy, and those on runs, leases and documents, are
    :class:`Unsupported`.
    """

    def __init__(self, backend: "SqlBackend", owner: str) -> None:
        self.backend, self.owner = backend, owner
        self.indexes_words, self.location = backend.indexes_words, backend.location
        self.is_checked = False

    async def close(self) -> None:
        """Leave the backend open; its owner closes it."""

    def for_owner(self, owner: str) -> "ScopedBackend":
        if owner != self.owner:
            raise OutsideScope(self.owner)
        return self

    async def check(self) -> None:
        """Refuse a store without row-level security: there would be nothing to hold."""
        if not self.is_checked:
            if not await self.backend.has_row_security():
                raise Unsupported(
                    "this store has no row-level security: switch it on with `standfast owners protect --store URL`"
                )
            self.is_checked = True

    async def commit(self, *ops: Op) -> list[OpResult]:
        for op in ops:
            if not isinstance(op, _SUPPORTED_OPS):
                raise Unsupported(f"a store that is scoped to an owner does not support {type(op).__name__}")
        owned = [
            replace(op, owner=self.owner) if isinstance(op, (Splice, Annotate)) and op.owner is None else op
            for op in ops
        ]
        await self.check()
        connections, transactions = self.backend.connections, self.backend.transactions
        await connections.wait_for_abandoned()

        def write(connection: SqlConnection) -> list[OpResult]:
            return apply(connection, owned, transactions.get_time(connection))

        problem: Exception
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(random.uniform(0, 0.005 * 2**attempt))
            connection = await connections.acquire()
            try:
                return await connections.run_shielded(
                    connections.run_and_release(connection, lambda raw: self.run_in_scope(raw, write))
                )
            except CommitOutcomeUnknown as lost:
                problem = lost.error
                break
            except DBAPIError as error:
                problem = error
                if not dialects.is_conflict(error):
                    break
            except OSError as error:
                problem = error
                break
        if isinstance(problem, DBAPIError) and dialects.get_sqlstate(problem) == _UNIQUE_VIOLATION:
            raise OutsideScope(self.owner) from None  # The name is taken by a row that stays hidden.
        raise dialects.translate_error(problem, self.location) from problem

    def run_in_scope(self, raw: sqlalchemy.Connection, work: Callable[[SqlConnection], T]) -> T:
        """Run ``work`` in a transaction of the owner."""

        def enter_and_work(connection: SqlConnection) -> T:
            connection.fetch_one(ENTER_SCOPE, {"owner": self.owner})
            return work(connection)

        try:
            return self.backend.transactions.run_in_transaction(raw, enter_and_work)
        except DBAPIError as error:
            if dialects.get_sqlstate(error) == _INSUFFICIENT_PRIVILEGE:
                raise OutsideScope(self.owner) from error
            raise

    async def run_query(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        await self.check()
        return await self.backend.connections.acquire_and_run(
            lambda raw: self.run_in_scope(raw, lambda connection: function(connection, *args, **kwargs))
        )

    async def open_link(self, name: str, listener: LinkListener) -> Link:
        raise LinkUnavailable("a store that is scoped to an owner has no links: open one of the whole store")

    async def get_time(self) -> float:
        return await self.backend.get_time()

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        # With the owner in the statement as well, PostgreSQL starts with that owner's sessions.
        wanted = self.owner if owner is None else owner
        return await self.run_query(postgres.find, terms, session_id=session_id, owner=wanted, limit=limit, skip=skip)
