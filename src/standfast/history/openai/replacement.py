"""Replacing the beginning of a history by something shorter, in whatever way its session allows."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import msgspec

from standfast.base.errors import HistoryMoved, StoreUnavailable
from standfast.base.items import Item
from standfast.history.session import Session
from standfast.lifecycle.cancellation import run_to_end

NO_LIMIT = 2**31 - 1
"""A limit that no history reaches. Without one, a session would apply the limit of its settings."""
RESTORE_TIMEOUT = 30.0
"""How long it may take to give a session its items back."""
_MAX_ATTEMPTS = 20


class RestoreFailed(StoreUnavailable):
    """A session could not be given the items back that it had before a failed replacement.

    They are in ``items``, and maybe nowhere else.
    """

    code = "restore-failed"

    def __init__(self, session_id: str, items: Sequence[Item], reason: object) -> None:
        super().__init__(f"session {session_id!r} did not get its {len(items)} items back: {reason!r}")
        self.session_id, self.items = session_id, list(items)


class HistorySnapshot(msgspec.Struct, frozen=True):
    """All items of a history at one moment, and where its session said it stood, if it can say that."""

    items: list[Item]
    head: Any = None

    @property
    def is_complete(self) -> bool:
        """Whether the items are all records there are: none was unreadable or past its time."""
        return self.head is None or self.head.length == len(self.items)


async def read_snapshot(session: Session) -> HistorySnapshot:
    """The whole history, whatever the session's default limit is."""
    # The head first: a write in between makes it too old to commit against, never too new.
    head = await session.head() if supports_atomic_replace(session) else None
    return HistorySnapshot(await session.get_items(NO_LIMIT), head)


async def replace_prefix(session: Session, before: HistorySnapshot, stop: int, items: Sequence[Item]) -> None:
    """Put ``items`` in the place of the first ``stop`` items of ``before``; what came later stays behind them.

    :class:`HistoryMoved` when the history no longer begins with what was read: nothing is changed then.
    """
    now = before if supports_atomic_replace(session) else await read_snapshot(session)
    for _ in range(_MAX_ATTEMPTS):
        if now.items[: len(before.items)] != before.items:
            raise HistoryMoved(session.session_id, expected=f"the {len(before.items)} items read", found="other items")
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
    raise HistoryMoved(session.session_id, expected="a quiet moment", found="constant change")


class ReplaceableSession(Session, Protocol):
    """A session that knows where it stands and can replace items in one commit."""

    async def head(self) -> Any: ...

    async def splice_items(self, start: int, stop: int | None, items: Sequence[Item], *, expected: Any) -> object: ...

    async def replace_items(self, items: Sequence[Item], *, expected: Any) -> object: ...


def supports_atomic_replace(session: Session) -> TypeGuard[ReplaceableSession]:
    """Whether the session has :class:`Replaceable`'s ``head`` and one of its two ways to replace."""
    if getattr(session, "stored_session", session) is None:  # a wrapper that has them and says that they would not work
        return False
    return _has_method(session, "head") and (
        _has_method(session, "splice_items") or _has_method(session, "replace_items")
    )


async def _replace_atomically(
    session: ReplaceableSession, now: HistorySnapshot, stop: int, items: Sequence[Item]
) -> None:
    if _has_method(session, "splice_items") and now.is_complete:  # what stays is not written again
        await session.splice_items(0, stop, items, expected=now.head)
        return
    everything = [*items, *now.items[stop:]]
    if _has_method(session, "replace_items"):
        await session.replace_items(everything, expected=now.head)
    else:
        await session.splice_items(0, None, everything, expected=now.head)


async def _clear_and_refill(session: Session, previous: list[Item], items: list[Item]) -> None:
    """Clear and add, and on failure or cancellation put back what was there."""
    try:
        await session.clear_session()
        await session.add_items(items)
    except (Exception, asyncio.CancelledError) as error:
        try:
            await run_to_end(_restore_items(session, previous, error), grace=None)
        except asyncio.CancelledError as meanwhile:
            if meanwhile.__cause__ is not None:  # that the items are not back matters more
                raise meanwhile.__cause__ from error
        raise


async def _restore_items(session: Session, previous: list[Item], error: BaseException) -> None:
    reason: BaseException = error
    try:
        async with asyncio.timeout(RESTORE_TIMEOUT):
            while True:
                try:
                    if await session.get_items(NO_LIMIT) == previous:
                        return
                    await session.clear_session()
                    await session.add_items(list(previous))
                    return
                except Exception as problem:  # noqa: BLE001 - any session's any error: the next round may work
                    reason = problem
                    await asyncio.sleep(random.uniform(0.05, 0.2))
    except TimeoutError:
        raise RestoreFailed(session.session_id, previous, reason) from error


def _has_method(session: object, name: str) -> bool:
    return callable(getattr(session, name, None))
