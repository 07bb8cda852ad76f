"""A session in a conversation of the OpenAI API."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.ids import validate_name
from standfast.base.items import Item
from standfast.history.openai.client import (
    LazyOpenAIClient,
    OpenAIRequestFailed,
    RequestOutcome,
    translate_openai_errors,
)
from standfast.history.openai.conversation_client import (
    EMPTY_TAIL,
    ConversationBatch,
    ConversationClient,
    prepare_items,
    require_id,
)
from standfast.history.session import SessionABC, SessionSettings, validate_limit
from standfast.lifecycle.scope import run_to_end

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

CANCEL_GRACE = 5.0
"""Seconds that a cancelled change waits for the pending response, to know its outcome."""
_MAX_ATTEMPTS = 100


class OpenAIConversationsSession(SessionABC):
    """A session whose history is a conversation of the OpenAI API. The first read or write creates it unless given.

    A batch of up to 20 items is one request. A longer one takes several: if one of them fails, or the caller is
    cancelled, the items already written are deleted again; if that is not possible,
    :class:`~standfast.history.openai.conversation_client.BatchIncomplete` is raised. Calls on this object run one after
    the other, so only other readers of the conversation can see part of such a batch.

    After a lost response the conversation is read to find out the outcome, so that nothing is written twice.
    """

    def __init__(
        self,
        *,
        conversation_id: str | None = None,
        openai_client: "AsyncOpenAI | None" = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_settings = SessionSettings.coerce(session_settings)
        self._conversation_id = None if conversation_id is None else validate_name("conversation id", conversation_id)
        self._api = LazyOpenAIClient(openai_client, feature="OpenAIConversationsSession")
        self._lock = asyncio.Lock()
        self._last_item_id: str | None = None  # the id of the latest item, None if unknown

    @property
    def session_id(self) -> str:  # type: ignore[override]  # read-only, because the server assigns it
        """The id of the conversation. Raises :class:`InvalidInput` before a read or write has created it."""
        if self._conversation_id is None:
            raise InvalidInput("there is no conversation yet: the first get_items() or add_items() creates it")
        return self._conversation_id

    async def aclose(self) -> None:
        """Close the client if this session created it. A client of the caller stays open."""
        await self._api.aclose()

    # --- the four methods -----------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest ``limit`` items, oldest first. The default is the limit of the settings, else all items."""
        limit = validate_limit(limit)
        limit = self.session_settings.limit if limit is None and self.session_settings else limit
        async with self._lock:
            created = self._conversation_id is None
            conversation = await self._open_conversation()
            return [] if created or limit == 0 else await conversation.list_latest(limit)

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append a batch. It is removed again if it cannot be written completely; see the class for the exception."""
        batch = ConversationBatch(prepare_items(items))
        if batch.items:
            await self._run_exclusive(self._append(batch), on_cancel=batch.stop)

    async def pop_item(self) -> Item | None:
        """Remove and return the latest item; ``None`` if the conversation is empty."""
        return await self._run_exclusive(self._pop())

    async def clear_session(self) -> None:
        """Delete the conversation. The next batch creates a new one, with another id."""
        await self._run_exclusive(self._clear())

    # --- with the lock held ---------------------------------------------------------------------

    async def _run_exclusive(self, work: Coroutine[Any, Any, T], *, on_cancel: Callable[[], object] | None = None) -> T:
        """Run ``work`` with the lock held; after a cancellation give it time to finish."""
        try:
            await self._lock.acquire()
        except BaseException:
            work.close()
            raise
        try:
            return await run_to_end(work, grace=CANCEL_GRACE, on_cancel=on_cancel)
        finally:
            self._lock.release()

    async def _append(self, batch: ConversationBatch) -> None:
        conversation = await self._open_conversation()
        if self._last_item_id is None:
            self._last_item_id = await conversation.get_last_item_id()
        anchor, self._last_item_id = self._last_item_id, None
        try:
            self._last_item_id = await batch.send(conversation, after=anchor)
        except OpenAIRequestFailed as failure:
            if failure.outcome is RequestOutcome.NO_EFFECT:
                self._last_item_id = anchor
            raise

    async def _open_conversation(self) -> ConversationClient:
        client = self._api.get()
        if self._conversation_id is None:
            with translate_openai_errors("creating a conversation", resource=("endpoint", "/conversations")):
                self._conversation_id = require_id(await client.conversations.create())
            self._last_item_id = EMPTY_TAIL
        return ConversationClient(client, self._conversation_id)

    async def _pop(self) -> Item | None:
        if self._conversation_id is None:
            return None
        conversation = ConversationClient(self._api.get(), self._conversation_id)
        for _ in range(_MAX_ATTEMPTS):
            self._last_item_id = None
            latest = await conversation.list_latest(2)
            if latest:
                try:
                    await conversation.delete_item(latest[-1]["id"])
                except NotFound:  # another client has deleted it meanwhile
                    continue
            self._last_item_id = latest[0]["id"] if len(latest) == 2 else EMPTY_TAIL
            return latest[-1] if latest else None
        raise OpenAIRequestFailed(
            "popping an item",
            f"in each of {_MAX_ATTEMPTS} attempts another client deleted the latest item first",
            outcome=RequestOutcome.NO_EFFECT,
        )

    async def _clear(self) -> None:
        if self._conversation_id is None:
            return
        client = self._api.get()
        with (
            suppress(NotFound),
            translate_openai_errors("deleting the conversation", resource=("conversation", self._conversation_id)),
        ):
            await client.conversations.delete(self._conversation_id)
        self._conversation_id = self._last_item_id = None


def get_content_key(item: Item) -> tuple[object, ...]:
    """Return what an item has in common with the same item after the server has stored it.

    The server assigns ids to items, adds fields, and turns a text into a list of parts.
    """
    content = item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = tuple(part.get("text") or str(part) for part in parts)
    kept = ("role", "call_id", "name", "arguments", "output", "encrypted_content")
    return (item.get("type", "message"), texts, *(str(item.get(name)) for name in kept))


async def start_openai_conversations_session(openai_client: "AsyncOpenAI | None" = None) -> str:
    """Create an empty conversation at OpenAI and return its id."""
    client = LazyOpenAIClient(openai_client, feature="OpenAIConversationsSession")
    try:
        return str((await client.get().conversations.create(items=[])).id)
    finally:
        await client.aclose()
