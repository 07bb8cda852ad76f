"""Sessions in MongoDB, with the constructors and the documents of openai-agents.

A batch is one document of ``agent_messages``, so that it is written completely or not at all: ``message_data`` is the
list of its items as JSON texts, ``seq`` the number of its first item. The document of the session in ``agent_sessions``
counts the items (``_seq``), and how often the session was cleared (``_generation``); documents of an earlier generation
are not shown. Versions of openai-agents before 0.20 write a document per item, whose ``message_data`` is a single text.
"""

from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from standfast.base.errors import InvalidInput, MissingExtra, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.base.items import Item
from standfast.history.compat.json_items import decode_text, decode_texts, encode_texts
from standfast.history.session import SessionABC, SessionSettings, make_conversation_key, validate_limit
from standfast.lifecycle.scope import run_to_end

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient

T = TypeVar("T")
# pymongo is imported by those who have a client: ASCENDING, DESCENDING and ReturnDocument.AFTER of it.
_ASCENDING, _DESCENDING, _AFTER = 1, -1, True
_GRACE = 5.0  # seconds for a cancelled call to end by itself

# The collections that have their indexes, so that they are created once per client.
_indexed: WeakKeyDictionary[Any, set[tuple[str, ...]]] = WeakKeyDictionary()


class MongoDBSession(SessionABC):
    """A session in MongoDB. The caller owns the client, except with :meth:`from_uri`.

    Sessions of openai-agents in the same collections are the same sessions: both programs can use them in turn. Items
    that cannot be read are skipped, and :meth:`pop_item` removes them.
    """

    def __init__(
        self,
        session_id: str,
        *,
        client: "AsyncMongoClient[Any]",
        database: str = "agents",
        sessions_collection: str = "agent_sessions",
        messages_collection: str = "agent_messages",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = validate_name("session id", session_id)
        self.session_settings = SessionSettings.coerce(session_settings)
        self._client = client
        self._owns_client = False
        self._place = (database, sessions_collection, messages_collection)
        self._sessions = client[database][sessions_collection]
        self._messages = client[database][messages_collection]

    @classmethod
    def from_uri(
        cls,
        session_id: str,
        *,
        uri: str,
        database: str = "agents",
        client_kwargs: dict[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a session with a client of its own, which :meth:`close` closes."""
        try:
            from pymongo import AsyncMongoClient
        except ImportError as error:
            raise MissingExtra("mongodb", "MongoDBSession") from error
        client: AsyncMongoClient[Any] = AsyncMongoClient(uri, **(client_kwargs or {}))
        session = cls(session_id, client=client, database=database, session_settings=session_settings, **kwargs)
        session._owns_client = True
        return session

    @property
    def conversation_key(self) -> str:
        """The key under which tools keep state for this session; sessions of other databases have other keys."""
        return make_conversation_key(" ".join(["mongodb", *self._place]), self.session_id)

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest ``limit`` items, oldest first. The default is the limit of the settings, else all items."""
        wanted = validate_limit(limit)
        if wanted is None and self.session_settings is not None:
            wanted = self.session_settings.limit
        latest = await self._run(self._read_latest(wanted))
        return latest if wanted is None else latest[len(latest) - min(wanted, len(latest)) :]

    async def add_items(self, items: list[Item]) -> None:
        """Append a batch atomically."""
        texts = encode_texts(items)
        if not texts:
            return
        await self._run(self._insert(texts))

    async def pop_item(self) -> Item | None:
        """Remove and return the latest item; ``None`` if the history is empty."""
        return await self._run(self._pop())

    async def clear_session(self) -> None:
        """Erase the history. A batch that is being added at the same time is erased with it, or stays, as a whole."""
        await self._run(self._clear())

    async def ping(self) -> bool:
        """Return True if the server responds."""
        from pymongo.errors import PyMongoError

        try:
            await self._client.admin.command("ping")
        except PyMongoError:
            return False
        return True

    async def close(self) -> None:
        """Close the client if :meth:`from_uri` created it. A client of the caller stays open."""
        if self._owns_client:
            await self._client.close()

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end even if the caller is cancelled: the driver would leave its connections open."""
        from pymongo.errors import DocumentTooLarge, PyMongoError

        try:
            return await run_to_end(work, grace=_GRACE)
        except DocumentTooLarge as error:
            raise InvalidInput(f"MongoDB cannot store the batch in one document: {error}") from error
        except PyMongoError as error:
            raise StoreUnavailable(f"MongoDB, database {self._place[0]!r}: {error}") from error

    async def _read_latest(self, wanted: int | None) -> list[Item]:
        """Return at least the latest ``wanted`` items, if there are as many."""
        latest: list[Item] = []
        async for batch in self._messages.find(await self._select_generation()).sort("seq", _DESCENDING):
            if wanted is not None and len(latest) >= wanted:
                break
            latest = [*decode_texts(self.session_id, get_texts(batch.get("message_data"))), *latest]
        return latest

    async def _insert(self, texts: list[str]) -> None:
        await self._create_indexes()
        session = await self._increment("_seq", len(texts), at_first={"_generation": 0})
        await self._messages.insert_one(
            {
                "session_id": self.session_id,
                "seq": session["_seq"] - len(texts),
                "generation": session.get("_generation", 0),
                "message_data": texts,
            }
        )

    async def _pop(self) -> Item | None:
        while True:
            shown = await self._select_generation()
            batch = await self._messages.find_one({**shown, "message_data": {"$ne": []}}, sort=[("seq", _DESCENDING)])
            if batch is None:
                return None
            # Only if no other client has popped from it meanwhile.
            same = {"_id": batch["_id"], "message_data": batch["message_data"]}
            texts = get_texts(batch.get("message_data"))
            if len(texts) > 1:
                changed = (await self._messages.update_one(same, {"$pop": {"message_data": 1}})).modified_count
            else:
                changed = (await self._messages.delete_one(same)).deleted_count
            if changed and (item := decode_text(texts[-1])) is not None:
                return item

    async def _clear(self) -> None:
        await self._create_indexes()
        session = await self._increment("_generation", 1, at_first={"_seq": 0})
        earlier = [{"generation": {"$lt": session["_generation"]}}, {"generation": {"$exists": False}}]
        await self._messages.delete_many({"session_id": self.session_id, "$or": earlier})

    async def _increment(self, counter: str, by: int, *, at_first: dict[str, int]) -> dict[str, Any]:
        """Increment a counter of the session, which is created if need be, and return its document."""
        from pymongo.errors import DuplicateKeyError

        now = datetime.now(UTC)
        update = {
            "$setOnInsert": {"session_id": self.session_id, "created_at": now, **at_first},
            "$set": {"updated_at": now},
            "$inc": {counter: by},
        }
        while True:
            try:
                session = await self._sessions.find_one_and_update(
                    {"session_id": self.session_id}, update, upsert=True, return_document=_AFTER
                )
            except DuplicateKeyError:  # another first writer was faster
                continue
            return cast("dict[str, Any]", session)

    async def _create_indexes(self) -> None:
        done = _indexed.setdefault(self._client, set())
        if self._place not in done:
            await self._sessions.create_index([("session_id", _ASCENDING)], unique=True)
            await self._messages.create_index(
                [("session_id", _ASCENDING), ("generation", _ASCENDING), ("seq", _ASCENDING)]
            )
            done.add(self._place)

    async def _select_generation(self) -> dict[str, Any]:
        session = await self._sessions.find_one({"session_id": self.session_id})
        return select_batches(self.session_id, session)


def select_batches(session_id: str, session: dict[str, Any] | None) -> dict[str, Any]:
    """Return the filter for the batches of the current generation, given the document of the session."""
    generation = (session or {}).get("_generation", 0)
    return {"session_id": session_id, "generation": generation or {"$in": [0, None]}}


def get_texts(data: Any) -> list[Any]:
    """Return the texts of a document: those of a batch, or the one of an earlier version of openai-agents."""
    return data if isinstance(data, list) else [] if data is None else [data]
