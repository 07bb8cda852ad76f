"""Conversation items: plain dicts in the shape of the OpenAI Responses API.

This module knows how an item becomes bytes and text; :mod:`standfast.base.pairing` knows which items need each other.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from standfast.base.errors import InvalidItem

Item: TypeAlias = dict[str, Any]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode_item(item: object, path: str = "item") -> bytes:
    """The item as JSON, or :class:`InvalidItem` with the path of what JSON cannot hold.

    What comes back from :func:`decode_item` equals what went in, except that tuples become lists.
    """
    if not isinstance(item, Mapping):
        raise InvalidItem(path, f"an item must be a JSON object, not {type(item).__name__}")
    try:
        data = _encoder.encode(item)
        # JSON has no NaN, no integer keys and no dates, and the encoder is too polite to say so.
        if _decoder.decode(data) == item:
            return data
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError, RecursionError):
        pass
    try:
        return _encoder.encode(to_plain_json(item, path))
    except (ValueError, OverflowError) as error:  # an integer of thousands of digits
        raise error if isinstance(error, InvalidItem) else InvalidItem(path, str(error)) from None


def decode_item(data: bytes) -> Item:
    """The item in ``data``; ``ValueError`` says why there is none."""
    try:
        item = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(item, dict):
        raise ValueError(f"not a JSON object but {type(item).__name__}")
    return item


def encode_items(items: object) -> list[bytes]:
    """A batch as bytes, in order. Nothing is encoded unless everything can be."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Sequence):
        raise InvalidItem("items", f"expected a list of items, not {type(items).__name__}")
    return [encode_item(item, f"items[{index}]") for index, item in enumerate(items)]


def to_plain_json(value: Any, path: str, depth: int = 0) -> Any:
    """A copy made of JSON's own types, or :class:`InvalidItem` naming the first part that has none."""
    if depth > 200:
        raise InvalidItem(path, "nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise InvalidItem(path, "the text is not valid Unicode (a lone surrogate)")
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


def sanitize_json(value: Any) -> Any:
    """A copy of JSON values with U+FFFD in place of half characters (lone surrogates), which no encoding can hold."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, Mapping):
        return {sanitize_json(key): sanitize_json(part) for key, part in value.items()}
    return [sanitize_json(part) for part in value] if isinstance(value, list | tuple) else value


def sanitize_text(text: str) -> str:
    """The text itself, or one with U+FFFD in place of half characters. Two halves that belong together are one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_TEXT_FIELDS = frozenset(
    [
        "content",
        "text",
        "output",
        "arguments",
        "input",
        "summary",
        "refusal",
        "transcript",
        "name",
        "query",
        "queries",
        "code",
        "result",
    ]
)


def extract_text(item: Item) -> str:
    """What a person would search for in an item: what was said, asked and answered, without ids and pictures."""
    return "\n".join(_iter_strings(item, in_text_field=False))


def _iter_strings(value: Any, in_text_field: bool) -> Iterator[str]:
    if isinstance(value, str):
        if in_text_field and not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key in _TEXT_FIELDS:
                yield from _iter_strings(part, in_text_field=True)
    elif isinstance(value, list):
        for part in value:
            yield from _iter_strings(part, in_text_field)


_WORD = re.compile(r"[^\W_]+")
_MAX_WORD_LENGTH = 64
_MAX_WORD_BYTES = 400_000


def extract_words(text: str) -> list[str]:
    """The distinct words of a text, case folded, as every search index of standfast sees them."""
    found = list(dict.fromkeys(word[:_MAX_WORD_LENGTH] for word in _WORD.findall(text.casefold())))
    if len(found) * _MAX_WORD_LENGTH * 4 <= _MAX_WORD_BYTES:
        return found
    room, kept = _MAX_WORD_BYTES, []
    for word in found:
        room -= len(word.encode())
        if room < 0:
            break
        kept.append(word)
    return kept


def matches_terms(text: str, terms: Sequence[str]) -> bool:
    """Whether every term begins some word of the text."""
    folded = text.casefold()
    if not all(term in folded for term in terms):  # much sooner known than the words are found
        return False
    found = extract_words(text)
    return all(any(word.startswith(term) for word in found) for term in terms)
