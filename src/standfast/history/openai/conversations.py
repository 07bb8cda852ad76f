"""A history that OpenAI keeps: the Conversations API as a session."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.base.errors import InvalidInput, NotFound, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.base.items import Item
from standfast.history.openai.client import (
    LazyOpenAIClient,
    OpenAIRequestFailed,
    RequestOutcome,
    request_exactly_once,
    to_input_item,
    translate_openai_errors,
)
from standfast.history.openai.conversation_client import find_sequence, prepare_items
from standfast.history.session import SessionABC, SessionSettings, validate_limit
from standfast.lifecycle.cancellation import run_to_end

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

MAX_ITEMS_PER_REQUEST = 20
"""How many items the API takes in one request."""
PAGE_SIZE = 100
"""How many items the API gives in one answer."""
CANCEL_GRACE = 5.0
"""How long a cancelled change waits for the answer that is under way, to know what it did."""
ROLLBACK_TIMEOUT = 30.0
"""How long a failed batch waits for each step of removing what it had already written."""

# Without these the API leaves parts out that it wants back when the items are input again.
INCLUDED_FIELDS: list[Any] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
]
_EMPTY_TAIL = ""  # the tail of an empty conversation
_MAX_ATTEMPTS = 100


class BatchIncomplete(StoreUnavailable):
    """A batch failed and not all of it could be taken back.

    ``remained`` are the ids of its items that are still in the conversation, oldest first: always the first ones
    of the batch. ``unclear`` counts the items after them of which nobody knows whether they arrived.
    """

    code = "batch-incomplete"

    def __init__(
        self, conversation_id: str, *, size: int, remaining_ids: Sequence[str], uncertain_count: int, reason: str
    ) -> None:
        doubt = f", and {uncertain_count} more may be there" if uncertain_count else ""
        names = f" ({', '.join(remaining_ids)})" if remaining_ids else ""
        super().__init__(
            f"{reason}; of {size} items {len(remaining_ids)} remained in conversation {conversation_id!r}{names}{doubt}"
        )
        self.conversation_id, self.size = conversation_id, size
        self.remaining_ids, self.uncertain_count = tuple(remaining_ids), uncertain_count


class OpenAIConversationsSession(SessionABC):
    """A history in a conversation of the OpenAI API, made with the first batch unless one is given.

    A batch of up to 20 items is one request. A longer one is several: if one of them fails, or the caller is
    cancelled, the items already written are deleted again, and :class:`BatchIncomplete` says so if that is not
    possible. Only other readers of the conversation can see such a batch grow; this object's calls take turns.

    A request whose answer is lost is looked up rather than repeated, so that nothing is written twice.
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
        self._last_item_id: str | None = None  # the latest item's id as far as this object knows; None when it does not

    @property
    def session_id(self) -> str:  # type: ignore[override]  # the server's to give, nobody's to set
        """The conversation's id; :class:`InvalidInput` while there is no conversation."""
        if self._conversation_id is None:
            raise InvalidInput("there is no conversation yet: the first add_items() creates it")
        return self._conversation_id

    async def aclose(self) -> None:
        """Close the client if this session made it. A client that was given is its owner's to close."""
        await self._api.aclose()

    # --- the four methods -----------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """The latest ``limit`` items, oldest first; without a limit those of the settings, else all. 0 gives none."""
        limit = validate_limit(limit)
        limit = self.session_settings.limit if limit is None and self.session_settings else limit
        if limit == 0:
            return []
        async with self._lock:
            if self._conversation_id is None:
                return []
            conversation = ConversationClient(self._api.get(), self._conversation_id)
            return await conversation.list_latest(limit)

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append one batch: all of it or nothing, as far as the remote side can promise that."""
        batch = ConversationBatch(prepare_items(items))
        if batch.items:
            await self._run_exclusive(self._append(batch), on_cancel=batch.stop)

    async def pop_item(self) -> Item | None:
        """Take the latest item off the conversation and return it; ``None`` when there is none."""
        return await self._run_exclusive(self._pop())

    async def clear_session(self) -> None:
        """Delete the conversation and forget its id. The next batch starts a new one."""
        await self._run_exclusive(self._clear())

    # --- what they do when it is their turn -----------------------------------------------------

    async def _run_exclusive(self, work: Coroutine[Any, Any, T], *, on_cancel: Callable[[], object] | None = None) -> T:
        try:
            await self._lock.acquire()
        except BaseException:
            work.close()
            raise
        try:
            return await run_to_end(work, grace=CANCEL_GRACE, on_cancel=on_cancel)
        finally:
            self._lock.release()

    async def _append(self, batch: "ConversationBatch") -> None:
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

    async def _open_conversation(self) -> "ConversationClient":
        client = self._api.get()
        if self._conversation_id is None:
            with translate_openai_errors("creating a conversation", resource=("endpoint", "/conversations")):
                made = await client.conversations.create()
                self._conversation_id = require_id(made)
            self._last_item_id = _EMPTY_TAIL
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
                except NotFound:  # somebody else took it first
                    continue
            self._last_item_id = latest[0]["id"] if len(latest) == 2 else _EMPTY_TAIL
            return latest[-1] if latest else None
        raise OpenAIRequestFailed("popping an item", "others were always faster", outcome=RequestOutcome.NO_EFFECT)

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


class ConversationClient:
    """The requests about the items of one conversation."""

    def __init__(self, client: "AsyncOpenAI", conversation_id: str) -> None:
        self.client = client
        self.id = conversation_id

    @property
    def max_attempts(self) -> int:
        return 1 + max(self.client.max_retries, 0)

    @property
    def _client_without_retries(self) -> "AsyncOpenAI":
        # The client would repeat a request whose answer was lost, and nothing would tell the server
        # that it has seen it before.
        return self.client.with_options(max_retries=0)

    async def list_latest(self, limit: int | None) -> list[Item]:
        """The latest items, oldest first."""
        found = await self._list_items(limit=limit, order="desc")
        found.reverse()
        return found

    async def get_last_item_id(self) -> str:
        """The id of the latest item."""
        latest = await self.list_latest(1)
        return str(latest[0]["id"]) if latest else _EMPTY_TAIL

    async def list_after(self, item_id: str) -> list[Item]:
        """The items behind the one with this id, oldest first."""
        return await self._list_items(limit=None, order="asc", **({"after": item_id} if item_id else {}))

    async def append_items(self, items: list[Item]) -> list[str]:
        """Append up to 20 items in one request, and return their ids."""
        with translate_openai_errors("adding items", resource=("conversation", self.id)):
            answer = await self._client_without_retries.conversations.items.create(self.id, items=items)  # type: ignore[arg-type]
            if len(getattr(answer, "data", ())) != len(items):
                raise ValueError("it does not name the new items")
            return [require_id(item) for item in answer.data]

    async def delete_item(self, item_id: str) -> None:
        """Delete one item; :class:`NotFound` when it was gone before."""

        async def ask() -> bool:
            with translate_openai_errors("deleting an item", resource=("item", item_id)):
                await self._client_without_retries.conversations.items.delete(item_id, conversation_id=self.id)
            return True

        async def look() -> bool | None:
            try:
                with translate_openai_errors("looking for an item", resource=("item", item_id), mutating=False):
                    await self.client.conversations.items.retrieve(item_id, conversation_id=self.id)
            except NotFound:
                return True
            return None

        await request_exactly_once(ask, look, max_attempts=self.max_attempts)

    async def _list_items(self, *, limit: int | None, **query: Any) -> list[Item]:
        found: list[Item] = []
        with translate_openai_errors("listing items", resource=("conversation", self.id), mutating=False):
            size = PAGE_SIZE if limit is None else min(limit, PAGE_SIZE)
            async for item in self.client.conversations.items.list(
                self.id, limit=size, include=INCLUDED_FIELDS, **query
            ):
                require_id(item)
                found.append(to_input_item(item))
                if len(found) == limit:
                    break
        return found


class ConversationBatch:
    """Items on their way into a conversation, and out again if they cannot all get in."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.written_ids: list[str] = []
        self.in_flight: list[Item] = []  # sent, and not known to have arrived or not
        self.stopped = False

    def stop(self) -> None:
        """Send nothing more. What is under way may still arrive; the batch is then taken back, unless it is whole."""
        self.stopped = True

    async def send(self, conversation: ConversationClient, *, after: str) -> str:
        """Write the batch behind the item ``after``; return the id of its last item."""
        try:
            for start in range(0, len(self.items), MAX_ITEMS_PER_REQUEST):
                await self._send_chunk(conversation, self.items[start : start + MAX_ITEMS_PER_REQUEST], after)
        except (Exception, asyncio.CancelledError) as error:
            self.stop()
            with suppress(asyncio.CancelledError):  # it may come once more while things are being put right
                await run_to_end(self._roll_back(conversation, after), grace=None)
            if self.written_ids or self.in_flight:
                raise BatchIncomplete(
                    conversation.id,
                    size=len(self.items),
                    remaining_ids=self.written_ids,
                    uncertain_count=len(self.in_flight),
                    reason=str(error) or "the batch was cancelled",
                ) from error
            raise
        return self.written_ids[-1]

    async def _send_chunk(self, conversation: ConversationClient, chunk: list[Item], after: str) -> None:
        if self.stopped:
            raise asyncio.CancelledError
        self.in_flight = chunk
        try:
            ids = await request_exactly_once(
                lambda: conversation.append_items(chunk),
                lambda: self._find_arrived_ids(conversation, chunk, after),
                max_attempts=conversation.max_attempts,
                is_stopped=lambda: self.stopped,
            )
        except (OpenAIRequestFailed, NotFound) as failure:
            if isinstance(failure, NotFound) or failure.outcome is RequestOutcome.NO_EFFECT:
                self.in_flight = []
            raise
        self.written_ids += ids
        self.in_flight = []

    async def _find_arrived_ids(
        self, conversation: ConversationClient, chunk: list[Item], after: str
    ) -> list[str] | None:
        """The ids of the items of ``chunk`` if the conversation has them behind what was there before."""
        there = await conversation.list_after(self.written_ids[-1] if self.written_ids else after)
        if not there:
            return None
        start = find_sequence(chunk, there)
        if start is None:
            # Somebody else's items, or ours in a form that we do not recognise.
            raise OpenAIRequestFailed("looking for the items", "others are there", outcome=RequestOutcome.UNKNOWN)
        return [str(item["id"]) for item in there[start : start + len(chunk)]]

    async def _roll_back(self, conversation: ConversationClient, after: str) -> None:
        """Delete what was written, newest first, so that what has to stay is the beginning of the batch."""
        # What cannot be deleted stays in `written`, which says so.
        with suppress(TimeoutError, StoreUnavailable):
            if self.in_flight and (found := await self._find_late_ids(conversation, after)):
                self.written_ids += found
                self.in_flight = []
            while self.written_ids:
                async with asyncio.timeout(ROLLBACK_TIMEOUT):
                    with suppress(NotFound):
                        await conversation.delete_item(self.written_ids[-1])
                self.written_ids.pop()

    async def _find_late_ids(self, conversation: ConversationClient, after: str) -> list[str] | None:
        """What arrived although its request was given up."""
        with suppress(StoreUnavailable, NotFound, TimeoutError):
            async with asyncio.timeout(ROLLBACK_TIMEOUT):
                return await self._find_arrived_ids(conversation, self.in_flight, after)
        return None


def require_id(answer: object) -> str:
    """The id that the server gave to what it answered with."""
    name = getattr(answer, "id", None)
    if not isinstance(name, str) or not name:
        raise ValueError("something in it has no id")
    return name
