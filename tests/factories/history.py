"""Sessions, items and helpers for the tests of histories."""

import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from factories.items import Item, assistant_message, function_call, function_call_output, user_message
from openai_server import OpenAIServer
from standfast import Usage
from standfast.history.encryption.session import EncryptedSession
from standfast.history.openai.compaction import OpenAIResponsesCompactionSession
from standfast.history.session import Session, SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend

KEY = "a key of good length, number one"
OTHER_KEY = "a key of good length, number two"
OPENAI_AGENTS_TABLES = TableNames("agent_sessions", "agent_messages")
REASONING: Item = {"type": "reasoning", "id": "rs_1", "summary": []}


# --- items --------------------------------------------------------------------------------------


def message(text: object, role: str = "user") -> Item:
    return {"role": role, "content": str(text)}


def user_messages(*texts: object) -> list[Item]:
    return [user_message(text) for text in texts]


def numbered_messages(count: int, start: int = 0) -> list[Item]:
    return user_messages(*(f"item {index}" for index in range(start, start + count)))


def call(call_id: str) -> Item:
    return function_call("f", call_id)


def output(call_id: str) -> Item:
    return function_call_output(call_id)


def make_turns(count: int) -> list[Item]:
    return [item for n in range(count) for item in (user_message(f"q{n}"), assistant_message(f"a{n}"))]


# --- sessions -----------------------------------------------------------------------------------


def make_stored_session(session_id: str = "chat", **options: Any) -> StoredSession:
    return StoredSession(session_id, MemoryBackend(), **options)


def make_encrypted_session(backend: Backend, session_id: str = "s", key: Any = KEY, **options: Any) -> EncryptedSession:
    return EncryptedSession(session_id, StoredSession(session_id, backend), key, **options)


class ThirdPartySession:
    """A session as another library would write it: four methods, no transactions. It can fail at each of its steps."""

    def __init__(self, session_id: str = "s", settings: SessionSettings | None = None) -> None:
        self.session_id = session_id
        self.session_settings = settings
        self.items: list[Item] = []
        self.steps: list[str] = []
        self.before: Callable[[str, int], Awaitable[None]] | None = None
        self.after: Callable[[str, int], Awaitable[None]] | None = None

    async def get_items(self, limit: int | None = None) -> list[Item]:
        if limit is None:
            limit = self.session_settings.limit if self.session_settings else None
        return [dict(item) for item in (self.items if limit is None else self.items[max(len(self.items) - limit, 0) :])]

    async def add_items(self, items: list[Item]) -> None:
        await self.step("add", lambda: self.items.extend(json.loads(json.dumps(items))))

    async def pop_item(self) -> Item | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        await self.step("clear", self.items.clear)

    async def step(self, name: str, act: Callable[[], None]) -> None:
        self.steps.append(name)
        count = self.steps.count(name)
        if self.before is not None:
            await self.before(name, count)
        act()
        if self.after is not None:
            await self.after(name, count)


class FourMethodSession:
    """Hides everything but the four methods of a session."""

    def __init__(self, inner: Session) -> None:
        self.session_id, self.session_settings = inner.session_id, inner.session_settings
        self.get_items, self.add_items = inner.get_items, inner.add_items
        self.pop_item, self.clear_session = inner.pop_item, inner.clear_session


class EncryptedFile:
    """A database file with encrypted sessions, and an attacker who edits it without the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = SqliteBackend(path)

    def session(self, session_id: str = "s", key: Any = KEY, **options: Any) -> EncryptedSession:
        return make_encrypted_session(self.backend, session_id, key, **options)

    def execute(self, sql: str, *params: Any) -> list[Any]:
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            with connection:
                return connection.execute(sql, params).fetchall()
        finally:
            connection.close()

    def read_record(self, seq: int, session_id: str = "s") -> bytes:
        data: bytes = self.execute(
            "SELECT data FROM standfast_items WHERE seq = ? AND tape ="
            " (SELECT tape FROM standfast_sessions WHERE session_id = ?)",
            seq,
            session_id,
        )[0][0]
        return data

    def write_record(self, seq: int, data: bytes, session_id: str = "s") -> None:
        self.execute(
            "INSERT OR REPLACE INTO standfast_items (tape, seq, data)"
            " SELECT tape, ?, ? FROM standfast_sessions WHERE session_id = ?",
            seq,
            data,
            session_id,
        )

    async def read_bytes(self) -> bytes:
        """Return the content of the file, after closing it so that the write-ahead log is merged."""
        await self.backend.close()
        self.backend = SqliteBackend(self.path)
        return self.path.read_bytes()


# --- branches -----------------------------------------------------------------------------------


def make_run_result(tokens: int, usage: type = Usage) -> Any:
    """Return an object with the usage of a run, as ``store_run_usage`` reads it."""
    spent = usage(requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=spent))


async def catch_value_error(awaitable: Awaitable[Any]) -> Any:
    """Return the result of a call, or ``ValueError`` if it raises one."""
    try:
        return await awaitable
    except ValueError:
        return ValueError


# --- compaction by the Responses API ------------------------------------------------------------


class ReplaceOnlySession(ThirdPartySession):
    """A session that supports ``head`` and ``replace_items``, but not ``splice_items``."""

    splice_items = None

    def __init__(self) -> None:
        super().__init__()
        self.stored_session = make_stored_session()
        for name in ("get_items", "add_items", "pop_item", "clear_session", "head", "replace_items"):
            setattr(self, name, getattr(self.stored_session, name))


def encrypt(underlying: Any) -> EncryptedSession:
    return EncryptedSession(underlying.session_id, underlying, KEY)


def make_encrypted_stored() -> EncryptedSession:
    return encrypt(make_stored_session())


def make_encrypted_third_party() -> EncryptedSession:
    return encrypt(ThirdPartySession())


UNDERLYING = [
    make_stored_session,
    ThirdPartySession,
    ReplaceOnlySession,
    make_encrypted_stored,
    make_encrypted_third_party,
]
"""Factories of all kinds of sessions that can be compacted."""


def make_compaction_session(server: OpenAIServer, underlying: Any, **options: Any) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession("chat", underlying, client=server.client(), **options)


def read_compaction(items: list[Item]) -> str:
    """Return the content of the only compaction item, which names the items that it replaces."""
    (content,) = [item["encrypted_content"] for item in items if item.get("type") == "compaction"]
    return str(content)
