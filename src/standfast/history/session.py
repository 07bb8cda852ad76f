"""What a history session is to the rest of the world: four methods, an id and settings."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

from standfast.base.errors import InvalidInput
from standfast.base.items import Item

_MAX_LIMIT = 2**31


@dataclass
class SessionSettings:
    """Defaults of a session. ``limit``: how many of the latest items are read when the call does not say."""

    limit: int | None = None

    def __post_init__(self) -> None:
        validate_limit(self.limit)

    @classmethod
    def coerce(cls, value: "SessionSettings | Mapping[str, Any] | None") -> Self:
        """Settings from an instance, a mapping or nothing; unknown keys are refused."""
        return cls().resolve(value)

    def resolve(self, override: "SessionSettings | Mapping[str, Any] | None") -> Self:
        """A copy in which the values that ``override`` gives replace these."""
        if override is None:
            return replace(self)
        given = override.to_dict() if isinstance(override, SessionSettings) else dict(override)
        unknown = sorted(set(given) - {field.name for field in fields(self)})
        if unknown:
            raise InvalidInput(f"unknown session settings: {', '.join(unknown)}")
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def validate_limit(limit: object) -> int | None:
    """The limit itself when it is ``None`` or not negative, else :class:`InvalidInput`."""
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidInput(f"limit must be a whole number of 0 or more, or None, not {limit!r}")
    return min(limit, _MAX_LIMIT)  # no database counts further


def validate_listing_limit(limit: object) -> int:
    """How many there may be in a listing: all of them when the limit is ``None``."""
    checked = validate_limit(limit)
    return _MAX_LIMIT if checked is None else checked


@runtime_checkable
class Session(Protocol):
    """A conversation's history. Anything with these members is one."""

    session_id: str
    session_settings: SessionSettings | None

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """The latest ``limit`` items, oldest first; without a limit those of the settings, else all."""
        ...

    async def add_items(self, items: list[Item]) -> None:
        """Append one batch: all of it or nothing."""
        ...

    async def pop_item(self) -> Item | None:
        """Take the latest item off the history and return it."""
        ...

    async def clear_session(self) -> None:
        """Erase the history."""
        ...


class SessionABC(ABC):
    """A base for sessions that want the interpreter to check that all four methods are there."""

    session_id: str
    session_settings: SessionSettings | None = None

    @abstractmethod
    async def get_items(self, limit: int | None = None) -> list[Item]: ...

    @abstractmethod
    async def add_items(self, items: list[Item]) -> None: ...

    @abstractmethod
    async def pop_item(self) -> Item | None: ...

    @abstractmethod
    async def clear_session(self) -> None: ...


def accepts_keys(session: Session) -> bool:
    """Whether a batch may be given a key under which it is written once, however often it is sent.

    Sessions around one of another make, whose ``stored`` is ``None``, have the parameter but cannot keep its promise.
    """
    add_items = session.add_items
    return getattr(session, "stored_session", session) is not None and _has_key_parameter(
        getattr(add_items, "__func__", add_items)
    )


@lru_cache(maxsize=64)
def _has_key_parameter(add_items: Any) -> bool:
    return "key" in inspect.signature(add_items).parameters


SessionInputCallback: TypeAlias = Callable[[list[Item], list[Item]], list[Item] | Awaitable[list[Item]]]
"""Given the history and the new input, what the model is shown."""
