"""Items as JSON texts, in which openai-agents stores them in MongoDB and Dapr."""

from collections.abc import Iterable, Sequence
from typing import Any

from standfast.base.items import Item, decode_item, encode_items
from standfast.base.log import get_logger

_log = get_logger(__name__)


def encode_texts(items: Sequence[Item]) -> list[str]:
    """Return the JSON text of each item; raise :class:`InvalidItem` if one is not valid."""
    return [data.decode() for data in encode_items(items)]


def decode_text(text: Any) -> Item | None:
    """Return the item of a stored text, or ``None`` if it cannot be read."""
    try:
        return decode_item(text.encode() if isinstance(text, str) else bytes(text))
    except (ValueError, TypeError):
        return None


def decode_texts(session_id: str, texts: Iterable[Any]) -> list[Item]:
    """Return the items of stored texts, without those that cannot be read."""
    items = [decode_text(text) for text in texts]
    readable = [item for item in items if item is not None]
    if len(readable) < len(items):
        _log.warning("session %r: %d items cannot be read and are skipped", session_id, len(items) - len(readable))
    return readable
