"""``/sessions``: list, read, search, change, fork, export, import and delete sessions."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from standfast.base.errors import AlreadyExists
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.history.deletion import DeletedSession
from standfast.history.integrity import IntegrityReport
from standfast.history.search import SearchHit
from standfast.history.store import StoredSessionInfo
from standfast.history.transfer import parse_lines
from standfast.server.answers import ListedSession
from standfast.server.endpoints import MANAGE, READ, WRITE, EndpointTable
from standfast.server.exchange import Exchange, choose_owner, make_page, validate_page_size
from standfast.server.resources.session_views import measure_session
from standfast.server.types import (
    DeleteQuery,
    ForkRequest,
    ItemListing,
    NewItems,
    NewSession,
    OwnerChange,
    Page,
    RestoreRequest,
    RewindRequest,
    SearchQuery,
    SessionChange,
    SessionItems,
    SessionListing,
)
from standfast.store.records import Generation

endpoints = EndpointTable()


@endpoints.add("GET", "/sessions", READ, query=SessionListing, result=Page[ListedSession])
async def list_sessions(exchange: Exchange) -> Page[ListedSession]:
    """List sessions, the most recently changed first. `stats` adds their sizes, which costs reading them."""
    query = exchange.query
    size = validate_page_size(exchange, query.limit)
    listed = await exchange.reads.store.sessions(
        owner=choose_owner(exchange, query.owner), query=query.query, limit=size + 1, after=query.after
    )
    found = [info for info in listed if query.since is None or info.updated_at >= query.since]
    page = make_page(found, size, lambda info: info.cursor)
    if not query.stats:
        return Page([ListedSession(**msgspec.structs.asdict(info)) for info in page.items], page.next)
    return Page([await measure_session(exchange, info) for info in page.items], page.next)


@endpoints.add("POST", "/sessions", WRITE, body=NewSession, result=StoredSessionInfo, status=201)
async def create_session(exchange: Exchange) -> StoredSessionInfo:
    """Create an empty session that belongs to the owner of the credential."""
    session_id = exchange.body.session_id or new_id("session")
    await exchange.require_access_or_absence(session_id)
    if await exchange.runtime.store.backend.get_session(session_id) is not None:
        raise AlreadyExists("session", session_id)
    return await exchange.reads.store.annotate(
        session_id, exchange.body.metadata, owner=exchange.principal.owner, claim=True
    )


@endpoints.add("GET", "/sessions/search", READ, query=SearchQuery, result=list[SearchHit])
async def search_sessions(exchange: Exchange) -> list[SearchHit]:
    """Find the items that contain all these words, or words that begin with them. Encrypted ones are not searched."""
    query, size = exchange.query, validate_page_size(exchange, exchange.query.limit)
    if query.session_id is not None:
        await exchange.require_access_or_absence(query.session_id)
        return await exchange.reads.session(query.session_id).search(query.q, limit=size)
    return await exchange.reads.store.search(query.q, owner=choose_owner(exchange, query.owner), limit=size)


@endpoints.add("POST", "/sessions/import", WRITE, body=bytes, result=StoredSessionInfo, status=201)
async def import_session(exchange: Exchange) -> StoredSessionInfo:
    """Create a session from an export, JSON Lines, in one transaction. It belongs to the owner of the credential."""
    parts = [part async for part in exchange.read_parts(exchange.service.limits.upload_bytes)]
    lines = b"".join(parts).decode("utf-8", "surrogateescape").split("\n")
    header = await parse_lines([next((line for line in lines if line.strip()), "")])
    await exchange.require_access_or_absence(header.session_id)
    session = await exchange.runtime.store.import_(lines, owner=exchange.principal.owner)
    return await exchange.reads.store.describe(session.session_id)


@endpoints.add("GET", "/sessions/{session_id}", READ, result=StoredSessionInfo)
async def get_session(exchange: Exchange) -> StoredSessionInfo:
    """Show a session. Its `ETag` is the `If-Match` of changes that must not overwrite those of others."""
    return await describe_changed(exchange)


async def describe_changed(exchange: Exchange) -> StoredSessionInfo:
    """Return the description of the session, with its head as the ETag of the response."""
    info = await exchange.reads.store.describe(exchange.session_id)
    exchange.set_etag(info.head)
    return info


@endpoints.add("PATCH", "/sessions/{session_id}", WRITE, body=SessionChange, result=StoredSessionInfo)
async def change_session(exchange: Exchange) -> StoredSessionInfo:
    """Merge metadata into those of a session."""
    return await exchange.reads.store.annotate(exchange.session_id, exchange.body.metadata)


@endpoints.add("PUT", "/sessions/{session_id}/owner", MANAGE, body=OwnerChange, result=StoredSessionInfo)
async def set_owner(exchange: Exchange) -> StoredSessionInfo:
    """Give a session, with its runs and approvals, to another owner."""
    store = exchange.runtime.store
    return await store.set_owner(exchange.session_id, exchange.body.owner, by=exchange.principal)


@endpoints.add("DELETE", "/sessions/{session_id}", WRITE, query=DeleteQuery, result=DeletedSession)
async def delete_session(exchange: Exchange) -> DeletedSession:
    """Delete a session with its runs, unless one of them has not ended."""
    deleted = await exchange.runtime.store.delete(exchange.session_id, runs=exchange.query.runs)
    exchange.service.cells.forget(exchange.session_id)
    return deleted


@endpoints.add("GET", "/sessions/{session_id}/items", READ, query=ItemListing, result=SessionItems)
async def list_items(exchange: Exchange) -> SessionItems:
    """Read the items of a session, oldest first: the latest ones, or those of an earlier generation."""
    query, session = exchange.query, exchange.session
    head = await session.head()
    if query.paired:
        items = await session.get_paired_items(query.limit)
    else:
        items = await session.get_items(query.limit, generation=query.generation)
    exchange.set_etag(head)
    return SessionItems(items=items, head=head)


@endpoints.add(
    "POST",
    "/sessions/{session_id}/items",
    WRITE,
    body=NewItems,
    result=StoredSessionInfo,
    status=201,
    is_conditional=True,
    creates_session=True,
    has_key=True,
)
async def add_items(exchange: Exchange) -> StoredSessionInfo:
    """Append items in one transaction, once per `Idempotency-Key`."""
    await exchange.session.add_items(exchange.body.items, key=exchange.idempotency_key, expected=exchange.expected_head)
    return await describe_changed(exchange)


@endpoints.add("POST", "/sessions/{session_id}/items/pop", WRITE, result=list[Item])
async def pop_item(exchange: Exchange) -> list[Item]:
    """Remove the latest item and return it, in a list that is empty if there was none."""
    item = await exchange.session.pop_item()
    return [] if item is None else [item]


@endpoints.add("DELETE", "/sessions/{session_id}/items", WRITE)
async def clear_session(exchange: Exchange) -> None:
    """Delete all items of a session with its earlier generations, and the cells that people ran in it."""
    await exchange.runtime.session(exchange.session_id).clear_session()
    exchange.service.cells.forget(exchange.session_id)


@endpoints.add(
    "POST", "/sessions/{session_id}/rewind", WRITE, body=RewindRequest, result=StoredSessionInfo, is_conditional=True
)
async def rewind_session(exchange: Exchange) -> StoredSessionInfo:
    """Go back to an earlier length. What is removed stays readable as an earlier generation."""
    await exchange.session.rewind(exchange.body.to, expected=exchange.expected_head)
    return await describe_changed(exchange)


@endpoints.add(
    "POST", "/sessions/{session_id}/restore", WRITE, body=RestoreRequest, result=StoredSessionInfo, is_conditional=True
)
async def restore_session(exchange: Exchange) -> StoredSessionInfo:
    """Go back to an earlier generation, for example to undo a compaction."""
    await exchange.session.restore(exchange.body.generation, expected=exchange.expected_head)
    return await describe_changed(exchange)


@endpoints.add("GET", "/sessions/{session_id}/generations", READ, result=list[Generation])
async def list_generations(exchange: Exchange) -> list[Generation]:
    """List the earlier generations of a session."""
    return await exchange.session.generations()


@endpoints.add("POST", "/sessions/{session_id}/fork", WRITE, body=ForkRequest, result=StoredSessionInfo, status=201)
async def fork_session(exchange: Exchange) -> StoredSessionInfo:
    """Create a session that begins with the items of this one, without copying them."""
    body = exchange.body
    if body.session_id is not None:
        await exchange.require_access_or_absence(body.session_id)
    child = await exchange.session.fork(at=body.at, session_id=body.session_id or new_id("session"))
    return await exchange.reads.store.describe(child.session_id)


@endpoints.add("GET", "/sessions/{session_id}/check", READ, result=IntegrityReport)
async def check_session(exchange: Exchange) -> IntegrityReport:
    """Report unreadable, unpaired and quarantined items. Nothing is changed."""
    return await exchange.session.check()


@endpoints.add("GET", "/sessions/{session_id}/export", READ, media_type="application/jsonl")
async def export_session(exchange: Exchange) -> StreamingResponse:
    """Download a session as JSON Lines."""
    lines: Any = await exchange.reads.store.export(exchange.session_id)

    async def encode() -> AsyncIterator[bytes]:
        async for line in lines:
            yield line.rstrip("\n").encode() + b"\n"

    return StreamingResponse(encode(), media_type="application/jsonl")
