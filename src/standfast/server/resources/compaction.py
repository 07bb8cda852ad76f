"""``/sessions/{id}/compaction``: replace the oldest items of a session by a summary, see it before, and undo it."""

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.compaction import CompactingSession, HistoryCompaction, Summary, estimate_tokens
from standfast.history.store import StoredSessionInfo
from standfast.server.answers import CompactionPreview
from standfast.server.endpoints import READ, WRITE, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.resources.sessions import describe_changed
from standfast.server.types import Input

endpoints = EndpointTable()

_PATH = "/sessions/{session_id}/compaction"
DEFAULT_KEEP_LAST = 10


class CompactionQuery(Input, frozen=True, kw_only=True):
    """How many of the latest items are kept; by default as many as the server's own compaction keeps."""

    keep_last: int | None = None


class CompactionRequest(CompactionQuery, frozen=True, kw_only=True):
    """The summary; without one, the server's own compaction makes it."""

    summary: str | None = None


@endpoints.add("GET", _PATH, READ, query=CompactionQuery, result=CompactionPreview)
async def preview_compaction(exchange: Exchange) -> CompactionPreview:
    """Show which items a compaction would replace. Calls stay with their outputs, so more may be kept."""
    session = open_compacting(exchange, exchange.query.keep_last)
    head, entries = await session.read_all()
    oldest = await session.policy.select_oldest(entries, force=True)
    count = session.policy.count_tokens
    exchange.set_etag(head)
    return CompactionPreview(
        head=head,
        replaced=[entry.item for entry in oldest],
        kept=len(entries) - len(oldest),
        replaced_tokens=sum(count(entry.item) for entry in oldest),
        kept_tokens=sum(count(entry.item) for entry in entries[len(oldest) :]),
        can_summarise=exchange.runtime.compaction is not None,
    )


@endpoints.add("POST", _PATH, WRITE, body=CompactionRequest, result=StoredSessionInfo, is_conditional=True)
async def compact_session(exchange: Exchange) -> StoredSessionInfo:
    """Replace the oldest items by a summary, in one commit. They stay readable as an earlier generation."""
    body, expected = exchange.body, exchange.expected_head
    if body.summary is None and exchange.runtime.compaction is None:
        raise InvalidInput("this server makes no summaries, see Runtime.open(compaction=): send one as summary")
    session = open_compacting(exchange, body.keep_last, summary=body.summary)
    if expected is None:
        await session.compact(force=True)
    elif oldest := await session.policy.select_oldest((await session.read_all())[1], force=True):
        summary = await session.policy.make_summary(oldest)
        await session.target_session.splice_items(0, oldest[-1].row.position + 1, summary, expected=expected)
    return await describe_changed(exchange)


@endpoints.add("DELETE", _PATH, WRITE, result=StoredSessionInfo)
async def undo_compaction(exchange: Exchange) -> StoredSessionInfo:
    """Show the items again that the latest compaction replaced, followed by those that were added since."""
    await open_compacting(exchange, None).undo_compaction()
    return await describe_changed(exchange)


def open_compacting(exchange: Exchange, keep_last: int | None, *, summary: str | None = None) -> CompactingSession:
    """Return the session with the server's own compaction, or with this summary."""
    own: HistoryCompaction | None = exchange.runtime.compaction

    def summarise(items: list[Item]) -> Summary:
        return summary or ""

    chosen = keep_last if keep_last is not None else own.keep_last if own else DEFAULT_KEEP_LAST
    return CompactingSession(
        exchange.session,
        summarise=own.summarise if own and summary is None else summarise,
        trigger=lambda items: True,
        keep_last=chosen,
        count_tokens=own.count_tokens if own else estimate_tokens,
    )
