"""The session contract over SQLAlchemy, and with wrapped sessions."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from damage import damage_sql
from factories.history import KEY, FourMethodSession
from standfast.history.compaction import CompactingSession, Trigger
from standfast.history.encryption.session import EncryptedSession
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.redis.backend import RedisBackend
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, PlainSessionContract, SessionContract, closing_backend
from standfast.testing.sessions.contract import StateMachineClauses


class PostgresqlFixtures:
    @pytest.fixture
    def reopen(self, postgres_tables_url: str, clock: FakeClock):
        return lambda: closing_backend(SqlBackend.from_url(postgres_tables_url, clock=clock))

    @pytest.fixture
    def corrupt(self):
        return damage_sql


class TestOverPostgresql(PostgresqlFixtures, SessionContract):
    examples = 2


@pytest.mark.soak
class TestManyProgramsOverPostgresql(PostgresqlFixtures, StateMachineClauses):
    examples = 100


class AioSqliteFixtures:
    @pytest.fixture
    def reopen(self, sqlite_tables: Path, clock: FakeClock):
        return lambda: closing_backend(SqlBackend.from_url(f"sqlite+aiosqlite:///{sqlite_tables}", clock=clock))


class TestProgramsOverAioSqlite(AioSqliteFixtures, StateMachineClauses):
    """The statements are those over PostgreSQL, and the store contract is tested on this driver too."""

    examples = 2


@pytest.mark.soak
class TestOverAioSqlite(AioSqliteFixtures, SessionContract):
    examples = 50


class EncryptedSqliteFixtures:
    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        return lambda: closing_backend(SqliteBackend(tmp_path / "store.db", clock=clock))

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return EncryptedSession(session_id, StoredSession(session_id, storage, settings=settings), KEY, strict=False)


class TestEncryptedOverSqlite(EncryptedSqliteFixtures, SessionContract):
    examples = 2


@pytest.mark.soak
class TestManyProgramsOverEncryptedSqlite(EncryptedSqliteFixtures, StateMachineClauses):
    examples = 100


class TestCompactingEncryptedOverRedis(SessionContract):
    """The trigger is never passed, so that the history is not compacted; compaction has tests of its own."""

    examples = 2

    @pytest.fixture
    def reopen(self, redis_url: str, clock: FakeClock):
        prefix = f"test-{secrets.token_hex(6)}"
        return lambda: closing_backend(RedisBackend.from_url(redis_url, prefix=prefix, clock=clock))

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        encrypted = EncryptedSession(
            session_id, StoredSession(session_id, storage, settings=settings), KEY, strict=False
        )
        return CompactingSession(encrypted, summarise=lambda items: "short", trigger=Trigger(items=10_000))


class TestEncryptedOverThirdPartySession(EncryptedSqliteFixtures, PlainSessionContract):
    one_writer = True

    # There is no version to write against, so the envelopes of two first batches may have the same number.
    test_first_writers_do_not_race = None

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        inner = FourMethodSession(StoredSession(session_id, storage, settings=settings))
        return EncryptedSession(session_id, inner, KEY, strict=False)
