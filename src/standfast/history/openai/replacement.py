"""Replacement of the first items of any session: atomically if the session supports it, else by clearing it."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import msgspec

from standfast.base.errors import HistoryMoved, StoreUnavailable
from standfast.base.items import Item
from standfast.history.session import Session, make_contention_error, with_run_context
from standfast.lifecycle.scope import run_to_end

NO_LIMIT = 2**31 - 1
"""A limit that no history reaches. Without a limit, a session would apply that of its settings."""
RESTORE_TIMEOUT = 30.0
"""Seconds that restoring the items of a session may take."""
_MAX_ATTEMPTS = 20


class RestoreFailed(StoreUnavailable):
    """The items of a session could not be restored after a failed replacement.

    They are in ``items``, and possibly nowhere else.
    """

    code = "restore-failed"

    def __init__(self, session_id: str, items: Sequence[Item], reason: object) -> None:
        super().__init__(
            f"session {session_id!r}: its {len(items)} items could not be restored ({reason!r}); the error holds them"
        )
        self.session_id, self.items = session_id, list(items)


class HistorySnapshot(msgspec.Struct, frozen=True):
    """All items of a history at one moment, and its head if the session has one."""

    items: list[Item]
    head: Any = None

    @property
    def is_complete(self) -> bool:
        """Whether the items are all records of the history: none is unreadable or expired."""
        return self.head is None or self.head.length == len(self.items)


async def read_snapshot(session: Session) -> HistorySnapshot:
    """Return the whole history, regardless of the limit in the settings."""
    # The head is read first: after a write in between, a commit against it fails instead of losing that write.
    head = await session.head() if supports_atomic_replace(session) else None
    return HistorySnapshot(await with_run_context(session.get_items)(NO_LIMIT), head)


async def replace_prefix(session: Session, before: HistorySnapshot, stop: int, items: Sequence[Item]) -> None:
    """Replace the first ``stop`` items of the snapshot ``before`` by ``items``. Later items follow them.

    Raise :class:`HistoryMoved` and change nothing if the history no longer begins with the items of the snapshot.
    """
    now = before if supports_atomic_replace(session) else await read_snapshot(session)
    for _ in range(_MAX_ATTEMPTS):
        if now.items[: len(before.items)] != before.items:
            raise HistoryMoved(
                session.session_id, expected=f"the {len(before.items)} items that were read", found="other items"
            )
        if not supports_atomic_replace(session):
            await run_to_end(_clear_and_refill(session, now.items, [*items, *now.items[stop:]]), grace=0)
            return
        try:
            await _replace_atomically(session, now, stop, items)
        except HistoryMoved:
            await asyncio.sleep(random.uniform(0, 0.01))
            now = await read_snapshot(session)
        else:
            return
    raise make_contention_error(session.session_id, _MAX_ATTEMPTS)


class ReplaceableSession(Session, Protocol):
    """A session that has a head and can replace items in one commit."""

    async def head(self) -> Any: ...

    async def splice_items(self, start: int, stop: int | None, items: Sequence[Item], *, expected: Any) -> object: ...

    async def replace_items(self, items: Sequence[Item], *, expected: Any) -> object: ...


def supports_atomic_replace(session: Session) -> TypeGuard[ReplaceableSession]:
    """Return True if the session has ``head`` and at least one of the other methods of :class:`ReplaceableSession`."""
    if getattr(session, "stored_session", session) is None:  # a wrapper whose methods raise Unsupported
        return False
    return _has_method(session, "head") and (
        _has_method(session, "splice_items") or _has_method(session, "replace_items")
    )


async def _replace_atomically(
    session: ReplaceableSession, now: HistorySnapshot, stop: int, items: Sequence[Item]
) -> None:
    if _has_method(session, "splice_items") and now.is_complete:  # the remaining items need not be rewritten
        await session.splice_items(0, stop, items, expected=now.head)
        return
    everything = [*items, *now.items[stop:]]
    if _has_method(session, "replace_items"):
        await session.replace_items(everything, expected=now.head)
    else:
        await session.splice_items(0, None, everything, expected=now.head)


async def _clear_and_refill(session: Session, previous: list[Item], items: list[Item]) -> None:
    """Clear the session and add ``items``. On failure or cancellation restore the ``previous`` ones."""
    try:
        await with_run_context(session.clear_session)()
        await with_run_context(session.add_items)(items)
    except (Exception, asyncio.CancelledError) as error:
        try:
            await run_to_end(_restore_items(session, previous, error), grace=None)
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is not None:  # the failed restore matters more than the cancellation
                raise cancelled.__cause__ from error
        raise


async def _restore_items(session: Session, previous: list[Item], error: BaseException) -> None:
    reason: BaseException = error
    try:
        async with asyncio.timeout(RESTORE_TIMEOUT):
            while True:
                try:
                    await _put_back(session, previous)
                    return
                except Exception as problem:  # noqa: BLE001 - a third-party session may raise anything; try again
                    reason = problem
                    await asyncio.sleep(random.uniform(0.05, 0.2))
    except TimeoutError:
        raise RestoreFailed(session.session_id, previous, reason) from error


async def _put_back(session: Session, previous: list[Item]) -> None:
    """Make ``previous`` the items of the session, without clearing it: that may be what failed."""
    left = await with_run_context(session.get_items)(NO_LIMIT)
    while left != previous[: len(left)]:
        await with_run_context(session.pop_item)()
        left = left[:-1]
    if len(left) < len(previous):
        await with_run_context(session.add_items)(previous[len(left) :])


def _has_method(session: object, name: str) -> bool:
    return callable(getattr(session, name, None))
