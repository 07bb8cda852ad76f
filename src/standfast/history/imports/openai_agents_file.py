"""Write sessions to an SQLite file in the format of openai-agents."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from standfast.base.errors import AlreadyExists, WrongKey
from standfast.base.items import encode_item
from standfast.history.encryption.openai_agents import EnvelopeCipher
from standfast.history.encryption.session import EncryptedSession
from standfast.history.store import Store

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

    A session that the file already has raises :class:`AlreadyExists`. Encrypted sessions are encrypted for
    openai-agents with the same key, the first of ``secrets``; without a key they raise :class:`WrongKey`.
    """
    found = {session_id: await _read_texts(store, session_id, secrets) for session_id in session_ids}
    times = {session_id: await store.describe(session_id) for session_id in session_ids}
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(_TABLES)
        for session_id, texts in found.items():
            if file.execute("SELECT 1 FROM agent_sessions WHERE session_id = ?", (session_id,)).fetchone():
                raise AlreadyExists("session", session_id)
            info = times[session_id]
            created, updated = _format_time(info.created_at), _format_time(info.updated_at)
            file.execute("INSERT INTO agent_sessions VALUES (?, ?, ?)", (session_id, created, updated))
            file.executemany(
                "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)",
                [(session_id, text) for text in texts],
            )
    return {session_id: len(texts) for session_id, texts in found.items()}


async def _read_texts(store: Store, session_id: str, secrets: Sequence[str]) -> list[str]:
    plain = store.session(session_id)
    if not (await store.describe(session_id)).encrypted:
        return [encode_item(item).decode() for item in await plain.get_items()]
    if not secrets:
        raise WrongKey(f"session {session_id!r} is encrypted: pass its key")
    cipher = EnvelopeCipher(session_id, secrets)
    items = await EncryptedSession(session_id, plain, list(secrets)).get_items()
    return [encode_item(cipher.encrypt(item)).decode() for item in items]


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
