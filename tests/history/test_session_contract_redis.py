"""Sessions in Redis under the session contract, on one server and on a cluster."""

import secrets

import pytest

from redis_server import redis_cluster_url, redis_url
from standfast.store.redis.backend import RedisBackend
from standfast.testing import FakeClock, SessionContract, closing_backend

__all__ = ["redis_cluster_url", "redis_url"]


class TestOverRedis(SessionContract):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url

    @pytest.fixture
    def reopen(self, url: str, clock: FakeClock):
        prefix = f"test-{secrets.token_hex(6)}"
        return lambda: closing_backend(RedisBackend.from_url(url, prefix=prefix, clock=clock))


class TestOverRedisCluster(TestOverRedis):
    @pytest.fixture
    def url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url
