"""Requests about the items of a conversation in the OpenAI API: list, append, delete, and batches of any length."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from standfast.base.errors import InvalidItem, NotFound, StoreUnavailable
from standfast.base.item_pairs import get_call_id
from standfast.base.items import Item, decode_item, encode_items
from standfast.base.text import extract_text
from standfast.history.openai.client import (
    OpenAIRequestFailed,
    RequestOutcome,
    request_exactly_once,
    to_input_item,
    translate_openai_errors,
)
from standfast.lifecycle.scope import run_to_end

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MAX_ITEMS_PER_REQUEST = 20
"""The maximum number of items that the API accepts in one request."""
PAGE_SIZE = 100
"""The maximum number of items that the API returns in one response."""
ROLLBACK_TIMEOUT = 30.0
"""Seconds that each step of removing a failed batch may take."""
EMPTY_TAIL = ""
"""Stands for the id of the latest item in an empty conversation."""

# Without these the API leaves out parts that it requires when the items are sent back as input.
INCLUDED_FIELDS: list[Any] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
]
# For these types the API assigns an id if there is none, and rejects an id that is or was in use.
SERVER_ASSIGNED_ID_TYPES = frozenset(
    [
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "compaction",
        "compaction_trigger",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
        "mcp_approval_response",
        "message",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
    ]
)


class BatchIncomplete(StoreUnavailable):
    """A batch failed and could not be removed completely.

    ``remaining_ids`` are the ids of its items that are still in the conversation, oldest first; these are always the
    first ones of the batch. ``uncertain_count`` is the number of items after them that may or may not have arrived.
    """

    code = "batch-incomplete"

    def __init__(
        self, conversation_id: str, *, size: int, remaining_ids: Sequence[str], uncertain_count: int, reason: str
    ) -> None:
        uncertain = f", and {uncertain_count} more may have been written" if uncertain_count else ""
        ids = f" ({', '.join(remaining_ids)})" if remaining_ids else ""
        super().__init__(
            f"{reason}; {len(remaining_ids)} of {size} items remain in conversation {conversation_id!r}{ids}{uncertain}"
        )
        self.conversation_id, self.size = conversation_id, size
        self.remaining_ids, self.uncertain_count = tuple(remaining_ids), uncertain_count


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
        # The client would repeat a request after a lost response, and the server would execute it twice.
        return self.client.with_options(max_retries=0)

    async def list_latest(self, limit: int | None) -> list[Item]:
        """Return the latest items, oldest first."""
        items = await self._list_items(limit=limit, order="desc")
        items.reverse()
        return items

    async def get_last_item_id(self) -> str:
        """Return the id of the latest item, or :data:`EMPTY_TAIL`."""
        latest = await self.list_latest(1)
        return str(latest[0]["id"]) if latest else EMPTY_TAIL

    async def list_after(self, item_id: str) -> list[Item]:
        """Return the items after the one with this id, oldest first."""
        return await self._list_items(limit=None, order="asc", **({"after": item_id} if item_id else {}))

    async def append_items(self, items: list[Item]) -> list[str]:
        """Append up to 20 items in one request, and return their ids."""
        with translate_openai_errors("adding items", resource=("conversation", self.id)):
            response = await self._client_without_retries.conversations.items.create(self.id, items=items)  # type: ignore[arg-type]
            if len(getattr(response, "data", ())) != len(items):
                raise ValueError("it does not contain the new items")
            return [require_id(item) for item in response.data]

    async def delete_item(self, item_id: str) -> None:
        """Delete an item, or raise :class:`NotFound` if it did not exist."""

        async def send() -> bool:
            with translate_openai_errors("deleting an item", resource=("item", item_id)):
                await self._client_without_retries.conversations.items.delete(item_id, conversation_id=self.id)
            return True

        async def find_result() -> bool | None:
            try:
                with translate_openai_errors("retrieving an item", resource=("item", item_id), mutating=False):
                    await self.client.conversations.items.retrieve(item_id, conversation_id=self.id)
            except NotFound:
                return True
            return None

        await request_exactly_once(send, find_result, max_attempts=self.max_attempts)

    async def _list_items(self, *, limit: int | None, **query: Any) -> list[Item]:
        items: list[Item] = []
        with translate_openai_errors("listing items", resource=("conversation", self.id), mutating=False):
            size = PAGE_SIZE if limit is None else min(limit, PAGE_SIZE)
            async for item in self.client.conversations.items.list(
                self.id, limit=size, include=INCLUDED_FIELDS, **query
            ):
                require_id(item)
                items.append(to_input_item(item))
                if len(items) == limit:
                    break
        return items


class ConversationBatch:
    """A batch of any length, sent in chunks and removed again if it cannot be written completely."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.written_ids: list[str] = []
        self.in_flight: list[Item] = []  # sent, with an unknown outcome
        self.stopped = False

    def stop(self) -> None:
        """Stop sending. A request in flight may still succeed; an incomplete batch is removed then."""
        self.stopped = True

    async def send(self, conversation: ConversationClient, *, after: str) -> str:
        """Write the batch after the item ``after``, and return the id of its last item."""
        try:
            for start in range(0, len(self.items), MAX_ITEMS_PER_REQUEST):
                await self._send_chunk(conversation, self.items[start : start + MAX_ITEMS_PER_REQUEST], after)
        except (Exception, asyncio.CancelledError) as error:
            self.stop()
            with suppress(asyncio.CancelledError):  # the caller may be cancelled again during the rollback
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
        """Return the ids of the chunk's items if they are in the conversation; ``None`` if no item was added to it."""
        added = await conversation.list_after(self.written_ids[-1] if self.written_ids else after)
        if not added:
            return None
        start = find_sequence(chunk, added)
        if start is None:
            # Items of another client, or ours in a form that cannot be recognised.
            raise OpenAIRequestFailed(
                "looking for the items", "the conversation has other new items", outcome=RequestOutcome.UNKNOWN
            )
        return [str(item["id"]) for item in added[start : start + len(chunk)]]

    async def _roll_back(self, conversation: ConversationClient, after: str) -> None:
        """Delete the written items, newest first, so that remaining ones are the beginning of the batch."""
        # On an error, `written_ids` still has the items that could not be deleted; the caller reports them.
        with suppress(TimeoutError, StoreUnavailable):
            if self.in_flight and (late_ids := await self._find_late_ids(conversation, after)):
                self.written_ids += late_ids
                self.in_flight = []
            while self.written_ids:
                async with asyncio.timeout(ROLLBACK_TIMEOUT):
                    with suppress(NotFound):
                        await conversation.delete_item(self.written_ids[-1])
                self.written_ids.pop()

    async def _find_late_ids(self, conversation: ConversationClient, after: str) -> list[str] | None:
        """Return the ids of items that arrived although their request was abandoned."""
        with suppress(StoreUnavailable, NotFound, TimeoutError):
            async with asyncio.timeout(ROLLBACK_TIMEOUT):
                return await self._find_arrived_ids(conversation, self.in_flight, after)
        return None


def require_id(resource: object) -> str:
    """Return the id of an object in a response, or raise ``ValueError``."""
    resource_id = getattr(resource, "id", None)
    if not isinstance(resource_id, str) or not resource_id:
        raise ValueError("it contains an object without an id")
    return resource_id


# --- items --------------------------------------------------------------------------------------


def prepare_items(items: object) -> list[Item]:
    """Return copies of the items as the API accepts them, or raise :class:`InvalidItem`.

    Ids are removed where the server assigns them, and kept where the schema requires them. Reasoning items with
    neither an id nor encrypted content are dropped: they carry no information, and the API would reject the batch.
    """
    copies = [decode_item(data) for data in encode_items(items)]
    for index, item in enumerate(copies):
        if not infer_item_type(item):
            raise InvalidItem(f"items[{index}]", "an item needs a type, a role or the id of another item")
    return [_strip_id(item) for item in copies if not _is_empty_reasoning(item)]


def infer_item_type(item: Item) -> str | None:
    """Return the type of an item, which messages and references may omit; ``None`` if it has none."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else None
    return kind if isinstance(kind, str) else None


def find_sequence(sent: Sequence[Item], stored: Sequence[Item]) -> int | None:
    """Return the last index at which ``stored`` contains the ``sent`` items as a run; ``None`` if it does not."""
    sent_keys, stored_keys = ([_make_comparison_key(item) for item in items] for items in (sent, stored))
    for start in range(len(stored_keys) - len(sent_keys), -1, -1):
        if stored_keys[start : start + len(sent_keys)] == sent_keys:
            return start
    return None


def _strip_id(item: Item) -> Item:
    if infer_item_type(item) in SERVER_ASSIGNED_ID_TYPES or item.get("id") is None:
        item.pop("id", None)
    return item


def _is_empty_reasoning(item: Item) -> bool:
    return item.get("type") == "reasoning" and not item.get("id") and not item.get("encrypted_content")


def _make_comparison_key(item: Item) -> tuple[Any, ...]:
    """Return what the server does not change. It adds ids and statuses, and turns a text into a list of parts."""
    return infer_item_type(item), item.get("role"), get_call_id(item), extract_text(item)
