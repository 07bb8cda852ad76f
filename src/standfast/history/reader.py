"""The reading half of a stored session, over any backend and codec."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from standfast.base.errors import HistoryTampered, InvalidInput, NotFound
from standfast.base.ids import validate_name, validate_owner
from standfast.base.item_pairs import drop_unpaired
from standfast.base.items import Item
from standfast.base.text import extract_text, matches_terms
from standfast.history.codec import Codec, DecodedRecord, PlainCodec, UnreadableRecord, decode_page
from standfast.history.encryption.keys import TAG_SIZE, drop_expired
from standfast.history.integrity import IntegrityReport, check_integrity
from standfast.history.search import SearchHit, parse_query, search_index
from standfast.history.session import SessionSettings, make_conversation_key, validate_limit
from standfast.store.backend import Backend
from standfast.store.records import EMPTY_HEAD, Generation, Head, HistoryPage, Row, SessionRecord
from standfast.store.tape import TapeSpan, TapeSpans, compute_length, find_position, join_spans, slice_spans
from standfast.workspaces.branch_points import SessionPoint, ViewRow, find_closings
from standfast.workspaces.versions import list_output_ids

PLAIN_CODEC = PlainCodec()
_SCAN_PAGE_SIZE = 500


class StoredSessionReader:
    """Reads a session in a store. :class:`~standfast.history.stored_session.StoredSession` adds the writing methods."""

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        backend: Backend,
        *,
        settings: SessionSettings | dict[str, Any] | None = None,
        codec: Codec = PLAIN_CODEC,
        owner: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.session_id = validate_name("session id", session_id)
        self.session_settings = SessionSettings.coerce(settings)
        self.backend = backend
        self.codec = codec
        self.owner = validate_owner(owner)
        self.claims = False
        """Whether appending and forking are refused with :class:`OutsideScope` if the session has another owner."""
        self.clock = clock

    @property
    def conversation_key(self) -> str:
        """The key under which tools keep state for this session; sessions of other stores have other keys."""
        return make_conversation_key(self.backend.location, self.session_id)

    async def get_items(self, limit: int | None = None, *, generation: int | None = None) -> list[Item]:
        """Return the latest ``limit`` items, oldest first. The default is the limit of the settings, else all items.

        A record that cannot be read is skipped and does not count towards the limit; :meth:`check` reports it. In an
        encrypted session it raises :class:`HistoryTampered`. Pass the number of an earlier ``generation`` to read the
        history as it was before a rewind or replacement.
        """
        limit = self.resolve_limit(limit)
        validate_generation(generation)
        if limit == 0:
            return []
        return [entry.item for entry in await self.read_latest(limit, generation=generation)]

    async def head(self) -> Head:
        """Return the current version and length. Pass it as ``expected`` to write only if there was no other write."""
        record = await self.read_verified_record()
        return record.head if record else EMPTY_HEAD

    async def get_paired_items(self, limit: int | None = None) -> list[Item]:
        """Return the items that may be sent to a model: those of :meth:`get_items` whose counterpart is not missing.

        The stored history does not change.
        """
        return drop_unpaired(await self.get_items(limit))

    async def generations(self) -> list[Generation]:
        """List the earlier generations, oldest first: the history as it was before each rewind or replacement."""
        return (await self.read_head_and_generations())[1]

    async def get_generation_spans(self, generation: int) -> TapeSpans:
        """Return the view of an earlier generation, or raise :class:`NotFound`."""
        for entry in await self.generations():
            if entry.number == generation:
                return entry.spans
        raise NotFound("generation", generation)

    async def search(self, query: str, *, limit: int | None = 20) -> list[SearchHit]:
        """Return the items in which each word of ``query`` is the beginning of a word, newest first."""
        terms, max_hits = parse_query(query, limit)
        if not terms or not max_hits:
            return []
        if not self.codec.location_bound:
            hits = await search_index(
                self.backend, self.match_candidate, terms, session_id=self.session_id, limit=max_hits
            )
            if hits is not None:
                return hits
        return await self.scan(terms, max_hits)

    async def check(self) -> IntegrityReport:
        """Read every record and report what is damaged, unpaired, quarantined or tampered with. Never writes."""
        while True:
            page = await self.backend.read(self.session_id)
            generations = await self.backend.list_generations(self.session_id)
            quarantined = await self.backend.list_quarantined(self.session_id)
            if await self.backend.get_session(self.session_id) == (page.record if page else None):
                return check_integrity(
                    self.session_id, page, self.codec, generations=generations, quarantined=quarantined
                )

    async def export(self) -> AsyncIterator[tuple[Row, Item | UnreadableRecord]]:
        """Yield every record in order with its item, or with the reason why it cannot be read."""
        page = await self.read_page()
        readable, unreadable = self.decode_page(page)
        entries: list[tuple[Row, Item | UnreadableRecord]] = [
            (entry.row, entry.item) for entry in self.drop_expired(readable)
        ]
        entries += [(row, UnreadableRecord(reason)) for row, reason in unreadable]
        for row, content in sorted(entries, key=lambda pair: pair[0].position):
            yield row, content

    # --- shared parts ---------------------------------------------------------------------------

    async def list_output_ids(self, end: int | None = None, *, generation: int | None = None) -> list[str]:
        """Return the ids of the calls whose outputs are among the first ``end`` items, by default all."""
        decoded, _ = self.decode_page(await self.read_page(start=0, stop=end, generation=generation))
        return list_output_ids(entry.item for entry in decoded)

    async def read_point(self, length: int, generation: int | None = None) -> SessionPoint:
        """Return the point after the first items, now or in an earlier generation."""
        page = await self.read_page(start=0, generation=generation)
        if page is None:
            return SessionPoint((), 0, 0, 0, {})
        closed_at = find_closings(await self.generations(), page.record.view, page.record.tape)
        calls = {
            (entry.row.tape, entry.row.seq): next(iter(list_output_ids([entry.item])), "")
            for entry in self.decode_page(page)[0]
        }
        rows = [ViewRow(row.tape, row.seq, calls.get((row.tape, row.seq), "")) for row in page.rows]
        number = page.record.generation if generation is None else generation
        return SessionPoint(rows, length, page.record.tape, number, closed_at)

    def resolve_limit(self, limit: int | None) -> int | None:
        """Return the limit of a read: the given one, or that of the settings."""
        limit = validate_limit(limit)
        return limit if limit is not None else self.session_settings.limit if self.session_settings else None

    async def read_verified_record(self) -> SessionRecord | None:
        """Return the record of the session after verifying its seal; ``None`` if the session does not exist."""
        if self.codec.location_bound:
            page = await self.read_page(start=0, stop=0)
            return None if page is None else page.record
        record = await self.backend.get_session(self.session_id)
        if record is not None:
            self.codec.verify(record)
        return record

    async def read_tags(self, *positions: int, generation: int | None = None) -> dict[tuple[int, int], bytes]:
        """Return the tags of encrypted records, by tape and place, for the seal of a view that ends with them."""
        tags: dict[tuple[int, int], bytes] = {}
        for position in positions if self.codec.location_bound else ():
            page = await self.backend.read(
                self.session_id, start=max(position, 0), stop=position + 1, generation=generation
            )
            tags |= {(row.tape, row.seq): row.data[-TAG_SIZE:] for row in (page.rows if page else ()) if row.data}
        return tags

    async def read_page(self, **window: Any) -> HistoryPage | None:
        """Return the rows that ``window`` selects, as :meth:`Backend.read` does, after verifying the seal."""
        page = await self.backend.read(self.session_id, **window)
        if page is not None:
            self.codec.verify_page(page)
        return page

    async def read_head_and_generations(self) -> tuple[Head, list[Generation]]:
        """Return the earlier generations and the head of the version they belong to."""
        while True:
            record = await self.read_verified_record()
            generations = await self.backend.list_generations(self.session_id)
            current = await self.backend.get_session(self.session_id)
            if (current.version if current else 0) == (record.version if record else 0):
                if record is not None:
                    self.codec.verify_generations(record, generations)
                return record.head if record else EMPTY_HEAD, generations

    async def verify_generation(self, page: HistoryPage, number: int) -> bool:
        """Verify that the page shows that generation as it was sealed.

        Return False if the history has changed since the page was read, so that the page cannot be verified.
        """
        head, generations = await self.read_head_and_generations()
        if head != page.record.head:
            return False
        spans = next(entry.spans for entry in generations if entry.number == number)
        read = join_spans(TapeSpan(row.tape, row.seq, row.seq + 1) for row in page.rows)
        if read != slice_spans(spans, compute_length(spans) - len(page.rows), compute_length(spans)):
            raise HistoryTampered(f"generation {number} of session {self.session_id!r} was changed while it was read")
        return True

    async def read_latest(self, limit: int | None, *, generation: int | None = None) -> list[DecodedRecord]:
        """Return the latest readable items. Unreadable records do not count towards the limit, unless they raise."""
        window = limit
        while True:
            page = await self.read_page(last=window, generation=generation)
            if page is None:
                if generation is not None:
                    raise NotFound("generation", generation)
                return []
            if (
                self.codec.location_bound
                and generation is not None
                and not await self.verify_generation(page, generation)
            ):
                continue
            readable, unreadable = self.decode_page(page)
            if unreadable and self.codec.strict:
                raise self.codec.make_unreadable_error(page.record, *unreadable[0])
            visible = self.drop_expired(readable)
            if limit is None or len(visible) >= limit or not page.rows or page.rows[0].position == 0:
                return visible if limit is None else visible[-limit:]
            window = max((window or 1) * 2, limit + 2 * len(unreadable))

    def decode_page(self, page: HistoryPage | None) -> tuple[list[DecodedRecord], list[tuple[Row, str]]]:
        """Return the decoded records, and the rows that cannot be decoded with the reason."""
        return decode_page(self.codec, page)

    def drop_expired(self, entries: list[DecodedRecord]) -> list[DecodedRecord]:
        """Return the records that have not expired. A call and its output expire together."""
        if self.codec.ttl is None or self.clock is None:
            return entries
        return drop_expired(entries, now=self.clock(), ttl=self.codec.ttl)

    def match_candidate(
        self, record: SessionRecord, tape: int, seq: int, data: bytes, terms: Sequence[str]
    ) -> SearchHit | None:
        """Return a hit if the candidate is in the view of the session and its item matches; otherwise ``None``."""
        position = find_position(record.view, tape, seq)
        if position is None or (record.seal is not None and not self.codec.location_bound):
            return None  # not in the view, or plaintext that was inserted into an encrypted history
        return self.match_row(Row(position, tape, seq, data), terms, record.session_id)

    def match_row(self, row: Row, terms: Sequence[str], session_id: str) -> SearchHit | None:
        """Return the hit if the item of a row has words with these beginnings."""
        try:
            item = self.codec.decode(row).item
        except UnreadableRecord:
            return None
        text = extract_text(item)
        return SearchHit(session_id, row.position, item, text) if matches_terms(text, terms) else None

    async def scan(self, terms: Sequence[str], limit: int) -> list[SearchHit]:
        """Search without an index, from the newest item back."""
        hits: list[SearchHit] = []
        record = await self.read_verified_record()
        if self.codec.ttl is not None:  # whether an item has expired depends on the items around it
            for entry in reversed(await self.read_latest(None)):
                text = extract_text(entry.item)
                if matches_terms(text, terms):
                    hits.append(SearchHit(self.session_id, entry.row.position, entry.item, text))
            return hits[:limit]
        stop = record.length if record else 0
        while stop > 0 and len(hits) < limit:
            start = max(stop - _SCAN_PAGE_SIZE, 0)
            page = await self.read_page(start=start, stop=stop)
            for row in reversed(page.rows if page else []):
                hit = self.match_row(row, terms, self.session_id)
                if hit is not None:
                    hits.append(hit)
            stop = start
        return hits[:limit]


def validate_generation(number: object) -> None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise InvalidInput(f"generation must be an integer from generations(), got {number!r}")
    if number is not None and not 0 <= number < 2**63:
        raise NotFound("generation", number)


def validate_position(position: object) -> int:
    """Return the position if it is an integer. Whether it is in range depends on the history."""
    if not isinstance(position, int) or isinstance(position, bool):
        raise InvalidInput(f"a position must be an integer, got {position!r}")
    return position


def validate_head(expected: object) -> None:
    if expected is not None and not isinstance(expected, Head):
        raise InvalidInput(f"expected must be a Head as returned by head(), got {expected!r}")
