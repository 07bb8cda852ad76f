"""What a model sees of a session, what it does not see and why, and how large sessions are."""

from typing import Any

import msgspec

from standfast.base.item_pairs import find_unpaired
from standfast.base.items import Item
from standfast.history.compaction import estimate_tokens
from standfast.history.reader import validate_generation
from standfast.history.store import StoredSessionInfo
from standfast.server.access import READ
from standfast.server.answers import ListedSession, SessionEntry, SessionStats, SessionView
from standfast.server.endpoints import EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import Input

endpoints = EndpointTable()


class ViewQuery(Input, frozen=True, kw_only=True):
    """The generation to show; by default the current one."""

    generation: int | None = None


@endpoints.add("GET", "/sessions/{session_id}/view", READ, query=ViewQuery, result=SessionView)
async def view_session(exchange: Exchange) -> SessionView:
    """Show every item of a session, whether a model sees it, and if not, why."""
    session, generation = exchange.session, exchange.query.generation
    validate_generation(generation)
    head, generations = await session.read_head_and_generations()
    info = await exchange.reads.store.describe(exchange.session_id)
    report = await session.check()
    readable = await session.read_latest(None, generation=generation)
    problems = {one.index: str(one.problem) for one in find_unpaired([entry.item for entry in readable])}
    entries = [make_entry(entry.row.position, entry.item, problems.get(index)) for index, entry in enumerate(readable)]
    if generation is None:
        entries += [make_entry(one.position, None, one.reason) for one in report.corrupt]
    exchange.set_etag(head)
    return SessionView(
        head=head,
        generation=info.generation if generation is None else generation,
        replaced_at=next((one.replaced_at for one in generations if one.number == generation), None),
        entries=sorted(entries, key=lambda entry: entry.position),
        tokens=sum(entry.tokens for entry in entries if entry.hidden is None),
        quarantined=report.quarantined,
    )


def make_entry(position: int, item: Item | None, hidden: str | None) -> SessionEntry:
    return SessionEntry(
        position=position, item=item, hidden=hidden, tokens=0 if item is None else estimate_tokens(item)
    )


async def measure_session(exchange: Exchange, info: StoredSessionInfo) -> ListedSession:
    """Return the session with its size, unless it is encrypted with a key that the server does not have."""
    fields: dict[str, Any] = msgspec.structs.asdict(info)
    if info.encrypted and not exchange.runtime.is_encrypted:
        return ListedSession(**fields)
    items = await exchange.reads.session(info.session_id).get_items()
    stats = SessionStats(
        items=len(items),
        bytes=sum(len(msgspec.json.encode(item)) for item in items),
        tokens=sum(map(estimate_tokens, items)),
    )
    return ListedSession(**fields, stats=stats)
