"""Full-text search through the index of a backend. Sessions and stores scan where a backend has no index."""

from collections.abc import Callable, Sequence

import msgspec

from standfast.base.errors import InvalidInput, SessionDamaged
from standfast.base.items import Item
from standfast.base.text import extract_words
from standfast.history.session import validate_listing_limit
from standfast.store.backend import Backend
from standfast.store.records import SessionRecord


class SearchHit(msgspec.Struct, frozen=True):
    """An item that matched a search, its position in the history, and its text."""

    session_id: str
    """The session with the item."""
    position: int
    """The index of the item in the history."""
    item: Item
    """The item."""
    text: str
    """The text of the item."""


MAX_QUERY_LENGTH = 1000
"""Characters of a query, as the servers and libraries that search have limits of their own."""


def validate_query(query: object) -> str:
    """Return ``query`` if every backend can search for it; otherwise raise :class:`InvalidInput`."""
    if not isinstance(query, str):
        raise InvalidInput(f"query must be a string, not {type(query).__name__}")
    if len(query) > MAX_QUERY_LENGTH:
        raise InvalidInput(f"query must have at most {MAX_QUERY_LENGTH} characters, got {len(query)}")
    return query


def parse_query(query: str, limit: int | None) -> tuple[list[str], int]:
    """Return the search terms and the maximum number of hits."""
    return extract_words(validate_query(query)), validate_listing_limit(limit)


async def search_index(
    backend: Backend,
    match_candidate: Callable[[SessionRecord, int, int, bytes, Sequence[str]], SearchHit | None],
    terms: Sequence[str],
    *,
    session_id: str | None = None,
    owner: str | None = None,
    limit: int,
) -> list[SearchHit] | None:
    """Return the hits that the index of the backend leads to, newest first; ``None`` if the backend has no index.

    The index only gives candidates; ``match_candidate`` decides whether they are in the view of the session and match.
    """
    hits_by_session: dict[str, list[SearchHit]] = {}
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
                hits_by_session.setdefault(name, []).append(hit)
        last = records[page[-1].session_id] if page else None
        # The next page may hold newer items of the last session, unless its view is in write order.
        final = [hit for name, hits in hits_by_session.items() if not last or name != last.session_id for hit in hits]
        if (
            len(page) < size
            or len(final) >= limit
            or (last and is_in_write_order(last) and has_enough(hits_by_session, limit))
        ):
            ordered = [hit for hits in hits_by_session.values() for hit in sorted(hits, key=lambda hit: -hit.position)]
            return ordered[:limit]
        skip += len(page)
        size = skip  # pages double in size, because a backend evaluates all candidates for each page


async def try_read_record(backend: Backend, session_id: str) -> SessionRecord | None:
    """Return the record, or ``None`` if it is damaged: one damaged session must not hide the hits of the others."""
    try:
        return await backend.get_session(session_id)
    except SessionDamaged:
        return None


def has_enough(hits_by_session: dict[str, list[SearchHit]], limit: int) -> bool:
    return sum(map(len, hits_by_session.values())) >= limit


def is_in_write_order(record: SessionRecord) -> bool:
    """Return True if the view has only items of the session's own tape, in the order in which they were written."""
    return all(span.tape == record.tape for span in record.view) and list(record.view) == sorted(
        record.view, key=lambda span: span.start
    )
