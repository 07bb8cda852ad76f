"""Reading the history of one conversation, over any backend and codec."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from holdfast.base.errors import HistoryTampered, InvalidInput, NotFound
from holdfast.base.ids import checked_name, checked_owner
from holdfast.base.items import Item, matches, text_of
from holdfast.base.pairing import paired
from holdfast.history.checking import Report, examine
from holdfast.history.codec import Codec, Decoded, PlainCodec, Unreadable
from holdfast.history.contract import SessionSettings, checked_limit
from holdfast.history.expiry import unexpired
from holdfast.history.searching import Hit, search_index, search_terms
from holdfast.store.contract import (
    NOWHERE,
    Backend,
    Generation,
    Head,
    Page,
    Row,
    SessionRecord,
)
from holdfast.store.view import Span, cut, join, length, position_of

PLAIN = PlainCodec()
_SCAN = 500


class StoredHistory:
    """What a history in a store shows. :class:`~holdfast.history.session.StoredSession` can change it as well."""

    session_settings: SessionSettings | None

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
        self.owner = checked_owner(owner)
        self.clock = clock

    async def get_items(self, limit: int | None = None, *, generation: int | None = None) -> list[Item]:
        """The latest ``limit`` items, oldest first; 0 gives none.

        Without a limit the settings decide, and without those it is everything. A record that cannot be read
        is left out and does not count; :meth:`check` names it. ``generation`` reads what the history showed
        before it was rewound or replaced.
        """
        limit = self.resolved_limit(limit)
        checked_generation(generation)
        if limit == 0:
            return []
        return [entry.item for entry in await self.latest(limit, generation=generation)]

    async def head(self) -> Head:
        """Where the history stands now; pass it as ``expected`` to write only if nobody else did."""
        record = await self.verified_record()
        return record.head if record else NOWHERE

    async def get_paired_items(self, limit: int | None = None) -> list[Item]:
        """What a model may be shown: the items without those whose counterpart is missing.

        Nothing stored is changed by that.
        """
        return paired(await self.get_items(limit))

    async def generations(self) -> list[Generation]:
        """What the history showed before each rewind or replacement, oldest first."""
        return (await self.past())[1]

    async def search(self, query: str, *, limit: int | None = 20) -> list[Hit]:
        """Items in which every word of ``query`` begins a word, newest first."""
        terms, most = search_terms(query, limit)
        if not terms or not most:
            return []
        if not self.codec.bound:
            found = await search_index(self.backend, self.hit_in, terms, session_id=self.session_id, limit=most)
            if found is not None:
                return found
        return await self.scan(terms, most)

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

    def resolved_limit(self, limit: int | None) -> int | None:
        limit = checked_limit(limit)
        return limit if limit is not None else self.session_settings.limit if self.session_settings else None

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


def checked_generation(number: object) -> None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise InvalidInput(f"a generation is a whole number, as generations() lists it, not {number!r}")
    if number is not None and not 0 <= number < 2**63:
        raise NotFound("generation", number)
