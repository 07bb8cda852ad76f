"""The history of one conversation, over any backend and codec."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import msgspec

from holdfast.base.errors import AlreadyExists, HistoryMoved, HistoryTampered, InvalidInput, NotFound
from holdfast.base.ids import checked_name, new_id
from holdfast.base.items import Item, encode_items, matches, text_of, words_of
from holdfast.base.pairing import paired
from holdfast.history.checking import Report, examine
from holdfast.history.codec import Codec, Decoded, PlainCodec, Unreadable
from holdfast.history.contract import SessionABC, SessionSettings, checked_limit
from holdfast.history.expiry import unexpired
from holdfast.store.contract import (
    NOWHERE,
    Backend,
    BatchKey,
    Erase,
    Generation,
    Head,
    Op,
    Page,
    Quarantine,
    Require,
    Row,
    SessionRecord,
    Shape,
    Splice,
    new_tape,
)
from holdfast.store.view import Span, cut, join, length, position_of, reach

PLAIN = PlainCodec()
_MOST_TRIES = 100
_SCAN = 500


class Hit(msgspec.Struct, frozen=True):
    """An item that matched a search, where it stands, and its text."""

    session_id: str
    position: int
    item: Item
    text: str


class StoredSession(SessionABC):
    """A history in a store.

    Every change is one commit: it happens whole or not at all, also for readers in other processes and
    when this process is killed. Objects are cheap and keep nothing that would have to be closed.
    """

    def __init__(
        self,
        session_id: str,
        backend: Backend,
        *,
        settings: SessionSettings | dict[str, Any] | None = None,
        codec: Codec = PLAIN,
        owner: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.session_id = checked_name("session id", session_id)
        self.session_settings = SessionSettings.of(settings)
        self.backend = backend
        self.codec = codec
        self.owner = owner
        self.clock = clock

    @property
    def stored(self) -> "StoredSession":
        """This session. Whatever wraps a stored session has the same attribute, so that wrappers find it."""
        return self

    # --- the four methods -----------------------------------------------------------------------

    async def get_items(self, limit: int | None = None, *, generation: int | None = None) -> list[Item]:
        """The latest ``limit`` items, oldest first; 0 gives none.

        Without a limit the settings decide, and without those it is everything. A record that cannot be read
        is left out and does not count; :meth:`check` names it. ``generation`` reads what the history showed
        before it was rewound or replaced.
        """
        limit = self.resolved_limit(limit)
        if limit == 0:
            return []
        return [entry.item for entry in await self.latest(limit, generation=generation)]

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

    async def head(self) -> Head:
        """Where the history stands now; pass it as ``expected`` to write only if nobody else did."""
        record = await self.verified_record()
        return record.head if record else NOWHERE

    async def get_paired_items(self, limit: int | None = None) -> list[Item]:
        """What a model may be shown: the items without those whose counterpart is missing.

        Nothing stored is changed by that.
        """
        return paired(await self.get_items(limit))

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

    async def generations(self) -> list[Generation]:
        """What the history showed before each rewind or replacement, oldest first."""
        return (await self.past())[1]

    async def restore(self, generation: int, *, expected: Head | None = None) -> Head:
        """Undo a rewind or replacement: show that generation again, and after it what was added since."""
        checked_head(expected)
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
            shown = cut(record.view, 0, end)
            there = await self.backend.record(child.session_id)
            if there is not None and there.version:
                raise AlreadyExists("session", child.session_id)
            start = Splice(
                session_id=child.session_id,
                tape=there.tape if there else new_tape(),
                shape=Shape(closed=shown, open_from=0, length=end),
                links=tuple(reach(shown).items()),
                owner=record.owner,
            )
            # The parent's seal knows which keys its items need; the child shows some of them.
            before = msgspec.structs.replace(child.unwritten(start), seal=record.seal)
            try:
                await self.backend.commit(Require(self.session_id, record.version), child.sealed(before, start))
            except HistoryMoved:
                await pause(attempt)
                continue
            return child
        raise HistoryMoved(self.session_id, expected="a quiet moment", found="constant change")

    async def search(self, query: str, *, limit: int = 20) -> list[Hit]:
        """Items in which every word of ``query`` begins a word, newest first."""
        terms, limit = search_terms(query, limit)
        if not terms or not limit:
            return []
        if not self.codec.bound:
            found = await search_index(self.backend, self.hit_in, terms, session_id=self.session_id, limit=limit)
            if found is not None:
                return found
        return await self.scan(terms, limit)

    async def check(self) -> Report:
        """Look at every record and say what is wrong. Changes nothing."""
        while True:
            page = await self.backend.read(self.session_id)
            earlier = await self.backend.generations(self.session_id)
            aside = await self.backend.quarantined(self.session_id)
            if await self.backend.record(self.session_id) == (page.record if page else None):
                return examine(self.session_id, page, self.codec, earlier=earlier, aside=aside)

    async def export(self) -> AsyncIterator[tuple[Row, Item | Unreadable]]:
        """Every record in order, with its item or the reason why it has none."""
        page = await self.page()
        readable, broken = self.decoded(page.rows if page else [])
        shown: list[tuple[Row, Item | Unreadable]] = [(entry.row, entry.item) for entry in self.unexpired(readable)]
        shown += [(row, Unreadable(reason)) for row, reason in broken]
        for row, found in sorted(shown, key=lambda pair: pair[0].position):
            yield row, found

    # --- shared parts ---------------------------------------------------------------------------

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

    def resolved_limit(self, limit: int | None) -> int | None:
        limit = checked_limit(limit)
        return limit if limit is not None else self.session_settings.limit if self.session_settings else None

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
                    msgspec.structs.replace(op, expected=expected.version) if isinstance(op, (Splice, Erase)) else op
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

    async def verified_record(self) -> SessionRecord | None:
        record = await self.backend.record(self.session_id)
        if record is not None:
            self.codec.verify(record)
        return record

    async def page(self, **window: Any) -> Page | None:
        page = await self.backend.read(self.session_id, **window)
        if page is not None:
            self.codec.verify(page.record)
        return page

    async def past(self) -> tuple[Head, list[Generation]]:
        """The earlier generations, and the head that they belong to."""
        while True:
            record = await self.verified_record()
            earlier = await self.backend.generations(self.session_id)
            again = await self.backend.record(self.session_id)
            if (again.version if again else 0) == (record.version if record else 0):
                if record is not None:
                    self.codec.verify_past(record, earlier)
                return record.head if record else NOWHERE, earlier

    async def check_generation(self, page: Page, number: int) -> bool:
        """Whether the page is of that generation as it was sealed; false when the history has moved on since."""
        head, earlier = await self.past()
        if head != page.record.head:
            return False
        spans = next(entry.spans for entry in earlier if entry.number == number)
        read = join(Span(row.tape, row.seq, row.seq + 1) for row in page.rows)
        if read != cut(spans, length(spans) - len(page.rows), length(spans)):
            raise HistoryTampered(f"generation {number} of session {self.session_id!r} was changed while it was read")
        return True

    async def latest(self, limit: int | None, *, generation: int | None = None) -> list[Decoded]:
        """The latest readable items. Unreadable records do not use up the limit."""
        window = limit
        while True:
            page = await self.page(last=window, generation=generation)
            if page is None:
                if generation is not None:
                    raise NotFound("generation", generation)
                return []
            if self.codec.bound and generation is not None and not await self.check_generation(page, generation):
                continue
            readable, broken = self.decoded(page.rows)
            shown = self.unexpired(readable)
            if limit is None or len(shown) >= limit or not page.rows or page.rows[0].position == 0:
                return shown if limit is None else shown[-limit:]
            window = max((window or 1) * 2, limit + 2 * len(broken))

    def decoded(self, rows: Sequence[Row]) -> tuple[list[Decoded], list[tuple[Row, str]]]:
        readable, broken = [], []
        for row in rows:
            try:
                readable.append(self.codec.decode(row))
            except Unreadable as problem:
                broken.append((row, str(problem)))
        return readable, broken

    def unexpired(self, entries: list[Decoded]) -> list[Decoded]:
        """Without those that are past their time; a call and its output go together."""
        if self.codec.ttl is None or self.clock is None:
            return entries
        return unexpired(entries, now=self.clock(), ttl=self.codec.ttl)

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

    def hit_in(self, record: SessionRecord, tape: int, seq: int, data: bytes, terms: Sequence[str]) -> Hit | None:
        """The hit that a candidate is, if the session shows it and it matches."""
        position = position_of(record.view, tape, seq)
        if position is None or (record.seal is not None and not self.codec.bound):
            return None  # not shown, or plaintext that somebody put into a sealed history
        return self.hit(Row(position, tape, seq, data), terms, record.session_id)

    def hit(self, row: Row, terms: Sequence[str], session_id: str) -> Hit | None:
        try:
            item = self.codec.decode(row).item
        except Unreadable:
            return None
        text = text_of(item)
        return Hit(session_id, row.position, item, text) if matches(text, terms) else None

    async def scan(self, terms: Sequence[str], limit: int) -> list[Hit]:
        """Search without an index, from the newest item back."""
        hits: list[Hit] = []
        record = await self.verified_record()
        if self.codec.ttl is not None:  # what is expired depends on what stands around it
            for entry in reversed(await self.latest(None)):
                text = text_of(entry.item)
                if matches(text, terms):
                    hits.append(Hit(self.session_id, entry.row.position, entry.item, text))
            return hits[:limit]
        stop = record.length if record else 0
        while stop > 0 and len(hits) < limit:
            start = max(stop - _SCAN, 0)
            page = await self.page(start=start, stop=stop)
            for row in reversed(page.rows if page else []):
                hit = self.hit(row, terms, self.session_id)
                if hit is not None:
                    hits.append(hit)
            stop = start
        return hits[:limit]


def search_terms(query: str, limit: int) -> tuple[list[str], int]:
    if not isinstance(query, str):
        raise InvalidInput(f"a search is a string, not {type(query).__name__}")
    return words_of(query), checked_limit(limit) or 0


async def search_index(
    backend: Backend,
    hit_in: Callable[[SessionRecord, int, int, bytes, Sequence[str]], Hit | None],
    terms: Sequence[str],
    *,
    session_id: str | None = None,
    owner: str | None = None,
    limit: int,
) -> list[Hit] | None:
    """Hits by way of the backend's index, or ``None`` when it has none. Candidates are looked at one by one."""
    found: dict[str, list[Hit]] = {}
    records: dict[str, SessionRecord | None] = {}
    skip = 0
    while True:
        page = await backend.search(terms, session_id=session_id, owner=owner, limit=limit * 2, skip=skip)
        if page is None:
            return None
        for candidate in page:
            name = candidate.session_id
            if name not in records:
                records[name] = await backend.record(name)
            record = records[name]
            hit = hit_in(record, candidate.tape, candidate.seq, candidate.data, terms) if record else None
            if hit is not None:
                found.setdefault(name, []).append(hit)
        last = records[page[-1].session_id] if page else None
        # The last session may have more to come, and newer ones, unless its items stand in the order of writing.
        settled = [hit for name, hits in found.items() if not last or name != last.session_id for hit in hits]
        if len(page) < limit * 2 or len(settled) >= limit or (last and written_in_order(last) and enough(found, limit)):
            ordered = [hit for hits in found.values() for hit in sorted(hits, key=lambda hit: -hit.position)]
            return ordered[:limit]
        skip += len(page)


def enough(found: dict[str, list[Hit]], limit: int) -> bool:
    return sum(map(len, found.values())) >= limit


def written_in_order(record: SessionRecord) -> bool:
    """Whether a session shows its own items only, in the order in which they were written."""
    return all(span.tape == record.tape for span in record.view) and list(record.view) == sorted(
        record.view, key=lambda span: span.start
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
