"""What the Conversations API wants of an item, and how to know an item again that it has stored."""

from collections.abc import Sequence
from typing import Any

from standfast.base.errors import InvalidItem
from standfast.base.items import Item, decode_item, encode_items, extract_text
from standfast.base.pairing import get_call_id

# The API names these itself when they come without an id, and refuses an id that is taken or was another's.
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


def prepare_items(items: object) -> list[Item]:
    """The batch as it is sent, or :class:`InvalidItem` before anything was.

    Ids go where the server gives its own and stay where the schema wants them. A reasoning item with neither
    an id nor encrypted content is left out: it tells nobody anything, and the API refuses a batch that has one.
    """
    copies = [decode_item(data) for data in encode_items(items)]
    for index, item in enumerate(copies):
        if not infer_item_type(item):
            raise InvalidItem(f"items[{index}]", "an item has a type, a role or the id of another item")
    return [_strip_id(item) for item in copies if not _is_empty_reasoning(item)]


def infer_item_type(item: Item) -> str | None:
    """The type of an item; messages and references may leave it out."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else None
    return kind if isinstance(kind, str) else None


def find_sequence(sent: Sequence[Item], stored: Sequence[Item]) -> int | None:
    """Where in ``stored`` the items that were ``sent`` stand, one after the other; ``None`` if nowhere."""
    wanted, there = [_make_comparison_key(item) for item in sent], [_make_comparison_key(item) for item in stored]
    for start in range(len(there) - len(wanted), -1, -1):
        if there[start : start + len(wanted)] == wanted:
            return start
    return None


def _strip_id(item: Item) -> Item:
    if infer_item_type(item) in SERVER_ASSIGNED_ID_TYPES or item.get("id") is None:
        item.pop("id", None)
    return item


def _is_empty_reasoning(item: Item) -> bool:
    return item.get("type") == "reasoning" and not item.get("id") and not item.get("encrypted_content")


def _make_comparison_key(item: Item) -> tuple[Any, ...]:
    """What the server leaves as it was: it adds ids and states, and spells a message's text as a list of parts."""
    return infer_item_type(item), item.get("role"), get_call_id(item), extract_text(item)
