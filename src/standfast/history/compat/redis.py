"""Histories in Redis, with the ecosystem's constructor."""

from typing import Any, Self

from standfast.base.errors import MissingExtra
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession

try:
    from redis.asyncio import Redis

    from standfast.store.redis.backend import RedisBackend
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("redis", "RedisSession") from error


class RedisSession(StoredSession):
    """A conversation in Redis. The client stays the caller's, except with :meth:`from_url`.

    With ``ttl`` (seconds) everything about the conversation expires together, that long after the last write.
    """

    def __init__(
        self,
        session_id: str,
        *,
        redis_client: "Redis",
        key_prefix: str = "agents:session",
        ttl: int | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self._redis_backend = RedisBackend(redis_client, prefix=key_prefix, ttl=ttl)
        self._owned_client: Redis | None = None
        super().__init__(session_id, self._redis_backend, settings=session_settings)

    @classmethod
    def from_url(
        cls,
        session_id: str,
        *,
        url: str,
        redis_kwargs: dict[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A session with a client of its own, which :meth:`close` closes."""
        client = Redis.from_url(url, **(redis_kwargs or {}))
        session = cls(session_id, redis_client=client, session_settings=session_settings, **kwargs)
        session._owned_client = client
        return session

    def open_sibling(self, session_id: str) -> Any:
        """A session with the same client and key prefix."""
        return StoredSession(session_id, self.backend, settings=self.session_settings, owner=self.owner)

    async def ping(self) -> bool:
        """Whether the server answers."""
        return await self._redis_backend.ping()

    async def close(self) -> None:
        """Close the client that :meth:`from_url` made; a client that was handed in is left alone."""
        if self._owned_client is not None:
            await self._owned_client.aclose()
