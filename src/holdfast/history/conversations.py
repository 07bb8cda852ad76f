"""A history that OpenAI keeps: the Conversations API as a session."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.base.errors import InvalidInput, NotFound, StoreUnavailable
from holdfast.base.ids import checked_name
from holdfast.base.items import Item
from holdfast.history.contract import SessionABC, SessionSettings, checked_limit
from holdfast.history.conversation_items import run_of, to_store
from holdfast.history.openai_api import ApiClient, Outcome, RequestFailed, as_input, asking, exactly_once
from holdfast.lifecycle.finishing import finish

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

CHUNK = 20
"""How many items the API takes in one request."""
PAGE = 100
"""How many items the API gives in one answer."""
ANSWER_GRACE = 5.0
"""How long a cancelled change waits for the answer that is under way, to know what it did."""
TAKING_BACK = 30.0
"""How long a failed batch waits for each step of removing what it had already written."""

# Without these the API leaves parts out that it wants back when the items are input again.
WHOLE: list[Any] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
]
_START = ""  # the tail of an empty conversation
_MOST_TRIES = 100


class BatchIncomplete(StoreUnavailable):
    """A batch failed and not all of it could be taken back.

    ``remained`` are the ids of its items that are still in the conversation, oldest first: always the first ones
    of the batch. ``unclear`` counts the items after them of which nobody knows whether they arrived.
    """

    code = "batch-incomplete"

    def __init__(self, conversation_id: str, *, size: int, remained: Sequence[str], unclear: int, reason: str) -> None:
        doubt = f", and {unclear} more may be there" if unclear else ""
        names = f" ({', '.join(remained)})" if remained else ""
        super().__init__(
            f"{reason}; of {size} items {len(remained)} remained in conversation {conversation_id!r}{names}{doubt}"
        )
        self.conversation_id, self.size = conversation_id, size
        self.remained, self.unclear = tuple(remained), unclear


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
        self.session_settings = SessionSettings.of(session_settings)
        self._conversation_id = None if conversation_id is None else checked_name("conversation id", conversation_id)
        self._api = ApiClient(openai_client, why="OpenAIConversationsSession")
        self._turn = asyncio.Lock()
        self._tail: str | None = None  # the latest item's id as far as this object knows; None when it does not

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
        limit = checked_limit(limit)
        limit = self.session_settings.limit if limit is None and self.session_settings else limit
        if limit == 0:
            return []
        async with self._turn:
            if self._conversation_id is None:
                return []
            conversation = Conversation(self._api.get(), self._conversation_id)
            return await conversation.latest(limit)

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append one batch: all of it or nothing, as far as the remote side can promise that."""
        batch = Batch(to_store(items))
        if batch.items:
            await self._change(self._append(batch), on_cancel=batch.stop)

    async def pop_item(self) -> Item | None:
        """Take the latest item off the conversation and return it; ``None`` when there is none."""
        return await self._change(self._pop())

    async def clear_session(self) -> None:
        """Delete the conversation and forget its id. The next batch starts a new one."""
        await self._change(self._clear())

    # --- what they do when it is their turn -----------------------------------------------------

    async def _change(self, work: Coroutine[Any, Any, T], *, on_cancel: Callable[[], object] | None = None) -> T:
        try:
            await self._turn.acquire()
        except BaseException:
            work.close()
            raise
        try:
            return await finish(work, grace=ANSWER_GRACE, on_cancel=on_cancel)
        finally:
            self._turn.release()

    async def _append(self, batch: "Batch") -> None:
        conversation = await self._conversation()
        if self._tail is None:
            self._tail = await conversation.tail()
        anchor, self._tail = self._tail, None
        try:
            self._tail = await batch.send(conversation, after=anchor)
        except RequestFailed as failure:
            if failure.outcome is Outcome.NOTHING:
                self._tail = anchor
            raise

    async def _conversation(self) -> "Conversation":
        client = self._api.get()
        if self._conversation_id is None:
            with asking("creating a conversation", about=("endpoint", "/conversations")):
                made = await client.conversations.create()
                self._conversation_id = identified(made)
            self._tail = _START
        return Conversation(client, self._conversation_id)

    async def _pop(self) -> Item | None:
        if self._conversation_id is None:
            return None
        conversation = Conversation(self._api.get(), self._conversation_id)
        for _ in range(_MOST_TRIES):
            self._tail = None
            latest = await conversation.latest(2)
            if latest:
                try:
                    await conversation.remove(latest[-1]["id"])
                except NotFound:  # somebody else took it first
                    continue
            self._tail = latest[0]["id"] if len(latest) == 2 else _START
            return latest[-1] if latest else None
        raise RequestFailed("popping an item", "others were always faster", outcome=Outcome.NOTHING)

    async def _clear(self) -> None:
        if self._conversation_id is None:
            return
        client = self._api.get()
        with suppress(NotFound), asking("deleting the conversation", about=("conversation", self._conversation_id)):
            await client.conversations.delete(self._conversation_id)
        self._conversation_id = self._tail = None


class Conversation:
    """The requests about the items of one conversation."""

    def __init__(self, client: "AsyncOpenAI", conversation_id: str) -> None:
        self.client = client
        self.id = conversation_id

    @property
    def tries(self) -> int:
        return 1 + max(self.client.max_retries, 0)

    @property
    def _once(self) -> "AsyncOpenAI":
        # The client would repeat a request whose answer was lost, and nothing would tell the server
        # that it has seen it before.
        return self.client.with_options(max_retries=0)

    async def latest(self, limit: int | None) -> list[Item]:
        """The latest items, oldest first."""
        found = await self._listed(limit=limit, order="desc")
        found.reverse()
        return found

    async def tail(self) -> str:
        """The id of the latest item."""
        latest = await self.latest(1)
        return str(latest[0]["id"]) if latest else _START

    async def after(self, item_id: str) -> list[Item]:
        """The items behind the one with this id, oldest first."""
        return await self._listed(limit=None, order="asc", **({"after": item_id} if item_id else {}))

    async def put(self, items: list[Item]) -> list[str]:
        """Append up to 20 items in one request, and return their ids."""
        with asking("adding items", about=("conversation", self.id)):
            answer = await self._once.conversations.items.create(self.id, items=items)  # type: ignore[arg-type]
            if len(getattr(answer, "data", ())) != len(items):
                raise ValueError("it does not name the new items")
            return [identified(item) for item in answer.data]

    async def remove(self, item_id: str) -> None:
        """Delete one item; :class:`NotFound` when it was gone before."""

        async def ask() -> bool:
            with asking("deleting an item", about=("item", item_id)):
                await self._once.conversations.items.delete(item_id, conversation_id=self.id)
            return True

        async def look() -> bool | None:
            try:
                with asking("looking for an item", about=("item", item_id), changes=False):
                    await self.client.conversations.items.retrieve(item_id, conversation_id=self.id)
            except NotFound:
                return True
            return None

        await exactly_once(ask, look, tries=self.tries)

    async def _listed(self, *, limit: int | None, **query: Any) -> list[Item]:
        found: list[Item] = []
        with asking("listing items", about=("conversation", self.id), changes=False):
            size = PAGE if limit is None else min(limit, PAGE)
            async for item in self.client.conversations.items.list(self.id, limit=size, include=WHOLE, **query):
                identified(item)
                found.append(as_input(item))
                if len(found) == limit:
                    break
        return found


class Batch:
    """Items on their way into a conversation, and out again if they cannot all get in."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.written: list[str] = []
        self.under_way: list[Item] = []  # sent, and not known to have arrived or not
        self.stopped = False

    def stop(self) -> None:
        """Send nothing more. What is under way may still arrive; the batch is then taken back, unless it is whole."""
        self.stopped = True

    async def send(self, conversation: Conversation, *, after: str) -> str:
        """Write the batch behind the item ``after``; return the id of its last item."""
        try:
            for start in range(0, len(self.items), CHUNK):
                await self._send(conversation, self.items[start : start + CHUNK], after)
        except (Exception, asyncio.CancelledError) as error:
            self.stop()
            with suppress(asyncio.CancelledError):  # it may come once more while things are being put right
                await finish(self._take_back(conversation, after), grace=None)
            if self.written or self.under_way:
                raise BatchIncomplete(
                    conversation.id,
                    size=len(self.items),
                    remained=self.written,
                    unclear=len(self.under_way),
                    reason=str(error) or "the batch was cancelled",
                ) from error
            raise
        return self.written[-1]

    async def _send(self, conversation: Conversation, chunk: list[Item], after: str) -> None:
        if self.stopped:
            raise asyncio.CancelledError
        self.under_way = chunk
        try:
            ids = await exactly_once(
                lambda: conversation.put(chunk),
                lambda: self._arrived(conversation, chunk, after),
                tries=conversation.tries,
                stopped=lambda: self.stopped,
            )
        except (RequestFailed, NotFound) as failure:
            if isinstance(failure, NotFound) or failure.outcome is Outcome.NOTHING:
                self.under_way = []
            raise
        self.written += ids
        self.under_way = []

    async def _arrived(self, conversation: Conversation, chunk: list[Item], after: str) -> list[str] | None:
        """The ids of the items of ``chunk`` if the conversation has them behind what was there before."""
        there = await conversation.after(self.written[-1] if self.written else after)
        if not there:
            return None
        start = run_of(chunk, there)
        if start is None:
            # Somebody else's items, or ours in a form that we do not recognise.
            raise RequestFailed("looking for the items", "others are there", outcome=Outcome.UNKNOWN)
        return [str(item["id"]) for item in there[start : start + len(chunk)]]

    async def _take_back(self, conversation: Conversation, after: str) -> None:
        """Delete what was written, newest first, so that what has to stay is the beginning of the batch."""
        # What cannot be deleted stays in `written`, which says so.
        with suppress(TimeoutError, StoreUnavailable):
            if self.under_way and (found := await self._late(conversation, after)):
                self.written += found
                self.under_way = []
            while self.written:
                async with asyncio.timeout(TAKING_BACK):
                    with suppress(NotFound):
                        await conversation.remove(self.written[-1])
                self.written.pop()

    async def _late(self, conversation: Conversation, after: str) -> list[str] | None:
        """What arrived although its request was given up."""
        with suppress(StoreUnavailable, NotFound, TimeoutError):
            async with asyncio.timeout(TAKING_BACK):
                return await self._arrived(conversation, self.under_way, after)
        return None


def identified(answer: object) -> str:
    """The id that the server gave to what it answered with."""
    name = getattr(answer, "id", None)
    if not isinstance(name, str) or not name:
        raise ValueError("something in it has no id")
    return name
