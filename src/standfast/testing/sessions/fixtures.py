"""The fixtures of the session contract, and the items and helpers that its clauses share."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import pytest

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.testing.faults import Reopen, StorageFixtures

CorruptSessionRecord: TypeAlias = Callable[[Any, str, int, bytes | None], Awaitable[None]]
CountRows: TypeAlias = Callable[[Any], Awaitable[int]]

UNUSUAL_ITEMS: list[Item] = [
    {"role": "user", "content": "größer 日本 🦑 \x00\u2028 \"quoted\" \\ 'x'; DROP TABLE"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": [1, 2]}', "id": None},
    {"type": "function_call_output", "call_id": "c1", "output": "x" * 10_000},
    {"type": "custom", "n": [0, -1, 1.5, True, None, 2**53], "deep": {"a": {"b": [{"c": []}]}}, "": "empty key"},
    {},
]

INVALID_BATCHES: list[Any] = [
    ["text"],
    [None],
    [["role", "user"]],
    [{"role": "user", "content": float("nan")}],
    [{"role": "user", "content": print}],
    [{1: "not a string"}],
]


class PlainSessionFixtures(StorageFixtures):
    """The fixtures of every session under contract; :mod:`standfast.testing.sessions.contract` describes them."""

    one_writer = False

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        """Return the session ``session_id`` in an opened storage."""
        raise NotImplementedError("a subclass of PlainSessionContract must define open_session()")

    @pytest.fixture
    async def storage(self, reopen: Reopen) -> AsyncIterator[Any]:
        """The open storage."""
        async with reopen() as storage:
            yield storage

    @pytest.fixture
    def session(self, storage: Any) -> Any:
        """A session in the storage."""
        return self.open_session(storage, "s")


class StoredSessionFixtures(PlainSessionFixtures):
    """The additional fixtures of a session over a store."""

    examples = 20

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return StoredSession(session_id, storage, settings=settings)

    def get_backend(self, storage: Any) -> Backend:
        """Return the backend of the storage."""
        backend: Backend = storage
        return backend

    @pytest.fixture
    def corrupt(self) -> CorruptSessionRecord:
        """Damages a record. Skips tests unless it is overridden."""
        pytest.skip("this storage has no way to damage a record")

    @pytest.fixture
    def count_rows(self) -> CountRows:
        """Counts the rows of the storage. Skips tests unless it is overridden."""
        pytest.skip("this storage does not count its rows")


class InterferingBackend:
    """A backend that calls ``interfere`` once, after the first call of one method, to provoke a race."""

    def __init__(self, backend: Backend, *, after_method: str, interfere: Callable[[], Awaitable[None]]) -> None:
        self.backend = backend
        self.after_method = after_method
        self.interfere: Callable[[], Awaitable[None]] | None = interfere

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.backend, name)
        if name != self.after_method:
            return method

        async def call_and_interfere(*args: Any, **kwargs: Any) -> Any:
            result = await method(*args, **kwargs)
            interfere, self.interfere = self.interfere, None
            if interfere is not None:
                await interfere()
            return result

        return call_and_interfere


def user_messages(*contents: object) -> list[Item]:
    """Return one user message for each text."""
    return [{"role": "user", "content": str(content)} for content in contents]


def texts(items: Sequence[Item]) -> list[str]:
    return [item["content"] for item in items]


async def raises_error(awaitable: Awaitable[Any]) -> bool:
    """Return True if the call raises an error. Each storage has its own kinds."""
    try:
        await awaitable
    except Exception:  # noqa: BLE001
        return True
    return False


async def assert_invalid(awaitable: Awaitable[Any], value: object) -> None:
    """Assert that a call with an invalid ``value`` raises :class:`InvalidInput`."""
    try:
        await awaitable
    except InvalidInput:
        return
    pytest.fail(f"{value!r} was accepted")
