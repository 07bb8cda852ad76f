"""The history of one conversation, over any backend and codec."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from standfast.base.errors import AlreadyExists, HistoryMoved, InvalidInput, NotFound
from standfast.base.ids import new_id, validate_name
from standfast.base.items import Item, encode_items, extract_text, extract_words
from standfast.history.reader import StoredSessionReader, validate_generation
from standfast.history.session import SessionABC
from standfast.store.contract import (
    EMPTY_HEAD,
    BatchKey,
    Erase,
    Generation,
    Head,
    Op,
    Quarantine,
    RequireVersion,
    Row,
    SessionRecord,
    Splice,
    ViewUpdate,
    generate_tape_id,
)
from standfast.store.tape import TapeSpan, get_tape_ends, join_spans, slice_spans, total_length

_MAX_ATTEMPTS = 100


class StoredSession(StoredSessionReader, SessionABC):
    """A history in a store.

    Every change is one commit: it happens whole or not at all, also for readers in other processes and
    when this process is killed. Objects are cheap and keep nothing that would have to be closed.
    """

    async def add_items(self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None) -> None:
        """Append one batch: all of it or nothing, in order, contiguous.

        With ``key``, the same batch again is a no-op, so that a caller who lost the answer can retry.
        With ``expected``, the batch is only written if the history has not moved (:class:`HistoryMoved`).
        """
        validate_head(expected)
        data = encode_items(items)
        if not data:
            await self.check_head(expected)
            return
        named = None if key is None else BatchKey(validate_name("key", key), self.codec.digest(data))
        words = tuple(" ".join(extract_words(extract_text(item))) for item in items) if self.is_indexed else ()

        def append(record: SessionRecord | None) -> list[Op]:
            tape, seq = (record.tape, record.next_seq) if record else (generate_tape_id(), 0)
            added = self.codec.encode(data, tape=tape, seq=seq)
            return [
                self.seal_splice(
                    record, Splice(session_id=self.session_id, add=added, tape=tape, words=words, key=named)
                )
            ]

        await self.commit_with_retry(append, expected=expected, read_first=self.codec.position_bound)

    async def pop_item(self) -> Item | None:
        """Take the latest item off the history and return it; ``None`` when there is none.

        Records that cannot be read and stand behind it are set aside, not destroyed: see :meth:`check`.
        """
        window, lost = 8, 0
        while True:
            page = await self.read_page(last=window)
            if page is None or not page.rows:
                return None
            readable, broken = self.decode_rows(page.rows)
            shown = self.drop_expired(readable)
            if not shown and page.rows[0].position > 0:
                window *= 4
                continue
            if not shown and readable:
                return None
            end = shown[-1].row.position if shown else 0
            ops = self.build_pop_ops(page.record, end, [row for row in broken if row[0].position >= end])
            try:
                await self.backend.commit(*ops)
            except HistoryMoved:
                await wait_before_retry(lost)
                lost += 1
                continue
            return shown[-1].item if shown else None

    async def clear_session(self) -> None:
        """Erase the history and its earlier generations. What a fork shows stays with the fork."""

        def erase(record: SessionRecord | None) -> list[Op]:
            if not self.codec.position_bound:
                return [Erase(session_id=self.session_id)]
            if record is None:
                return [Erase(session_id=self.session_id, expected=0)]
            return [self.build_erase_op(record)]

        await self.commit_with_retry(erase, expected=None, read_first=self.codec.position_bound)

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
        validate_head(expected)
        validate_position(start)
        if stop is not None:
            validate_position(stop)
        data = encode_items(items)

        def splice(record: SessionRecord | None) -> list[Op]:
            record = record or self.make_empty_record()
            if expected is not None and expected.version != record.version:
                raise HistoryMoved(self.session_id, expected=expected, found=record.head)
            end = record.length if stop is None else stop
            if not 0 <= start <= end <= record.length:
                raise InvalidInput(f"positions {start} to {end} are not within the {record.length} items there are")
            seq, rest = record.next_seq, slice_spans(record.view, end, record.length)
            before = slice_spans(record.view, 0, start)
            if rest:  # the new items stand in the middle, so the span at the end starts empty
                before = join_spans(before, (TapeSpan(record.tape, seq, seq + len(data)),), rest)
            shape = ViewUpdate(
                closed=before,
                open_from=seq + len(data) if rest else seq,
                length=record.length - (end - start) + len(data),
                archive=record.length > 0,
            )
            added = self.codec.encode(data, tape=record.tape, seq=seq)
            words = tuple(" ".join(extract_words(extract_text(item))) for item in items) if self.is_indexed else ()
            return [
                self.seal_splice(
                    record,
                    Splice(session_id=self.session_id, add=added, words=words, view_update=shape, tape=record.tape),
                )
            ]

        return await self.commit_with_retry(splice, expected=expected, read_first=True)

    async def rewind(self, to: int, *, expected: Head | None = None) -> Head:
        """Show only the first ``to`` items; the others stay as an older generation."""
        return await self.splice_items(to, None, [], expected=expected)

    async def restore(self, generation: int, *, expected: Head | None = None) -> Head:
        """Undo a rewind or replacement: show that generation again, and after it what was added since."""
        validate_head(expected)
        validate_generation(generation)
        while True:
            head, earlier = await self.read_head_and_generations()
            chosen = next((entry for entry in earlier if entry.number == generation), None)
            if chosen is None:
                raise NotFound("generation", generation)
            try:
                return await self.restore_generation(chosen, expected=expected or head)
            except HistoryMoved:
                if expected is not None:
                    raise

    async def restore_generation(self, generation: Generation, *, expected: Head) -> Head:
        def restore(record: SessionRecord | None) -> list[Op]:
            record = record or self.make_empty_record()
            since = tuple(
                TapeSpan(span.tape, max(span.start, generation.resumes_at), span.stop)
                for span in record.view
                if span.tape == record.tape and span.stop > generation.resumes_at
            )
            shown = join_spans(generation.spans, since)
            shape = ViewUpdate(closed=shown, open_from=record.next_seq, length=total_length(shown), archive=True)
            return [self.seal_splice(record, Splice(session_id=self.session_id, view_update=shape, tape=record.tape))]

        return await self.commit_with_retry(restore, expected=expected, read_first=True)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> Self:
        """A new session that starts with the first ``at`` items of this one. No items are copied.

        Both go on independently; the fork outlives its parent.
        """
        if at is not None:
            validate_position(at)
        child = self.open_sibling(new_id("session") if session_id is None else session_id)
        for attempt in range(_MAX_ATTEMPTS):
            record = await self.read_verified_record()
            if record is None:
                raise NotFound("session", self.session_id)
            end = record.length if at is None else at
            if not 0 <= end <= record.length:
                raise InvalidInput(f"cannot fork at {end}: the history has {record.length} items")
            there = await self.backend.get_session(child.session_id)
            if there is not None and there.version:
                raise AlreadyExists("session", child.session_id)
            start = build_fork_splice(
                record, end, session_id=child.session_id, tape=there.tape if there else generate_tape_id()
            )
            # The parent's seal knows which keys its items need; the child shows some of them.
            before = msgspec.structs.replace(child.make_empty_record(start), seal=record.seal)
            try:
                await self.backend.commit(
                    RequireVersion(self.session_id, record.version), child.seal_splice(before, start)
                )
            except HistoryMoved:
                await wait_before_retry(attempt)
                continue
            return child
        raise HistoryMoved(self.session_id, expected="a quiet moment", found="constant change")

    # --- shared parts ---------------------------------------------------------------------------

    @property
    def is_cacheable(self) -> bool:
        """Whether what it shows changes only with its head: no item of it ever expires by itself."""
        return not self.codec.position_bound

    @property
    def stored_session(self) -> "StoredSession":
        """This session. Whatever wraps a stored session has the same attribute, so that wrappers find it."""
        return self

    @property
    def is_indexed(self) -> bool:
        return self.backend.indexes_words and not self.codec.position_bound

    def open_sibling(self, session_id: str) -> Self:
        """This session's settings, for another history of the same store."""
        return type(self)(
            session_id,
            self.backend,
            settings=self.session_settings,
            codec=self.codec,
            owner=self.owner,
            clock=self.clock,
        )

    def make_empty_record(self, first: Splice | None = None) -> SessionRecord:
        """The record of a session that does not exist yet."""
        return SessionRecord(
            session_id=self.session_id,
            tape=first.tape if first else generate_tape_id(),
            version=0,
            length=0,
            next_seq=0,
            open_from=0,
            created_at=0,
            updated_at=0,
        )

    def seal_splice(self, record: SessionRecord | None, splice: Splice) -> Splice:
        """The splice with what its codec and its shape need: the version it was made for, and a new seal."""
        if splice.owner is None and self.owner is not None:
            splice = msgspec.structs.replace(splice, owner=self.owner)
        if not self.codec.position_bound and splice.view_update is None:
            return splice
        record = record or self.make_empty_record(splice)
        shape = splice.view_update or ViewUpdate(record.closed, record.open_from, record.length + len(splice.add))
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

    def make_erased_record(self, record: SessionRecord) -> SessionRecord:
        return msgspec.structs.replace(
            record, version=record.version + 1, length=0, closed=(), open_from=record.next_seq, seal=None
        )

    def build_erase_op(self, record: SessionRecord) -> Erase:
        seal = self.codec.seal(self.make_erased_record(record))
        return Erase(session_id=self.session_id, expected=record.version, seal=seal)

    async def commit_with_retry(
        self,
        build_ops: Callable[[SessionRecord | None], list[Op]],
        *,
        expected: Head | None,
        read_first: bool,
    ) -> Head:
        """Commit what ``plan`` makes of the record, again if somebody else was faster, unless ``expected`` forbids."""
        for attempt in range(_MAX_ATTEMPTS):
            record = await self.read_verified_record() if read_first else None
            ops = build_ops(record)
            if expected is not None:
                found = record.head if record else EMPTY_HEAD
                if read_first and found.version != expected.version:
                    self.raise_unless_keyed(ops, expected, found)
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
                await wait_before_retry(attempt)
                continue
            return outcome if isinstance(outcome, Head) else EMPTY_HEAD
        raise HistoryMoved(self.session_id, expected="a quiet moment", found="constant change")

    async def check_head(self, expected: Head | None) -> None:
        if expected is not None and (found := await self.head()).version != expected.version:
            raise HistoryMoved(self.session_id, expected=expected, found=found)

    def raise_unless_keyed(self, ops: list[Op], expected: Head, found: Head) -> None:
        """A keyed batch may be there already, which only the store knows; everything else has lost the race."""
        if not any(isinstance(op, Splice) and op.key for op in ops):
            raise HistoryMoved(self.session_id, expected=expected, found=found)

    def build_pop_ops(self, record: SessionRecord, end: int, broken: list[tuple[Row, str]]) -> list[Op]:
        shown = slice_spans(record.view, 0, end)
        shape = ViewUpdate(closed=shown, open_from=record.next_seq, length=end)
        return [
            self.seal_splice(record, Splice(session_id=self.session_id, view_update=shape, tape=record.tape)),
            *(
                Quarantine(session_id=self.session_id, tape=row.tape, seq=row.seq, reason=reason)
                for row, reason in broken
            ),
        ]


def build_fork_splice(record: SessionRecord, end: int, *, session_id: str, tape: int) -> Splice:
    """How a session begins that shows the first ``end`` items of another one."""
    shown = slice_spans(record.view, 0, end)
    return Splice(
        session_id=session_id,
        tape=tape,
        view_update=ViewUpdate(closed=shown, open_from=0, length=end),
        links=tuple(get_tape_ends(shown).items()),
        owner=record.owner,
    )


def validate_position(position: object) -> int:
    """The position itself when it is a whole number; whether it is there, the history must say."""
    if not isinstance(position, int) or isinstance(position, bool):
        raise InvalidInput(f"a position must be a whole number, not {position!r}")
    return position


def validate_head(expected: object) -> None:
    if expected is not None and not isinstance(expected, Head):
        raise InvalidInput(f"expected must be a Head, as head() answers it, not {expected!r}")


async def wait_before_retry(attempt: int) -> None:
    """Step back a little, so that writers who meet again and again meet less often."""
    if attempt:
        await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 7)))
