"""Histories that this process has read before, so that a long conversation is not read anew for every exchange."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.base.items import Item
from holdfast.base.pairing import paired


class KnownHistory:
    """What a session shows, as far as nobody else has written since: its head says so.

    Only for sessions that are ``steady``: what they show changes with their head and not by itself. The items are
    shared between runs; nobody may change them.
    """

    def __init__(self, tape: str | None, version: int, items: list[Item]) -> None:
        self.tape, self.version, self.items, self.shown = tape, version, items, paired(items)
        self.writing = 0

    def grown(self, batch: Sequence[Item]) -> None:
        """A batch of ours was added."""
        # The first batch of a session makes its tape, whose name is not known here: it is then read again.
        self.version += 1
        self.items += batch
        if paired(batch) == list(batch):
            self.shown += batch
        else:
            self.shown = paired(self.items)


_known: "WeakKeyDictionary[Any, KnownHistory]" = WeakKeyDictionary()


async def shown_history(session: Any) -> tuple[list[Item], int]:
    """What a model may be shown of the session's history, and how many items there are. The list is the caller's."""
    if not _steady(session):
        items = await session.get_items()
        return paired(items), len(items)
    place = await _place(session)
    known = _known.get(session)
    if known is None or (known.tape, known.version, len(known.items)) != place:
        items = await session.get_items() if place[2] else []
        if place[2] and (len(items) != place[2] or await _place(session) != place):
            return paired(items), len(items)
        known = _known[session] = KnownHistory(place[0], place[1], items)
    return list(known.shown), len(known.items)


@asynccontextmanager
async def adding(session: Any, batch: Sequence[Item]) -> AsyncIterator[None]:
    """Keep up with a batch that is added meanwhile. Two at the same time cannot be told apart, nor can a failed one."""
    known = _known.get(session) if _steady(session) else None
    if known is None:
        yield
        return
    known.writing += 1
    alone = known.writing == 1
    try:
        yield
    except BaseException:
        _known.pop(session, None)
        raise
    finally:
        known.writing -= 1
    if alone and not known.writing:
        known.grown(batch)
    else:
        _known.pop(session, None)


async def _place(session: Any) -> tuple[str | None, int, int]:
    """Where the history stands. The tape is another one when it was cleared meanwhile."""
    record = await session.verified_record()
    return (None, 0, 0) if record is None else (record.tape, record.version, record.length)


def _steady(session: Any) -> bool:
    settings = getattr(session, "session_settings", None)
    return bool(getattr(session, "steady", False)) and (settings is None or settings.limit is None)
