"""Finding items: through a backend's index where there is one."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.base.errors import InvalidInput, SessionDamaged
from holdfast.base.items import Item, words_of
from holdfast.history.contract import at_most
from holdfast.store.contract import (
    Backend,
    SessionRecord,
)


class Hit(msgspec.Struct, frozen=True):
    """An item that matched a search, where it stands, and its text."""

    session_id: str
    position: int
    item: Item
    text: str


def search_terms(query: str, limit: int | None) -> tuple[list[str], int]:
    if not isinstance(query, str):
        raise InvalidInput(f"a search is a string, not {type(query).__name__}")
    return words_of(query), at_most(limit)


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
    skip, size = 0, limit * 2
    while True:
        page = await backend.search(terms, session_id=session_id, owner=owner, limit=size, skip=skip)
        if page is None:
            return None
        for candidate in page:
            name = candidate.session_id
            if name not in records:
                records[name] = await readable_record(backend, name)
            record = records[name]
            hit = hit_in(record, candidate.tape, candidate.seq, candidate.data, terms) if record else None
            if hit is not None:
                found.setdefault(name, []).append(hit)
        last = records[page[-1].session_id] if page else None
        # The last session may have more to come, and newer ones, unless its items stand in the order of writing.
        settled = [hit for name, hits in found.items() if not last or name != last.session_id for hit in hits]
        if len(page) < size or len(settled) >= limit or (last and written_in_order(last) and enough(found, limit)):
            ordered = [hit for hits in found.values() for hit in sorted(hits, key=lambda hit: -hit.position)]
            return ordered[:limit]
        skip += len(page)
        size = skip  # a backend finds all candidates for each page, so there must not be many


async def readable_record(backend: Backend, session_id: str) -> SessionRecord | None:
    """The record, unless it is damaged: one that is must not hide what others hold."""
    try:
        return await backend.record(session_id)
    except SessionDamaged:
        return None


def enough(found: dict[str, list[Hit]], limit: int) -> bool:
    return sum(map(len, found.values())) >= limit


def written_in_order(record: SessionRecord) -> bool:
    """Whether a session shows its own items only, in the order in which they were written."""
    return all(span.tape == record.tape for span in record.view) and list(record.view) == sorted(
        record.view, key=lambda span: span.start
    )
