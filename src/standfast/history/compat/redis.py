"""Sessions in Redis, with the same constructors as in openai-agents."""

from contextlib import suppress
from typing import Any, Self

from standfast.base.errors import HistoryMoved, MissingExtra
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.operations import Op, OpResult, Splice
from standfast.store.records import HistoryPage, SessionRecord

try:
    from redis.asyncio import Redis

    from standfast.store.redis.backend import RedisBackend
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("redis", "RedisSession") from error


class SharedPrefixBackend(RedisBackend):
    """A backend that takes over the sessions of openai-agents under the same key prefix, when they are first used.

    openai-agents stores the items of a session as JSON texts in the list ``prefix:ID:messages``. They are copied once,
    in one commit, and the list stays as it is. ``prefix:ID:standfast`` marks that this was done, so that a session that
    is deleted here is not copied again.
    """

    def __init__(self, client: Any, *, prefix: str, ttl: float | None) -> None:
        super().__init__(client, prefix=prefix, ttl=ttl)
        self._client, self._prefix, self._checked_ids = client, prefix, set[str]()

    async def get_session(self, session_id: str) -> SessionRecord | None:
        record = await super().get_session(session_id)
        if record is None and await self._take_over(session_id):
            record = await super().get_session(session_id)
        return record

    async def read(self, session_id: str, **window: Any) -> HistoryPage | None:
        page = await super().read(session_id, **window)
        if page is None and await self._take_over(session_id):
            page = await super().read(session_id, **window)
        return page

    async def commit(self, *ops: Op) -> list[OpResult]:
        for op in ops:
            if isinstance(op, Splice):
                await self._take_over(op.session_id)
        return await super().commit(*ops)

    async def _take_over(self, session_id: str) -> bool:
        """Copy the session of openai-agents, if it has one that was not copied before. Return whether it has."""
        if session_id in self._checked_ids:
            return False
        key, marker = f"{self._prefix}:{session_id}:messages", f"{self._prefix}:{session_id}:standfast"
        found = await self._client.type(key) in ("list", b"list") and not await self._client.exists(marker)
        if found:
            texts = [text.encode() if isinstance(text, str) else text for text in await self._client.lrange(key, 0, -1)]
            if texts and await super().get_session(session_id) is None:
                with suppress(HistoryMoved):  # another process was faster
                    await super().commit(Splice(session_id=session_id, add=tuple(texts), expected=0))
            await self._client.set(marker, "copied from openai-agents")
        self._checked_ids.add(session_id)
        return found


class RedisSession(StoredSession):
    """A session in Redis. The caller owns the client, except with :meth:`from_url`.

    With ``ttl``, all data of the session expires together, that many seconds after the last write. A session that
    openai-agents stored under the same prefix is copied on first use.
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
        self._redis_backend = SharedPrefixBackend(redis_client, prefix=key_prefix, ttl=ttl)
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
