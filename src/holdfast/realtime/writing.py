"""What was said, written through to a history session: complete, in order, and readable by a text run.

An item is written when it will not change any more. An answer that may still be interrupted waits until it can have
been heard, and a moment more if the conversation has not gone on; what the user said waits for its transcript. Closing
writes the rest as it is.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from holdfast.base.ids import new_id
from holdfast.base.items import Item
from holdfast.history.contract import Session, takes_keys
from holdfast.realtime.entries import Entry
from holdfast.realtime.items import (
    AssistantMessageItem,
    InputAudio,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)
from holdfast.realtime.model import RealtimePlaybackTracker
from holdfast.realtime.playing import Playing
from holdfast.realtime.room import Room, log
from holdfast.realtime.wire_items import from_ordinary, output_of, to_ordinary

RETRY_AFTER = 1.0
_MOMENT = 0.05
"""How long an append may take to notice that there is no more time."""
TRANSCRIBED_WITHIN = 15.0
"""How many seconds what the user said waits for its transcript, before it is written without."""
UNANSWERED = "The conversation ended before this call was answered."


class Writer:
    """Appends to a history session and never holds the conversation up."""

    def __init__(self, room: Room, session: Session, *, tracker: RealtimePlaybackTracker | None) -> None:
        self._room, self._session = room, session
        self._playing = room.playing = Playing(tracker)
        self._keyed = takes_keys(session)
        self._start = self._reordered = 0
        self._written: set[str] = set()
        self._open_calls: set[str] = set()
        self._batch: list[Item] = []
        self._key = ""
        self._given_up_at: dict[str, float] = {}
        """Until when each message of the user waits for its transcript."""
        self._appending: asyncio.Task[None] | None = None
        self._told: str | None = None
        """The failure that was told last; the same again is no news before something was written."""

    async def load(self) -> list[RealtimeItem]:
        """What the history has already; it will not be written again."""
        items = from_ordinary(await self._session.get_items())
        self._written.update(item.item_id for item in items)
        return items

    async def run(self) -> None:
        while True:
            await self._wanted_or_due()
            self._room.to_write.clear()
            await self._write(closing=False)

    async def finish(self) -> None:
        """Write everything that is left, as it is, after what ``run`` has begun to write. Cancelling interrupts it."""
        try:
            if self._appending is not None:
                await asyncio.wait({self._appending})
            await self._write(closing=True)
        except asyncio.CancelledError:
            if self._appending is not None:
                self._appending.cancel()
                await asyncio.wait({self._appending}, timeout=_MOMENT)
            raise

    @property
    def left(self) -> tuple[str, ...]:
        """What still runs."""
        return () if self._appending is None or self._appending.done() else ("history",)

    @property
    def unwritten(self) -> int:
        return len(self._batch) + sum(len(items) for items in self._final(closing=True, take=False))

    async def _wanted_or_due(self) -> None:
        now = self._room.now()
        due = [at - now for at in self._given_up_at.values() if at > now]
        if (again := self._playing.look_again) is not None:
            due.append(again)
        try:
            async with asyncio.timeout(RETRY_AFTER if self._batch else min(due, default=None)):
                await self._room.to_write.wait()
        except TimeoutError:
            return

    async def _write(self, *, closing: bool) -> None:
        while True:
            if not self._batch:
                self._batch = [item for items in self._final(closing=closing, take=True) for item in items]
                self._key = new_id("said")
            if not self._batch:
                return
            # In a task of its own: whoever is cancelled here leaves it to the one who finishes.
            self._appending = append = asyncio.create_task(self._append(), name="append to the history")
            await asyncio.wait({append})
            if self._batch:
                return

    async def _append(self) -> None:
        keyed: dict[str, Any] = {"key": self._key} if self._keyed else {}
        try:
            await self._session.add_items(self._batch, **keyed)
            self._batch, self._told = [], None
        except Exception as error:  # noqa: BLE001 - told; the batch is tried again
            log.warning("what was said could not be written: %r", error)
            if self._told != (told := repr(error)):
                self._told = told
                self._room.fail(error)

    def _final(self, *, closing: bool, take: bool) -> Iterator[list[Item]]:
        """The items to write now, in order. Those behind one that may still change wait for it."""
        ledger = self._room.ledger
        if self._reordered != ledger.reordered:
            self._start, self._reordered = 0, ledger.reordered
        entries = list(ledger.entries(self._start))
        for name, entry in entries:
            if name not in self._written and isinstance(entry.item, UserMessageItem):
                self._given_up_at.setdefault(name, self._room.now() + TRANSCRIBED_WITHIN)
        blocked = False
        for place, (name, entry) in enumerate(entries):
            if name not in self._written and not blocked:
                if not closing and not self._is_final(entry, later=[other for _, other in entries[place + 1 :]]):
                    blocked = True
                    continue
                yield from self._taken(name, entry, take=take)
            yield from self._outputs(name, entry, closing=closing, take=take)
        if take:
            while self._start < len(ledger) and self._done(self._start):
                self._start += 1

    def _taken(self, name: str, entry: Entry, *, take: bool) -> Iterator[list[Item]]:
        item = entry.shown()
        if take:
            self._written.add(name)
            self._given_up_at.pop(name, None)
            if isinstance(item, RealtimeToolCallItem):
                self._open_calls.add(name)
        yield to_ordinary(item)

    def _outputs(self, name: str, entry: Entry, *, closing: bool, take: bool) -> Iterator[list[Item]]:
        item = entry.shown()
        if name not in self._open_calls or not isinstance(item, RealtimeToolCallItem):
            return
        if item.output is None and not closing:
            return
        if take:
            self._open_calls.discard(name)
        yield [output_of(item.call_id or "", item.output if item.output is not None else UNANSWERED)]

    def _done(self, place: int) -> bool:
        name, _ = next(self._room.ledger.entries(place))
        return name in self._written and name not in self._open_calls

    def _is_final(self, entry: Entry, later: list[Entry]) -> bool:
        item = entry.item
        if isinstance(item, UserMessageItem):
            heard = all(part.transcript is not None for part in item.content if isinstance(part, InputAudio))
            return heard or entry.inaudible or self._given_up_at[item.item_id] <= self._room.now()
        if not isinstance(item, AssistantMessageItem):
            return True
        if not entry.ended:
            return False
        spoken = [part for part in entry.said.values() if part.spoken]
        response = self._room.responses.playing(item.item_id, entry.response_id)
        if spoken and response is not None and not self._playing.may_be_heard(response):
            return False
        if all(part.heard is not None for part in spoken):
            return True
        end, names = self._room.ledger.end_of(item.item_id), {other.item.item_id for other in later}
        if response is not None and self._playing.is_awaited(response, item.item_id, end, later=names):
            return False
        gone_on = any(other.response_id != entry.response_id for other in later)
        return gone_on or (response is not None and self._playing.was_heard(response))
