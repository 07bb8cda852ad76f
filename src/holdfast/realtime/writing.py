"""What was said, written through to a history session: complete, in order, and readable by a text run.

An item is written when it will not change any more. An answer that may still be interrupted waits until the
conversation has gone on; what the user said waits for its transcript. Closing writes the rest as it is.
"""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

from holdfast.base.ids import new_id
from holdfast.base.items import Item
from holdfast.history.contract import Session
from holdfast.lifecycle.finishing import finish
from holdfast.realtime.entries import Entry
from holdfast.realtime.items import (
    AssistantMessageItem,
    InputAudio,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)
from holdfast.realtime.room import Room
from holdfast.realtime.wire_items import from_ordinary, output_of, to_ordinary

RETRY_AFTER = 1.0
TRANSCRIBED_WITHIN = 2
"""How many messages of the user may follow one that has no transcript, before it is written without."""
UNANSWERED = "The conversation ended before this call was answered."


class Writer:
    """Appends to a history session and never holds the conversation up."""

    def __init__(self, room: Room, session: Session) -> None:
        self._room, self._session = room, session
        self._keyed = "key" in inspect.signature(session.add_items).parameters
        self._start = self._reordered = 0
        self._written: set[str] = set()
        self._open_calls: set[str] = set()
        self._batch: list[Item] = []
        self._key = ""
        self._wanted = asyncio.Event()

    async def load(self) -> list[RealtimeItem]:
        """What the history has already; it will not be written again."""
        items = from_ordinary(await self._session.get_items())
        self._written.update(item.item_id for item in items)
        return items

    def wanted(self) -> None:
        """Something may have become final."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            await self._wanted_or_due()
            self._wanted.clear()
            await self._write(closing=False)

    async def finish(self) -> None:
        """Write everything that is left, as it is."""
        await self._write(closing=True)

    @property
    def unwritten(self) -> int:
        return len(self._batch) + sum(len(items) for items in self._final(closing=True, take=False))

    async def _wanted_or_due(self) -> None:
        try:
            async with asyncio.timeout(RETRY_AFTER if self._batch else None):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _write(self, *, closing: bool) -> None:
        while True:
            if not self._batch:
                self._batch = [item for items in self._final(closing=closing, take=True) for item in items]
                self._key = new_id("said")
            if not self._batch:
                return
            try:
                await finish(self._append(), grace=1.0)
            except Exception as error:  # noqa: BLE001 - told; the batch is tried again
                self._room.fail(error)
                return

    async def _append(self) -> None:
        keyed: dict[str, Any] = {"key": self._key} if self._keyed else {}
        await self._session.add_items(self._batch, **keyed)
        self._batch = []

    def _final(self, *, closing: bool, take: bool) -> Iterator[list[Item]]:
        """The items to write now, in order. Those behind one that may still change wait for it."""
        ledger = self._room.ledger
        if self._reordered != ledger.reordered:
            self._start, self._reordered = 0, ledger.reordered
        entries = list(ledger.entries(self._start))
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
            given_up = sum(isinstance(other.item, UserMessageItem) for other in later) >= TRANSCRIBED_WITHIN
            return heard or entry.inaudible or given_up
        if not isinstance(item, AssistantMessageItem):
            return True
        if not entry.ended:
            return False
        spoken = any(part.spoken and part.heard is None for part in entry.said.values())
        return not spoken or any(other.response_id != entry.response_id for other in later)
