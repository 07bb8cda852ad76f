"""Finding items: through a backend's index where there is one."""

from collections.abc import Callable, Sequence

import msgspec

from standfast.base.errors import InvalidInput, SessionDamaged
from standfast.base.items import Item, extract_words
from standfast.history.session import validate_listing_limit
from standfast.store.contract import Backend, SessionRecord


class SearchHit(msgspec.Struct, frozen=True):
    """An item that matched a search, where it stands, and its text."""

    session_id: str
    position: int
    item: Item
    text: str


def parse_query(query: str, limit: int | None) -> tuple[list[str], int]:
    if not isinstance(query, str):
        raise InvalidInput(f"a search is a string, not {type(query).__name__}")
    return extract_words(query), validate_listing_limit(limit)


async def search_index(
    backend: Backend,
    match_candidate: Callable[[SessionRecord, int, int, bytes, Sequence[str]], SearchHit | None],
    terms: Sequence[str],
    *,
    session_id: str | None = None,
    owner: str | None = None,
    limit: int,
) -> list[SearchHit] | None:
    """Hits by way of the backend's index, or ``None`` when it has none. Candidates are looked at one by one."""
    found: dict[str, list[SearchHit]] = {}
    records: dict[str, SessionRecord | None] = {}
    skip, size = 0, limit * 2
    while True:
        page = await backend.search(terms, session_id=session_id, owner=owner, limit=size, skip=skip)
        if page is None:
            return None
        for candidate in page:
            name = candidate.session_id
            if name not in records:
                records[name] = await try_read_record(backend, name)
            record = records[name]
            hit = match_candidate(record, candidate.tape, candidate.seq, candidate.data, terms) if record else None
            if hit is not None:
                found.setdefault(name, []).append(hit)
        last = records[page[-1].session_id] if page else None
        # The last session may have more to come, and newer ones, unless its items stand in the order of writing.
        settled = [hit for name, hits in found.items() if not last or name != last.session_id for hit in hits]
        if len(page) < size or len(settled) >= limit or (last and is_in_write_order(last) and has_enough(found, limit)):
            ordered = [hit for hits in found.values() for hit in sorted(hits, key=lambda hit: -hit.position)]
            return ordered[:limit]
        skip += len(page)
        size = skip  # a backend finds all candidates for each page, so there must not be many


async def try_read_record(backend: Backend, session_id: str) -> SessionRecord | None:
    """The record, unless it is damaged: one that is must not hide what others hold."""
    try:
        return await backend.get_session(session_id)
    except SessionDamaged:
        return None


def has_enough(found: dict[str, list[SearchHit]], limit: int) -> bool:
    return sum(map(len, found.values())) >= limit


def is_in_write_order(record: SessionRecord) -> bool:
    """Whether a session shows its own items only, in the order in which they were written."""
    return all(span.tape == record.tape for span in record.view) and list(record.view) == sorted(
        record.view, key=lambda span: span.start
    )
