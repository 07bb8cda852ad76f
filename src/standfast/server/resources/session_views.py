"""What a model sees of a session, what it does not see and why, and how large sessions are."""

from typing import Any

import msgspec

from standfast.base.item_pairs import find_unpaired
from standfast.base.items import Item
from standfast.history.compaction import estimate_tokens
from standfast.history.reader import validate_generation
from standfast.history.store import StoredSessionInfo
from standfast.server.answers import ListedSession, SessionBranch, SessionEntry, SessionStats, SessionView
from standfast.server.endpoints import READ, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.service import MAX_SIZES
from standfast.server.types import Input
from standfast.store.backend import Cursor
from standfast.store.tape import count_shared

MOST_COMPARED = 2000
_PAGE_SIZE = 500

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


@endpoints.add("GET", "/sessions/{session_id}/branches", READ, result=list[SessionBranch])
async def list_branches(exchange: Exchange) -> list[SessionBranch]:
    """List the sessions that begin with items of this one: its forks, what it was forked from, and other forks of that.

    It is compared with the 2,000 sessions that were changed last, of those that the principal may read.
    """
    backend, branches = exchange.reads.store.backend, list[SessionBranch]()
    record = await backend.get_session(exchange.session_id)
    if record is None or not record.length:
        return branches
    cursor: Cursor | None = None
    for _ in range(MOST_COMPARED // _PAGE_SIZE):
        page = await backend.list_sessions(owner=exchange.owner_filter, query=None, limit=_PAGE_SIZE, after=cursor)
        for other in page:
            shared = count_shared(record.view, other.view)
            if shared and other.session_id != record.session_id:
                branch = SessionBranch(
                    session_id=other.session_id, shared=shared, head=other.head, updated_at=other.updated_at
                )
                branches.append(branch)
        if len(page) < _PAGE_SIZE:
            break
        cursor = Cursor(page[-1].updated_at, page[-1].session_id)
    return branches


def make_entry(position: int, item: Item | None, hidden: str | None) -> SessionEntry:
    return SessionEntry(
        position=position, item=item, hidden=hidden, tokens=0 if item is None else estimate_tokens(item)
    )


async def measure_session(exchange: Exchange, info: StoredSessionInfo) -> ListedSession:
    """Return the session with its size, unless it is encrypted with a key that the server does not have."""
    fields: dict[str, Any] = msgspec.structs.asdict(info)
    if info.encrypted and not exchange.runtime.is_encrypted:
        return ListedSession(**fields)
    sizes, name = exchange.service.session_sizes, (info.session_id, info.created_at, info.head.version)
    if name not in sizes:
        items = await exchange.reads.session(info.session_id).get_items()
        if len(sizes) >= MAX_SIZES:
            sizes.clear()
        sizes[name] = SessionStats(
            items=len(items),
            bytes=sum(len(msgspec.json.encode(item)) for item in items),
            tokens=sum(map(estimate_tokens, items)),
        )
    return ListedSession(**fields, stats=sizes[name])
