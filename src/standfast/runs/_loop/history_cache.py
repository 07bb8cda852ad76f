"""Histories that this process has read before, so that a long conversation is not read anew for every exchange."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from standfast.base.items import Item
from standfast.base.pairing import drop_unpaired


class CachedHistory:
    """What a session shows, as far as nobody else has written since: its head says so.

    Only for sessions that are ``steady``: what they show changes with their head and not by itself. The items are
    shared between runs; nobody may change them.
    """

    def __init__(self, tape: str | None, version: int, items: list[Item]) -> None:
        self.tape, self.version, self.items, self.paired_items = tape, version, items, drop_unpaired(items)
        self.pending_writes = 0

    def append_batch(self, batch: Sequence[Item]) -> None:
        """A batch of ours was added."""
        # The first batch of a session makes its tape, whose name is not known here: it is then read again.
        self.version += 1
        self.items += batch
        if drop_unpaired(batch) == list(batch):
            self.paired_items += batch
        else:
            self.paired_items = drop_unpaired(self.items)


_cache: "WeakKeyDictionary[Any, CachedHistory]" = WeakKeyDictionary()


async def read_history(session: Any) -> tuple[list[Item], int]:
    """What a model may be shown of the session's history, and how many items there are. The list is the caller's."""
    if not _is_cacheable(session):
        items = await session.get_items()
        return drop_unpaired(items), len(items)
    place = await _read_position(session)
    known = _cache.get(session)
    if known is None or (known.tape, known.version, len(known.items)) != place:
        items = await session.get_items() if place[2] else []
        if place[2] and (len(items) != place[2] or await _read_position(session) != place):
            return drop_unpaired(items), len(items)
        known = _cache[session] = CachedHistory(place[0], place[1], items)
    return list(known.paired_items), len(known.items)


@asynccontextmanager
async def track_append(session: Any, batch: Sequence[Item]) -> AsyncIterator[None]:
    """Keep up with a batch that is added meanwhile. Two at the same time cannot be told apart, nor can a failed one."""
    known = _cache.get(session) if _is_cacheable(session) else None
    if known is None:
        yield
        return
    known.pending_writes += 1
    alone = known.pending_writes == 1
    try:
        yield
    except BaseException:
        _cache.pop(session, None)
        raise
    finally:
        known.pending_writes -= 1
    if alone and not known.pending_writes:
        known.append_batch(batch)
    else:
        _cache.pop(session, None)


async def _read_position(session: Any) -> tuple[str | None, int, int]:
    """Where the history stands. The tape is another one when it was cleared meanwhile."""
    record = await session.read_verified_record()
    return (None, 0, 0) if record is None else (record.tape, record.version, record.length)


def _is_cacheable(session: Any) -> bool:
    settings = getattr(session, "session_settings", None)
    return bool(getattr(session, "is_cacheable", False)) and (settings is None or settings.limit is None)
