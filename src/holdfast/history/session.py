"""The history of one conversation, over any backend and codec."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from holdfast.base.errors import AlreadyExists, HistoryMoved, InvalidInput, NotFound
from holdfast.base.ids import checked_name, new_id
from holdfast.base.items import Item, encode_items, text_of, words_of
from holdfast.history.contract import SessionABC
from holdfast.history.reading import StoredHistory, checked_generation
from holdfast.store.contract import (
    NOWHERE,
    BatchKey,
    Erase,
    Generation,
    Head,
    Op,
    Quarantine,
    Require,
    Row,
    SessionRecord,
    Shape,
    Splice,
    new_tape,
)
from holdfast.store.view import Span, cut, join, length, reach

_MOST_TRIES = 100


class StoredSession(StoredHistory, SessionABC):
    """A history in a store.

    Every change is one commit: it happens whole or not at all, also for readers in other processes and
    when this process is killed. Objects are cheap and keep nothing that would have to be closed.
    """

    async def add_items(self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None) -> None:
        """Append one batch: all of it or nothing, in order, contiguous.

        With ``key``, the same batch again is a no-op, so that a caller who lost the answer can retry.
        With ``expected``, the batch is only written if the history has not moved (:class:`HistoryMoved`).
        """
        checked_head(expected)
        data = encode_items(items)
        if not data:
            await self.check_head(expected)
            return
        named = None if key is None else BatchKey(checked_name("key", key), self.codec.digest(data))
        words = tuple(" ".join(words_of(text_of(item))) for item in items) if self.searchable else ()

        def append(record: SessionRecord | None) -> list[Op]:
            tape, seq = (record.tape, record.next_seq) if record else (new_tape(), 0)
            added = self.codec.encode(data, tape=tape, seq=seq)
            return [
                self.sealed(record, Splice(session_id=self.session_id, add=added, tape=tape, words=words, key=named))
            ]

        await self.write(append, expected=expected, look_first=self.codec.bound)

    async def pop_item(self) -> Item | None:
        """Take the latest item off the history and return it; ``None`` when there is none.

        Records that cannot be read and stand behind it are set aside, not destroyed: see :meth:`check`.
        """
        window, lost = 8, 0
        while True:
            page = await self.page(last=window)
            if page is None or not page.rows:
                return None
            readable, broken = self.decoded(page.rows)
            shown = self.unexpired(readable)
            if not shown and page.rows[0].position > 0:
                window *= 4
                continue
            if not shown and readable:
                return None
            end = shown[-1].row.position if shown else 0
            ops = self.popping(page.record, end, [row for row in broken if row[0].position >= end])
            try:
                await self.backend.commit(*ops)
            except HistoryMoved:
                await pause(lost)
                lost += 1
                continue
            return shown[-1].item if shown else None

    async def clear_session(self) -> None:
        """Erase the history and its earlier generations. What a fork shows stays with the fork."""

        def erase(record: SessionRecord | None) -> list[Op]:
            if not self.codec.bound:
                return [Erase(session_id=self.session_id)]
            if record is None:
                return [Erase(session_id=self.session_id, expected=0)]
            return [self.erasing(record)]

        await self.write(erase, expected=None, look_first=self.codec.bound)

    # --- more than the four ---------------------------------------------------------------------

    async def replace_items(self, items: Sequence[Item], *, expected: Head | None = None) -> Head:
        """Show these items instead of all others, in one commit; the others stay as an older generation."""
        return await self.splice_items(0, None, items, expected=expected)

    async def splice_items(
        self, start: int, stop: int | None, items: Sequence[Item], *, expected: Head | None = None
    ) -> Head:
        """Show ``items`` in place of those from position ``start`` to ``stop``, as slice assignment does.

        The items around them are not written again. What was shown before stays as an older generation.
        """
        checked_head(expected)
        checked_position(start)
        if stop is not None:
            checked_position(stop)
        data = encode_items(items)

        def splice(record: SessionRecord | None) -> list[Op]:
            record = record or self.unwritten()
            if expected is not None and expected.version != record.version:
                raise HistoryMoved(self.session_id, expected=expected, found=record.head)
            end = record.length if stop is None else stop
            if not 0 <= start <= end <= record.length:
                raise InvalidInput(f"positions {start} to {end} are not within the {record.length} items there are")
            seq, rest = record.next_seq, cut(record.view, end, record.length)
            before = cut(record.view, 0, start)
            if rest:  # the new items stand in the middle, so the span at the end starts empty
                before = join(before, (Span(record.tape, seq, seq + len(data)),), rest)
            shape = Shape(
                closed=before,
                open_from=seq + len(data) if rest else seq,
                length=record.length - (end - start) + len(data),
                archive=record.length > 0,
            )
            added = self.codec.encode(data, tape=record.tape, seq=seq)
            words = tuple(" ".join(words_of(text_of(item))) for item in items) if self.searchable else ()
            return [
                self.sealed(
                    record,
                    Splice(session_id=self.session_id, add=added, words=words, shape=shape, tape=record.tape),
                )
            ]

        return await self.write(splice, expected=expected, look_first=True)

    async def rewind(self, to: int, *, expected: Head | None = None) -> Head:
        """Show only the first ``to`` items; the others stay as an older generation."""
        return await self.splice_items(to, None, [], expected=expected)

    async def restore(self, generation: int, *, expected: Head | None = None) -> Head:
        """Undo a rewind or replacement: show that generation again, and after it what was added since."""
        checked_head(expected)
        checked_generation(generation)
        while True:
            head, earlier = await self.past()
            chosen = next((entry for entry in earlier if entry.number == generation), None)
            if chosen is None:
                raise NotFound("generation", generation)
            try:
                return await self.show_again(chosen, expected=expected or head)
            except HistoryMoved:
                if expected is not None:
                    raise

    async def show_again(self, chosen: Generation, *, expected: Head) -> Head:
        def restore(record: SessionRecord | None) -> list[Op]:
            record = record or self.unwritten()
            since = tuple(
                Span(span.tape, max(span.start, chosen.resumes_at), span.stop)
                for span in record.view
                if span.tape == record.tape and span.stop > chosen.resumes_at
            )
            shown = join(chosen.spans, since)
            shape = Shape(closed=shown, open_from=record.next_seq, length=length(shown), archive=True)
            return [self.sealed(record, Splice(session_id=self.session_id, shape=shape, tape=record.tape))]

        return await self.write(restore, expected=expected, look_first=True)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> Self:
        """A new session that starts with the first ``at`` items of this one. No items are copied.

        Both go on independently; the fork outlives its parent.
        """
        if at is not None:
            checked_position(at)
        child = self.sibling(new_id("session") if session_id is None else session_id)
        for attempt in range(_MOST_TRIES):
            record = await self.verified_record()
            if record is None:
                raise NotFound("session", self.session_id)
            end = record.length if at is None else at
            if not 0 <= end <= record.length:
                raise InvalidInput(f"cannot fork at {end}: the history has {record.length} items")
            there = await self.backend.record(child.session_id)
            if there is not None and there.version:
                raise AlreadyExists("session", child.session_id)
            start = first_items(record, end, session_id=child.session_id, tape=there.tape if there else new_tape())
            # The parent's seal knows which keys its items need; the child shows some of them.
            before = msgspec.structs.replace(child.unwritten(start), seal=record.seal)
            try:
                await self.backend.commit(Require(self.session_id, record.version), child.sealed(before, start))
            except HistoryMoved:
                await pause(attempt)
                continue
            return child
        raise HistoryMoved(self.session_id, expected="a quiet moment", found="constant change")

    # --- shared parts ---------------------------------------------------------------------------

    @property
    def steady(self) -> bool:
        """Whether what it shows changes only with its head: no item of it ever expires by itself."""
        return not self.codec.bound

    @property
    def stored(self) -> "StoredSession":
        """This session. Whatever wraps a stored session has the same attribute, so that wrappers find it."""
        return self

    @property
    def searchable(self) -> bool:
        return self.backend.indexes_words and not self.codec.bound

    def sibling(self, session_id: str) -> Self:
        """This session's settings, for another history of the same store."""
        return type(self)(
            session_id,
            self.backend,
            settings=self.session_settings,
            codec=self.codec,
            owner=self.owner,
            clock=self.clock,
        )

    def unwritten(self, first: Splice | None = None) -> SessionRecord:
        """The record of a session that does not exist yet."""
        return SessionRecord(
            session_id=self.session_id,
            tape=first.tape if first else new_tape(),
            version=0,
            length=0,
            next_seq=0,
            open_from=0,
            created_at=0,
            updated_at=0,
        )

    def sealed(self, record: SessionRecord | None, splice: Splice) -> Splice:
        """The splice with what its codec and its shape need: the version it was made for, and a new seal."""
        if splice.owner is None and self.owner is not None:
            splice = msgspec.structs.replace(splice, owner=self.owner)
        if not self.codec.bound and splice.shape is None:
            return splice
        record = record or self.unwritten(splice)
        shape = splice.shape or Shape(record.closed, record.open_from, record.length + len(splice.add))
        after = msgspec.structs.replace(
            record,
            version=record.version + 1,
            length=shape.length,
            next_seq=record.next_seq + len(splice.add),
            open_from=shape.open_from,
            closed=shape.closed,
        )
        seal = self.codec.seal(after, replaced=record if shape.archive else None)
        return msgspec.structs.replace(splice, expected=record.version, seal=seal)

    def erased(self, record: SessionRecord) -> SessionRecord:
        return msgspec.structs.replace(
            record, version=record.version + 1, length=0, closed=(), open_from=record.next_seq, seal=None
        )

    def erasing(self, record: SessionRecord) -> Erase:
        seal = self.codec.seal(self.erased(record))
        return Erase(session_id=self.session_id, expected=record.version, seal=seal)

    async def write(
        self,
        plan: Callable[[SessionRecord | None], list[Op]],
        *,
        expected: Head | None,
        look_first: bool,
    ) -> Head:
        """Commit what ``plan`` makes of the record, again if somebody else was faster, unless ``expected`` forbids."""
        for attempt in range(_MOST_TRIES):
            record = await self.verified_record() if look_first else None
            ops = plan(record)
            if expected is not None:
                found = record.head if record else NOWHERE
                if look_first and found.version != expected.version:
                    self.refuse_unless_done(ops, expected, found)
                ops = [
                    msgspec.structs.replace(op, expected=expected.version)
                    if isinstance(op, (Splice, Erase)) and op.session_id == self.session_id
                    else op
                    for op in ops
                ]
            try:
                outcome = (await self.backend.commit(*ops))[0]
            except HistoryMoved as moved:
                if expected is not None:
                    raise HistoryMoved(self.session_id, expected=expected, found=moved.found) from None
                await pause(attempt)
                continue
            return outcome if isinstance(outcome, Head) else NOWHERE
        raise HistoryMoved(self.session_id, expected="a quiet moment", found="constant change")

    async def check_head(self, expected: Head | None) -> None:
        if expected is not None and (found := await self.head()).version != expected.version:
            raise HistoryMoved(self.session_id, expected=expected, found=found)

    def refuse_unless_done(self, ops: list[Op], expected: Head, found: Head) -> None:
        """A keyed batch may be there already, which only the store knows; everything else has lost the race."""
        if not any(isinstance(op, Splice) and op.key for op in ops):
            raise HistoryMoved(self.session_id, expected=expected, found=found)

    def popping(self, record: SessionRecord, end: int, broken: list[tuple[Row, str]]) -> list[Op]:
        shown = cut(record.view, 0, end)
        shape = Shape(closed=shown, open_from=record.next_seq, length=end)
        return [
            self.sealed(record, Splice(session_id=self.session_id, shape=shape, tape=record.tape)),
            *(
                Quarantine(session_id=self.session_id, tape=row.tape, seq=row.seq, reason=reason)
                for row, reason in broken
            ),
        ]


def first_items(record: SessionRecord, end: int, *, session_id: str, tape: int) -> Splice:
    """How a session begins that shows the first ``end`` items of another one."""
    shown = cut(record.view, 0, end)
    return Splice(
        session_id=session_id,
        tape=tape,
        shape=Shape(closed=shown, open_from=0, length=end),
        links=tuple(reach(shown).items()),
        owner=record.owner,
    )


def checked_position(position: object) -> int:
    """The position itself when it is a whole number; whether it is there, the history must say."""
    if not isinstance(position, int) or isinstance(position, bool):
        raise InvalidInput(f"a position must be a whole number, not {position!r}")
    return position


def checked_head(expected: object) -> None:
    if expected is not None and not isinstance(expected, Head):
        raise InvalidInput(f"expected must be a Head, as head() answers it, not {expected!r}")


async def pause(attempt: int) -> None:
    """Step back a little, so that writers who meet again and again meet less often."""
    if attempt:
        await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 7)))
