"""The session contract over every other backend, and over decorated sessions."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from damage import damage_sql
from standfast.history.compaction import CompactingSession, Trigger
from standfast.history.encryption.session import EncryptedSession
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.redis.backend import RedisBackend
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, PlainSessionContract, SessionContract, closing_backend

KEY = "a key for tests that nobody else has"


class TestOverPostgresql(SessionContract):
    examples = 8

    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: closing_backend(SqlBackend.from_url(postgres_tables_url, clock=clock))

    @pytest.fixture
    def corrupt(self):
        return damage_sql


class TestOverAioSqlite(SessionContract):
    examples = 8

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        return lambda: closing_backend(SqlBackend.from_url(f"sqlite+aiosqlite:///{tmp_path}/store.db", clock=clock))


class TestSealedOverSqlite(SessionContract):
    examples = 8

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        return lambda: closing_backend(SqliteBackend(tmp_path / "store.db", clock=clock))

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return EncryptedSession(session_id, StoredSession(session_id, place, settings=settings), KEY)


class TestCompactingSealedOverRedis(SessionContract):
    """The trigger is out of reach, so that the history stays what was written; compacting has tests of its own."""

    examples = 5

    @pytest.fixture
    def reopen(self, redis_url: str, clock: FakeClock):
        prefix = f"test-{secrets.token_hex(6)}"
        return lambda: closing_backend(RedisBackend.from_url(redis_url, prefix=prefix, clock=clock))

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        sealed = EncryptedSession(session_id, StoredSession(session_id, place, settings=settings), KEY)
        return CompactingSession(sealed, summarise=lambda items: "short", trigger=Trigger(items=10_000))


class FourMethods:
    """A session of somebody else, which knows nothing of heads and forks."""

    def __init__(self, inner: StoredSession) -> None:
        self.session_id = inner.session_id
        self.session_settings = inner.session_settings
        self.get_items, self.add_items = inner.get_items, inner.add_items
        self.pop_item, self.clear_session = inner.pop_item, inner.clear_session


class TestSealedOverAForeignSession(PlainSessionContract):
    one_writer = True

    """Such a session has no version to write against, so envelopes of two writers may take the same number."""

    test_first_writers_do_not_race = None

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        return lambda: closing_backend(SqliteBackend(tmp_path / "store.db", clock=clock))

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return EncryptedSession(session_id, FourMethods(StoredSession(session_id, place, settings=settings)), KEY)
