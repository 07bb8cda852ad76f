"""The session protocol: four methods, an id and settings. Everything that reads or writes a history uses it."""

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast, runtime_checkable

from standfast.base.errors import HistoryMoved, InvalidInput
from standfast.base.items import Item

_MAX_LIMIT = 2**31


@dataclass
class SessionSettings:
    """Defaults of a session. ``limit`` is the number of latest items that are read when the call passes no limit."""

    limit: int | None = None

    def __post_init__(self) -> None:
        validate_limit(self.limit)

    @classmethod
    def coerce(cls, value: "SessionSettings | Mapping[str, Any] | None") -> Self:
        """Return settings made from an instance, a mapping or ``None``. Unknown keys raise :class:`InvalidInput`."""
        return cls().resolve(value)

    def resolve(self, override: "SessionSettings | Mapping[str, Any] | None") -> Self:
        """Return a copy in which the values set in ``override`` replace these."""
        if override is None:
            return replace(self)
        values = override.to_dict() if isinstance(override, SessionSettings) else dict(override)
        unknown = sorted(set(values) - {field.name for field in fields(self)})
        if unknown:
            raise InvalidInput(f"unknown session settings: {', '.join(unknown)}")
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def validate_limit(limit: object) -> int | None:
    """Return the limit if it is ``None`` or not negative; otherwise raise :class:`InvalidInput`."""
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidInput(f"limit must be an integer >= 0 or None, got {limit!r}")
    return min(limit, _MAX_LIMIT)  # larger values overflow the integers of some databases


def validate_listing_limit(limit: object) -> int:
    """Return the maximum length of a listing. ``None`` means no limit."""
    checked = validate_limit(limit)
    return _MAX_LIMIT if checked is None else checked


@runtime_checkable
class Session(Protocol):
    """A session: the history of one conversation. Any object with these members is one."""

    session_id: str
    session_settings: SessionSettings | None

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest ``limit`` items, oldest first. The default is the limit of the settings, else all items."""
        ...

    async def add_items(self, items: list[Item]) -> None:
        """Append a batch atomically."""
        ...

    async def pop_item(self) -> Item | None:
        """Remove and return the latest item; ``None`` if the history is empty."""
        ...

    async def clear_session(self) -> None:
        """Erase the history."""
        ...


class SessionABC(ABC):
    """Abstract base class for sessions. It cannot be instantiated while one of the four methods is missing."""

    session_id: str
    session_settings: SessionSettings | None = None

    @abstractmethod
    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the items, or the latest ``limit`` of them, oldest first."""

    @abstractmethod
    async def add_items(self, items: list[Item]) -> None:
        """Append a batch of items."""

    @abstractmethod
    async def pop_item(self) -> Item | None:
        """Remove the latest item and return it, or None if the session is empty."""

    @abstractmethod
    async def clear_session(self) -> None:
        """Remove all items."""


SessionInputCallback: TypeAlias = Callable[[list[Item], list[Item]], list[Item] | Awaitable[list[Item]]]
"""Takes the history and the new input, and returns the items that are sent to the model."""


_run_context: ContextVar[Any] = ContextVar("standfast_session_context", default=None)


class use_run_context:  # noqa: N801 - used like a function. A generator would change the exceptions of the block
    """Inside the block, sessions whose methods take ``wrapper`` get this context. ``None`` changes nothing."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _run_context.set(_run_context.get() if self._context is None else self._context)

    def __exit__(self, *_: object) -> None:
        _run_context.reset(self._token)


M = TypeVar("M", bound=Callable[..., Any])


def with_run_context(method: M) -> M:
    """Return a method of a session with the context of the current run as its ``wrapper``, if it takes one."""
    context = _run_context.get()
    if context is None or not _has_wrapper_parameter(getattr(method, "__func__", method)):
        return method
    return cast("M", partial(method, wrapper=context))


def find_session_id(session: object) -> str | None:
    """Return the id of the session; ``None`` if it has none yet, because a provider assigns it on first use."""
    try:
        return getattr(session, "session_id", None)
    except Exception:  # noqa: BLE001 - sessions of other libraries raise errors of their own
        return None


def get_conversation_key(session: object, session_id: str) -> str:
    """Return the key under which tools keep state for a session: its id, and the store or class that it belongs to.

    A session of another library may have an attribute ``conversation_key``, to distinguish equal ids of two stores.
    """
    key = getattr(session, "conversation_key", None)
    return key if isinstance(key, str) else make_conversation_key(type(session).__qualname__, session_id)


def make_conversation_key(location: str, session_id: str) -> str:
    """Return a key that is the same wherever the session with this id is opened, and different in other stores."""
    return f"{hashlib.sha256(location.encode()).hexdigest()[:12]}:{session_id}"


def accepts_keys(session: Session) -> bool:
    """Return True if ``add_items`` takes an idempotency key and guarantees that a keyed batch is written once.

    A wrapper around a third-party session has the parameter but cannot give the guarantee; its ``stored_session`` is
    ``None``.
    """
    add_items = session.add_items
    return getattr(session, "stored_session", session) is not None and _has_key_parameter(
        getattr(add_items, "__func__", add_items)
    )


@lru_cache(maxsize=64)
def _has_key_parameter(add_items: Any) -> bool:
    return "key" in inspect.signature(add_items).parameters


@lru_cache(maxsize=256)
def _has_wrapper_parameter(method: Any) -> bool:
    return "wrapper" in inspect.signature(method).parameters


def make_contention_error(session_id: str, attempts: int) -> HistoryMoved:
    """Return the error for a change that lost the race against other writers in every attempt."""
    error = HistoryMoved(session_id, expected=None, found=None)
    error.args = (
        f"session {session_id!r}: gave up after {attempts} attempts because other writers kept changing the history."
        " Nothing was written; retry later",
    )
    return error
