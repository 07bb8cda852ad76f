"""The session contract over Redis, on one server and on a cluster."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from redis_server import redis_cluster_url, redis_url
from standfast import RedisSession
from standfast.history.session import SessionSettings
from standfast.store.redis.backend import RedisBackend
from standfast.testing import FakeClock, PlainSessionContract, SessionContract, closing_backend
from standfast.testing.faults import Reopen
from standfast.testing.sessions.contract import StateMachineClauses

__all__ = ["redis_cluster_url", "redis_url"]


class RedisFixtures:
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url

    @pytest.fixture
    def reopen(self, url: str, clock: FakeClock):
        prefix = f"test-{secrets.token_hex(6)}"
        return lambda: closing_backend(RedisBackend.from_url(url, prefix=prefix, clock=clock))


class RedisClusterFixtures(RedisFixtures):
    @pytest.fixture
    def url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url


class TestOverRedis(RedisFixtures, SessionContract):
    examples = 2


class TestOverRedisCluster(RedisClusterFixtures, SessionContract):
    examples = 2


class TestOverKeysOfOpenAIAgents(PlainSessionContract):
    @pytest.fixture
    def reopen(self, redis_url: str) -> Reopen:
        prefix = f"test-{secrets.token_hex(6)}"

        @asynccontextmanager
        async def reopen() -> AsyncIterator[Any]:
            async with Redis.from_url(redis_url) as client:
                yield {"redis_client": client, "key_prefix": prefix}

        return reopen

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> RedisSession:
        return RedisSession(session_id, session_settings=settings, **storage)


@pytest.mark.soak
class TestManyProgramsOverRedis(RedisFixtures, StateMachineClauses):
    examples = 100


@pytest.mark.soak
class TestManyProgramsOverRedisCluster(RedisClusterFixtures, StateMachineClauses):
    examples = 100
