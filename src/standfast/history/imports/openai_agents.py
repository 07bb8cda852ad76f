"""Conversations of openai-agents: read them from SQL databases and Redis, and write them to an SQLite file."""

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from standfast.base.errors import AlreadyExists, InvalidInput, MissingExtra, WrongKey
from standfast.base.items import Item, decode_item, encode_item
from standfast.history.compat.branches import BranchRegistry
from standfast.history.compat.turns import Turn, TurnLog, TurnUsage, classify_item, get_tool_name
from standfast.history.encryption.openai_agents import EnvelopeCipher, is_envelope
from standfast.history.encryption.session import EncryptedSession
from standfast.history.imports.sources import Query, SourceSession, has_table, open_database, validate_identifier
from standfast.history.store import Store
from standfast.history.stored_session import StoredSession
from standfast.store.sql.openai_agents_branch import USAGE_COLUMNS
from standfast.store.sql.openai_agents_tables import to_timestamp
from standfast.store.sqlite.files import create_private_file

_BRANCH_TABLES = """
CREATE TABLE IF NOT EXISTS message_structure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_id INTEGER NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    message_type TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    user_turn_number INTEGER,
    branch_turn_number INTEGER,
    tool_name TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
    FOREIGN KEY (message_id) REFERENCES agent_messages(id) ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS turn_usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    user_turn_number INTEGER NOT NULL,
    requests INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    total_tokens INTEGER DEFAULT 0,
    input_tokens_details JSON,
    output_tokens_details JSON,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
    UNIQUE (session_id, branch_id, user_turn_number)
);
"""
DEFAULT_TABLES = ("agent_sessions", "agent_messages")
DEFAULT_PREFIX = "agents:session"
REDIS_SCHEMES = ("redis:", "rediss:", "unix:")


class ExportedBranch(msgspec.Struct, frozen=True):
    """A branch with its turns, and the usage of those for which it was stored."""

    name: str
    turns: list[Turn]
    usage: dict[int, TurnUsage]


async def read_exported_branches(session: StoredSession) -> list[ExportedBranch]:
    """Return the branches of a session, ``main`` first; none if it has no others and no usage."""
    registry = BranchRegistry(session)
    log = await TurnLog.read(session.backend, session.session_id)
    branches = []
    for branch, page in await registry.read_pages():
        turns = branch.decode_turns(page)
        found = {turn.number: log.find_entry(branch.session_id, turn.location) for turn in turns if turn.number}
        usage = {number: entry for number, entry in found.items() if entry is not None}
        branches.append(ExportedBranch(branch.name, turns, usage))
    return branches if len(branches) > 1 or any(branch.usage for branch in branches) else []


def write_branches(file: sqlite3.Connection, session_id: str, branches: Sequence[ExportedBranch]) -> int:
    """Write the items of all branches, those that branches share once, and return how many there are."""
    for statement in _BRANCH_TABLES.split(";\n"):
        file.execute(statement)
    messages: dict[tuple[int, int], int] = {}
    sequence = 0
    for branch in branches:
        for turn in branch.turns:
            for entry in turn.entries:
                place, sequence = (entry.row.tape, entry.row.seq), sequence + 1
                if place not in messages:
                    added = file.execute(
                        "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)",
                        (session_id, encode_item(entry.item).decode()),
                    )
                    messages[place] = added.lastrowid or 0
                file.execute(
                    "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, sequence_number,"
                    " user_turn_number, branch_turn_number, tool_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        session_id,
                        messages[place],
                        branch.name,
                        classify_item(entry.item),
                        sequence,
                        turn.number,
                        turn.number,
                        get_tool_name(entry.item),
                    ),
                )
        for number, usage in branch.usage.items():
            counts = (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
            details = (json.dumps(usage.input_tokens_details), json.dumps(usage.output_tokens_details))
            file.execute(
                "INSERT INTO turn_usage (session_id, branch_id, user_turn_number, requests, input_tokens,"
                " output_tokens, total_tokens, input_tokens_details, output_tokens_details)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (session_id, branch.name, number, *counts, *details),
            )
    return len(messages)


async def read_openai_agents(
    url: str,
    *,
    tables: tuple[str, str] = DEFAULT_TABLES,
    prefix: str = DEFAULT_PREFIX,
    secrets: Sequence[str] = (),
) -> AsyncIterator[SourceSession]:
    """Yield the conversations at ``sqlite:///PATH``, ``redis://...``, ``mongodb://HOST/DATABASE`` or the URL of an
    asynchronous SQLAlchemy engine. In MongoDB, ``tables`` are the collections.

    ``secrets`` are the keys of encrypted sessions. Without the right one, such a session has a ``problem``.
    """
    if url.startswith(REDIS_SCHEMES):
        async for session in _read_redis(url, prefix, secrets):
            yield session
        return
    if url.startswith(("mongodb:", "mongodb+srv:")):
        async for session in _read_mongodb(url, tables, secrets):
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
    client = Redis.from_url(url, decode_responses=True, socket_timeout=None)  # long histories take long
    try:
        for session_id in await list_redis_sessions(client, prefix):
            facts = await client.hgetall(f"{prefix}:{session_id}")
            texts = {"main": await client.lrange(f"{prefix}:{session_id}:messages", 0, -1)}
            created = float(facts.get("created_at") or 0) or None
            yield decode_session(session_id, texts, secrets, created_at=created)
    finally:
        await client.aclose()


async def list_redis_sessions(client: Any, prefix: str) -> list[str]:
    """Return the ids of the sessions that openai-agents has under a prefix."""
    pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix)
    found = [key async for key in client.scan_iter(match=f"{pattern}:*:messages", count=1000, _type="list")]
    texts = {key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key for key in found}
    return sorted(key.removeprefix(f"{prefix}:").removesuffix(":messages") for key in texts)


async def _read_mongodb(url: str, tables: tuple[str, str], secrets: Sequence[str]) -> AsyncIterator[SourceSession]:
    from standfast.history.compat.mongodb import get_texts, select_batches

    try:
        from pymongo import AsyncMongoClient
    except ImportError as error:
        raise MissingExtra("mongodb", "reading sessions from MongoDB") from error
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database("agents")
        sessions, messages = (database[name] for name in tables)
        async for found in sessions.find().sort("session_id", 1):
            batches = messages.find(select_batches(found["session_id"], found)).sort("seq", 1)
            texts = {"main": [text async for batch in batches for text in get_texts(batch.get("message_data"))]}
            created = to_timestamp(found.get("created_at"), 0.0) or None
            yield decode_session(found["session_id"], texts, secrets, created_at=created)


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


_TABLES = """
CREATE TABLE IF NOT EXISTS agent_sessions (
    session_id TEXT PRIMARY KEY,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE IF NOT EXISTS agent_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS idx_agent_messages_session_id ON agent_messages (session_id, id);
"""


async def write_openai_agents_file(
    path: Path, store: Store, session_ids: Sequence[str], *, secrets: Sequence[str] = ()
) -> dict[str, int]:
    """Write the sessions in one transaction and return the number of items of each.

    Branches and usage are written for ``AdvancedSQLiteSession``. A session that the file already has raises
    :class:`AlreadyExists`. Encrypted sessions are encrypted for openai-agents with the same key, the first of
    ``secrets``; without a key they raise :class:`WrongKey`.
    """
    found = {session_id: await _read_texts(store, session_id, secrets) for session_id in session_ids}
    plain = [session_id for session_id in session_ids if not (await store.describe(session_id)).encrypted]
    branches = {session_id: await read_exported_branches(store.session(session_id)) for session_id in plain}
    times = {session_id: await store.describe(session_id) for session_id in session_ids}
    written: dict[str, int] = {}
    create_private_file(str(path))
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(_TABLES)
        for session_id, texts in found.items():
            if file.execute("SELECT 1 FROM agent_sessions WHERE session_id = ?", (session_id,)).fetchone():
                raise AlreadyExists("session", session_id)
            info = times[session_id]
            created, updated = _format_time(info.created_at), _format_time(info.updated_at)
            file.execute("INSERT INTO agent_sessions VALUES (?, ?, ?)", (session_id, created, updated))
            if branches.get(session_id):
                written[session_id] = write_branches(file, session_id, branches[session_id])
                continue
            file.executemany(
                "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)",
                [(session_id, text) for text in texts],
            )
            written[session_id] = len(texts)
    return written


async def _read_texts(store: Store, session_id: str, secrets: Sequence[str]) -> list[str]:
    plain = store.session(session_id)
    if not (await store.describe(session_id)).encrypted:
        return [encode_item(item).decode() for item in await plain.get_items()]
    if not secrets:
        raise WrongKey(f"session {session_id!r} is encrypted: pass its key")
    cipher = EnvelopeCipher(session_id, secrets)
    session = EncryptedSession(session_id, plain, list(secrets)).require_stored_session("export")
    return [
        encode_item(cipher.encrypt(entry.item, written_at=entry.written_at)).decode()
        for entry in await session.read_latest(None)
    ]


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
