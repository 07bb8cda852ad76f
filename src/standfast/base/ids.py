"""Generate ids, validate names that callers choose, and keep the key of the current conversation."""

import secrets
import time
from contextvars import ContextVar

from standfast.base.errors import InvalidInput

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"

MAX_NAME_LENGTH = 255


def new_id(prefix: str) -> str:
    """Return a globally unique id that sorts roughly by creation time, such as ``run_01k9x0...``."""
    number = (time.time_ns() // 1_000_000 << 60) | secrets.randbits(60)
    digits = []
    for _ in range(21):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return f"{prefix}_{''.join(reversed(digits))}"


def validate_name(label: str, name: object) -> str:
    """Return ``name`` if every backend can store it, otherwise raise :class:`InvalidInput`."""
    if not isinstance(name, str):
        raise InvalidInput(f"{label} must be a string, got {type(name).__name__}")
    if not name or len(name) > MAX_NAME_LENGTH:
        raise InvalidInput(f"{label} must have 1 to {MAX_NAME_LENGTH} characters, got {len(name)}")
    if not name.isprintable():
        raise InvalidInput(f"{label} must contain only printable characters, got {name!r}")
    if name != name.strip():
        raise InvalidInput(f"{label} must not begin or end with whitespace, got {name!r}")
    return name


def validate_owner(owner: object) -> str | None:
    """Return ``owner`` if it is ``None`` or every backend can store it, otherwise raise :class:`InvalidInput`."""
    return None if owner is None else validate_name("owner", owner)


current_conversation: ContextVar[str] = ContextVar("standfast_conversation", default="")
"""The key of the current conversation, for resources that are kept per conversation.

Runs set it around each tool call; outside of tool calls it is an empty string.
"""
