"""Read the conversations that openai-agents stored in SQL databases and in Redis, without changing them."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from standfast.base.errors import InvalidInput, MissingExtra, WrongKey
from standfast.base.items import Item, decode_item
from standfast.history.encryption.openai_agents import EnvelopeCipher, is_envelope
from standfast.history.imports.sources import Query, SourceSession, has_table, open_database, validate_identifier
from standfast.store.sql.openai_agents_tables import to_timestamp

DEFAULT_TABLES = ("agent_sessions", "agent_messages")
DEFAULT_PREFIX = "agents:session"


async def read_openai_agents(
    url: str,
    *,
    tables: tuple[str, str] = DEFAULT_TABLES,
    prefix: str = DEFAULT_PREFIX,
    secrets: Sequence[str] = (),
) -> AsyncIterator[SourceSession]:
    """Yield the conversations at ``sqlite:///PATH``, ``redis://...`` or the URL of an asynchronous SQLAlchemy engine.

    ``secrets`` are the keys of encrypted sessions. Without the right one, such a session has a ``problem``.
    """
    if url.startswith(("redis:", "rediss:", "unix:")):
        async for session in _read_redis(url, prefix, secrets):
            yield session
        return
    async with open_database(url) as query:
        async for session in _read_tables(query, tables, secrets, url):
            yield session


async def _read_tables(
    query: Query, tables: tuple[str, str], secrets: Sequence[str], url: str
) -> AsyncIterator[SourceSession]:
    sessions, messages = map(validate_identifier, tables)
    if not await has_table(query, messages, "message_data"):
        raise InvalidInput(
            f"{url} has no table {messages!r} of openai-agents; --tables SESSIONS,MESSAGES names other tables"
        )
    times = dict(await query(f"SELECT session_id, created_at FROM {sessions}", {}))
    has_branches = await has_table(query, "message_structure", "branch_id")
    for (session_id,) in await query(f"SELECT DISTINCT session_id FROM {messages} ORDER BY session_id", {}):
        here = {"session_id": session_id}
        rows = await query(f"SELECT message_data FROM {messages} WHERE session_id = :session_id ORDER BY id", here)
        texts = {"main": [row[0] for row in rows]}
        if has_branches:
            texts = await _read_branch_texts(query, messages, session_id) or texts
        usage = await _read_usage(query, session_id) if has_branches else []
        created = to_timestamp(times.get(session_id), 0.0) or None
        yield decode_session(session_id, texts, secrets, created_at=created, usage=usage)


async def _read_branch_texts(query: Query, messages: str, session_id: str) -> dict[str, list[Any]]:
    texts: dict[str, list[Any]] = {}
    for branch, text in await query(
        f"SELECT s.branch_id, m.message_data FROM message_structure s JOIN {messages} m ON m.id = s.message_id"
        " WHERE s.session_id = :session_id ORDER BY s.sequence_number, s.id",
        {"session_id": session_id},
    ):
        texts.setdefault(branch, []).append(text)
    return texts


async def _read_usage(query: Query, session_id: str) -> list[dict[str, Any]]:
    from standfast.history.compat.openai_agents_branches import USAGE_COLUMNS

    if not await has_table(query, "turn_usage", "user_turn_number"):
        return []
    rows = await query(
        f"SELECT {', '.join(USAGE_COLUMNS)} FROM turn_usage WHERE session_id = :session_id ORDER BY id",
        {"session_id": session_id},
    )
    return [dict(zip(USAGE_COLUMNS, row, strict=True)) for row in rows]


async def _read_redis(url: str, prefix: str, secrets: Sequence[str]) -> AsyncIterator[SourceSession]:
    try:
        from redis.asyncio import Redis
    except ImportError as error:
        raise MissingExtra("redis", "reading sessions from Redis") from error
    client = Redis.from_url(url, decode_responses=True)
    try:
        keys = sorted([key async for key in client.scan_iter(match=f"{prefix}:*:messages", _type="list")])
        for key in keys:
            session_id = key.removeprefix(f"{prefix}:").removesuffix(":messages")
            facts = await client.hgetall(f"{prefix}:{session_id}")
            texts = {"main": await client.lrange(key, 0, -1)}
            created = float(facts.get("created_at") or 0) or None
            yield decode_session(session_id, texts, secrets, created_at=created)
    finally:
        await client.aclose()


def decode_session(
    session_id: str,
    texts: dict[str, list[Any]],
    secrets: Sequence[str],
    *,
    created_at: float | None = None,
    usage: Sequence[dict[str, Any]] = (),
) -> SourceSession:
    """Return a session from the JSON texts of its branches, decrypted if it is encrypted."""
    decoded = {branch: [_decode(text) for text in found] for branch, found in texts.items()}
    unreadable = sum(item is None for items in decoded.values() for item in items)
    notes = (f"{unreadable} unreadable items are left out",) if unreadable else ()
    branches = {branch: [item for item in items if item is not None] for branch, items in decoded.items()}
    encrypted = any(is_envelope(item) for items in branches.values() for item in items)
    if encrypted:
        try:
            branches = {branch: _decrypt(session_id, items, secrets) for branch, items in branches.items()}
        except WrongKey as error:
            return SourceSession(session_id=session_id, encrypted=True, problem=str(error), notes=notes)
    return SourceSession(
        session_id=session_id,
        items=branches.get("main", []),
        created_at=created_at,
        encrypted=encrypted,
        branches=branches if len(branches) > 1 else {},
        usage=list(usage),
        notes=notes,
    )


def _decode(text: Any) -> Item | None:
    try:
        return decode_item(text.encode() if isinstance(text, str) else bytes(text))
    except (ValueError, TypeError):
        return None


def _decrypt(session_id: str, items: Sequence[Item], secrets: Sequence[str]) -> list[Item]:
    if not secrets:
        raise WrongKey("openai-agents encrypted it: pass the key that it used")
    reader = EnvelopeCipher(session_id, secrets)
    return [reader.decrypt(item)[0] if is_envelope(item) else item for item in items]
