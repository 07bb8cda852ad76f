"""Text of conversation items: repair it, extract it for search, and match search terms against it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
_WORD = re.compile(r"[^\W_]+")
_MAX_WORD_LENGTH = 64
_MAX_WORD_BYTES = 400_000


def sanitize_text(text: str) -> str:
    """Return ``text`` with U+FFFD in place of lone surrogates, which no encoding can represent.

    Two surrogates that form a pair become the character they stand for.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def sanitize_json(value: Any) -> Any:
    """Return a copy of a JSON value in which :func:`sanitize_text` was applied to every string."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, Mapping):
        return {sanitize_json(key): sanitize_json(part) for key, part in value.items()}
    return [sanitize_json(part) for part in value] if isinstance(value, list | tuple) else value


def extract_text(item: Mapping[str, Any]) -> str:
    """Return the searchable text of an item: messages, arguments and outputs, without ids and data URLs."""
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


def extract_words(text: str) -> list[str]:
    """Return the distinct words of ``text``, case folded, in order. All search indexes use this definition of a word.

    Words are cut after 64 characters, and the list ends before it exceeds 400,000 bytes.
    """
    words = list(dict.fromkeys(word[:_MAX_WORD_LENGTH] for word in _WORD.findall(text.casefold())))
    if len(words) * _MAX_WORD_LENGTH * 4 <= _MAX_WORD_BYTES:
        return words
    available, result = _MAX_WORD_BYTES, []
    for word in words:
        available -= len(word.encode())
        if available < 0:
            break
        result.append(word)
    return result


def matches_terms(text: str, terms: Sequence[str]) -> bool:
    """Return True if every term is a prefix of some word of ``text``."""
    folded = text.casefold()
    if not all(term in folded for term in terms):  # much cheaper than splitting the text into words
        return False
    words = extract_words(text)
    return all(any(word.startswith(term) for word in words) for term in terms)
