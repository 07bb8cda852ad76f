"""Limits of the messages that a worker sends: their weight, and the size of the texts and values in them.

The worker cuts texts and values; code that forges messages does not. The weight estimates the memory that a MessagePack
payload needs, before anything is built from it: one byte can stand for an empty map, which takes 64 bytes as an object.
It is one for each part, and eight more for each array, map, extension and long text,
because these are decoded one by one.
"""

import re
import struct
from typing import Any

import msgspec

from standfast.workers.wire import messages as m

CONTAINER_WEIGHT = 8
_skip_object = msgspec.msgpack.Decoder(msgspec.Raw).decode
_LONG_PART_WEIGHT = 8
_U8, _U16, _U32 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I")
# Numbers, nil, booleans, strings of less than 32 bytes and bytes of no more than 32, which is the size of a digest, as
# many as there are in a row. Possessive, since a greedy repetition keeps a state for each part.
_SMALL_PARTS = re.compile(
    rb"(?:[\x00-\x7f\xa0\xc0\xc2\xc3\xe0-\xff]++|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}|\xc4(?:"
    + b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(33))
    + rb")|"
    + b"|".join(b"%c.{%d}" % (0xA0 + size, size) for size in range(1, 32))
    + rb")*+",
    re.DOTALL,
)
# For each first byte of bytes, strings and extensions: how the length is written, and how many bytes follow it.
_DATA = {
    **{byte: (kind, 0) for byte, kind in zip((0xC4, 0xC5, 0xC6), (_U8, _U16, _U32), strict=True)},
    **{byte: (kind, 1) for byte, kind in zip((0xC7, 0xC8, 0xC9), (_U8, _U16, _U32), strict=True)},
    **{byte: (kind, 0) for byte, kind in zip((0xD9, 0xDA, 0xDB), (_U8, _U16, _U32), strict=True)},
}
_FIXED_EXTENSIONS = {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
_CONTAINERS = {0xDC: (_U16, 1), 0xDD: (_U32, 1), 0xDE: (_U16, 2), 0xDF: (_U32, 2)}


def measure_weight(payload: bytes, *, limit: int) -> int:
    """Return the weight of a payload, or a number above ``limit`` as soon as it is known to be above.

    Raises ValueError for a payload that is not exactly one object.
    """
    weight = position = 0
    end = len(payload)
    try:
        # Parts behind the end of the object would take time without a weight.
        _skip_object(payload)
        while (position := _SMALL_PARTS.match(payload, position).end()) < end and weight <= limit:  # type: ignore[union-attr]
            first = payload[position]
            if first < 0xA0:
                weight += CONTAINER_WEIGHT + (first & 15) * (2 if first < 0x90 else 1)
                position += 1
            elif first in _DATA:
                kind, extra = _DATA[first]
                weight += _LONG_PART_WEIGHT
                position += 1 + kind.size + extra + kind.unpack_from(payload, position + 1)[0]
            elif first in _CONTAINERS:
                kind, factor = _CONTAINERS[first]
                weight += CONTAINER_WEIGHT + factor * kind.unpack_from(payload, position + 1)[0]
                position += 1 + kind.size
            else:
                weight += _LONG_PART_WEIGHT
                position += _FIXED_EXTENSIONS[first]
    except (struct.error, KeyError, msgspec.DecodeError, RecursionError):
        raise ValueError("the message is cut off or not MessagePack") from None
    return weight


# What a worker adds where it has cut a text, and how much it keeps of the text of an exception or a prompt.
_CUT_NOTE = 100
_SHORT_TEXT = 10_000
_SIZED_TYPES = {str, bytes, list, dict}


class MessageLimits:
    """Decides whether a message has a text above ``repr_limit`` or a value above ``value_limit``."""

    def __init__(self, *, repr_limit: int, value_limit: int) -> None:
        self._text_limit = max(repr_limit, _SHORT_TEXT) + _CUT_NOTE
        self._value_limit = value_limit
        self.harmless_size = min(self._text_limit, value_limit)
        """A message of no more bytes than this is within the limits."""

    def are_exceeded_by(self, message: m.Message) -> bool:
        if isinstance(message, m.ResultMessage):
            texts: tuple[str, ...] = (message.repr, *message.warnings)
            return self._has_long_text(texts) or self._has_large_value([message.value, *message.data.values()])
        if isinstance(message, m.ErrorMessage):
            texts = (message.exception_type, message.exception_message, message.traceback, *message.warnings)
            return self._has_long_text(texts)
        if isinstance(message, m.DisplayMessage):
            values = [item for mime, item in message.data.items() if mime != "text/plain"]
            texts = (str(message.data.get("text/plain", "")), message.display_id or "")
            return self._has_long_text(texts, self._value_limit) or self._has_large_value([*values, message.metadata])
        return isinstance(message, m.InputMessage) and self._has_long_text((message.prompt,))

    def _has_long_text(self, texts: tuple[str, ...], limit: int = 0) -> bool:
        return sum(map(len, texts)) > len(texts) * max(limit, self._text_limit)

    def _has_large_value(self, values: list[Any]) -> bool:
        return any(measure_value(value, limit=self._value_limit) > self._value_limit for value in values)


def measure_value(value: Any, *, limit: int) -> int:
    """Return the number of items, characters and bytes of plain data, or a number above ``limit``."""
    total, pending = 0, [[value]]
    while pending and total <= limit:
        items = pending.pop()
        total += len(items)
        for item in [item for item in items if type(item) in _SIZED_TYPES]:
            if isinstance(item, str | bytes):
                total += len(item)
                continue
            total += CONTAINER_WEIGHT
            pending.append([*item, *item.values()] if isinstance(item, dict) else item)
    return total
