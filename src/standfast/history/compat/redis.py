"""Sessions in Redis, with the same constructors as in openai-agents."""

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
    """A session in Redis. The caller owns the client, except with :meth:`from_url`.

    With ``ttl``, all data of the session expires together, that many seconds after the last write.
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
        """Return a session with a client of its own, which :meth:`close` closes."""
        client = Redis.from_url(url, **(redis_kwargs or {}))
        session = cls(session_id, redis_client=client, session_settings=session_settings, **kwargs)
        session._owned_client = client
        return session

    def open_sibling(self, session_id: str) -> Any:
        """Return another session with the same client and key prefix."""
        return StoredSession(session_id, self.backend, settings=self.session_settings, owner=self.owner)

    async def ping(self) -> bool:
        """Return True if the server responds."""
        return await self._redis_backend.ping()

    async def close(self) -> None:
        """Close the client if :meth:`from_url` created it. A client of the caller stays open."""
        if self._owned_client is not None:
            await self._owned_client.aclose()
