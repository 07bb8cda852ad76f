"""The session contract over Redis, on one server and on a cluster."""

import secrets

import pytest

from redis_server import redis_cluster_url, redis_url
from standfast.store.redis.backend import RedisBackend
from standfast.testing import FakeClock, SessionContract, closing_backend
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
    examples = 5


class TestOverRedisCluster(RedisClusterFixtures, SessionContract):
    examples = 3


@pytest.mark.soak
class TestManyProgramsOverRedis(RedisFixtures, StateMachineClauses):
    examples = 100


@pytest.mark.soak
class TestManyProgramsOverRedisCluster(RedisClusterFixtures, StateMachineClauses):
    examples = 100
