"""Sessions in Redis, with the same constructors as in openai-agents."""

from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from standfast.base.errors import MissingExtra
from standfast.base.ids import validate_name
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.operations import Op, OpResult
from standfast.store.records import Generation, HistoryPage, QuarantinedItem, SessionRecord

try:
    from redis.asyncio import Redis

    from standfast.store.redis.backend import RedisBackend
    from standfast.store.redis.openai_agents_keys import OpenAIAgentsKeys, SessionAdopted
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("redis", "RedisSession") from error

T = TypeVar("T")


class SharedPrefixBackend(RedisBackend):
    """A backend that uses the keys of openai-agents for the sessions under a prefix, unless they are adopted."""

    def __init__(self, client: Any, *, prefix: str, ttl: float | None) -> None:
        validate_name("key prefix", prefix)
        # Braces make openai-agents keep a session in one slot of a cluster. The keys of standfast have their own.
        super().__init__(client, prefix=prefix.replace("{", "").replace("}", ""), ttl=ttl)
        self.openai_agents = OpenAIAgentsKeys(self.keys, prefix, ttl=self.committer.ttl)

    async def get_session(self, session_id: str) -> SessionRecord | None:
        return await self._run(
            session_id,
            lambda: self.openai_agents.get_session(session_id),
            lambda: super(SharedPrefixBackend, self).get_session(session_id),
        )

    async def read(self, session_id: str, **window: Any) -> HistoryPage | None:
        return await self._run(
            session_id,
            lambda: self.openai_agents.read(session_id, **window),
            lambda: super(SharedPrefixBackend, self).read(session_id, **window),
        )

    async def list_generations(self, session_id: str) -> list[Generation]:
        return await super().list_generations(session_id) if await self._is_adopted(session_id) else []

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]:
        return await super().list_quarantined(session_id) if await self._is_adopted(session_id) else []

    async def commit(self, *ops: Op) -> list[OpResult]:
        names = dict.fromkeys(session_id for op in ops if (session_id := getattr(op, "session_id", None)))
        if len(names) != 1:
            for session_id in names:
                if not await self._is_adopted(session_id):
                    self.openai_agents.refuse("a fork")
            return await super().commit(*ops)
        [session_id] = names
        return await self._run(
            session_id,
            lambda: self._commit_shared(session_id, ops),
            lambda: self._commit_adopted(session_id, ops),
        )

    async def _commit_adopted(self, session_id: str, ops: tuple[Op, ...]) -> list[OpResult]:
        done = await super().commit(*ops)
        await self.openai_agents.extend_lock(session_id)
        return done

    async def _commit_shared(self, session_id: str, ops: tuple[Op, ...]) -> list[OpResult]:
        await self.writes.wait_for_abandoned()
        return await self.writes.run_shielded(self.openai_agents.commit(session_id, ops))

    async def _is_adopted(self, session_id: str) -> bool:
        try:
            await self.openai_agents.get_session(session_id)
        except SessionAdopted:
            return True
        return False

    async def _run(self, session_id: str, shared: Callable[[], Awaitable[T]], adopted: Callable[[], Awaitable[T]]) -> T:
        """Do something with a session of openai-agents, or with one of standfast."""
        try:
            return await shared()
        except SessionAdopted:
            return await adopted()


class RedisSession(StoredSession):
    """A session in Redis. The caller owns the client, except with :meth:`from_url`.

    With ``ttl``, all data of the session expires together, that many seconds after the last write. The keys are those
    of openai-agents, until they are adopted: both programs can use the session, and methods for which the keys have no
    place raise :class:`NotAdopted`. In a cluster without a hash tag in the prefix or the id, which openai-agents cannot
    use, they are those of standfast.
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
