"""Text of conversation items: repair it, show it, extract it for search, and match search terms against it."""

import json
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

# Controls, lone surrogates, what sets the direction of text, and what is not drawn (Unicode's default ignorable code
# points, except the two selectors that emoji are written with, and controls of hieroglyphs).
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


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


def make_visible(text: str, *, multiline: bool = False) -> str:
    """Return ``text`` with escapes such as ``\\u202e`` for what a reader cannot see or a terminal obeys.

    These are control characters, those that set the direction of text, and those that are not drawn. Use it for every
    text of a model, a tool, a worker or a store that people are shown. With ``multiline``, line breaks and tabs stay.
    The escapes are those of JSON: JSON in which they are replaced has the same value.
    """
    if not multiline:
        return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape_char, text)
    lines = text.replace("\r\n", "\n")
    if lines.isascii() and lines.replace("\n", "").replace("\t", "").isprintable():
        return lines
    return _INVISIBLE.sub(lambda found: found[0] if found[0] in "\n\t" else _escape_char(found), lines)


def _escape_char(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f"


def format_arguments(arguments: str) -> str:
    """Return the arguments of a call as a person who decides about it must see them: the JSON value that they have.

    The result is one line without invisible characters. Text that is not JSON is marked as such and quoted.
    """
    try:
        shown = json.dumps(json.loads(arguments), ensure_ascii=False, separators=(",", ":")) if arguments else ""
    except (ValueError, RecursionError):
        shown = f"not JSON: {json.dumps(arguments, ensure_ascii=False)}"
    return make_visible(shown)


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


MAX_ERROR_CHARS = 10_000
MAX_CODE_CHARS = 100


def get_error_code(error: BaseException) -> str:
    """Return the code of any exception. Those of other libraries may have none, or one of another type."""
    try:
        code = getattr(error, "code", None)
    except Exception:  # noqa: BLE001 - it is the program's own property
        code = None
    is_known = isinstance(code, str | int) and not isinstance(code, bool) and code != ""
    return sanitize_text(str(code))[:MAX_CODE_CHARS] if is_known else "error"


def describe_error(error: BaseException) -> str:
    """Return the message of any exception as text that can be stored: its type if it has none, and not too long."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - it is the program's own method
        message = ""
    message = sanitize_text(message) or type(error).__name__
    cut = len(message) - MAX_ERROR_CHARS
    return message if cut <= 0 else f"{message[:MAX_ERROR_CHARS]} [{cut} more characters]"
