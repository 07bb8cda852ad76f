"""Conversation items: plain dicts in the format of the OpenAI Responses API, and their encoding as JSON.

See :mod:`standfast.base.text` for the text of items and :mod:`standfast.base.item_pairs` for calls and their outputs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from standfast.base.errors import InvalidItem

Item: TypeAlias = dict[str, Any]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode_item(item: object, path: str = "item") -> bytes:
    """Encode an item as JSON. Raise :class:`InvalidItem` with the path of the first value that JSON cannot represent.

    :func:`decode_item` returns an equal item, except that tuples become lists.
    """
    if not isinstance(item, (dict, Mapping)):
        raise InvalidItem(path, f"an item must be a JSON object, got {type(item).__name__}")
    try:
        data = _encoder.encode(item)
        # The encoder silently converts NaN, integer keys and dates, so the result is compared with the input.
        if _decoder.decode(data) == item:
            return data
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError, RecursionError):
        pass
    try:
        return _encoder.encode(to_plain_json(item, path))
    except (ValueError, OverflowError) as error:  # an integer of thousands of digits
        raise error if isinstance(error, InvalidItem) else InvalidItem(path, str(error)) from None


def decode_item(data: bytes) -> Item:
    """Decode an item. Raise ``ValueError`` if ``data`` is not a JSON object."""
    try:
        item = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(item, dict):
        raise ValueError(f"expected a JSON object, got {type(item).__name__}")
    return item


def encode_items(items: object) -> list[bytes]:
    """Encode a batch of items in order. Raise :class:`InvalidItem` if any of them cannot be encoded."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, (list, Sequence)):
        raise InvalidItem("items", f"expected a list of items, got {type(items).__name__}")
    return [encode_item(item, f"items[{index}]") for index, item in enumerate(items)]


def to_plain_json(value: Any, path: str, depth: int = 0) -> Any:
    """Return a copy that consists of JSON types only. Raise :class:`InvalidItem` for the first other value."""
    if depth > 200:
        raise InvalidItem(path, "nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise InvalidItem(path, "the text is not valid Unicode: it contains a lone surrogate")
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidItem(path, f"{value} cannot be stored as JSON")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidItem(path, f"the key {key!r} is not a string")
            to_plain_json(key, path)
        return {key: to_plain_json(part, f"{path}.{key}", depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_json(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(value)]
    raise InvalidItem(path, f"{type(value).__name__} objects cannot be stored as JSON")
