"""What a session over a store supplies to its suite beyond what a plain one does."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.contract import Backend
from standfast.testing.sessions.plain import PlainSessionFixtures

CorruptSessionRecord: TypeAlias = Callable[[Any, str, int, bytes | None], Awaitable[None]]
CountRows: TypeAlias = Callable[[Any], Awaitable[int]]


class StoredSessionFixtures(PlainSessionFixtures):
    """The fixtures and flags that :class:`~standfast.testing.SessionContract` describes."""

    examples = 20

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return StoredSession(session_id, place, settings=settings)

    def get_backend(self, place: Any) -> Backend:
        backend: Backend = place
        return backend

    @pytest.fixture
    def corrupt(self) -> CorruptSessionRecord:
        pytest.skip("this storage has no way to damage a record")

    @pytest.fixture
    def count_rows(self) -> CountRows:
        pytest.skip("this storage does not count its rows")


class InterferingBackend:
    """A backend that does something of its own accord after the first call of one method: a race, on purpose."""

    def __init__(self, backend: Backend, *, after_method: str, interfere: Callable[[], Awaitable[None]]) -> None:
        self.backend = backend
        self.after_method = after_method
        self.interfere: Callable[[], Awaitable[None]] | None = interfere

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if name != self.after_method:
            return found

        async def called(*args: Any, **kwargs: Any) -> Any:
            answer = await found(*args, **kwargs)
            meddle, self.interfere = self.interfere, None
            if meddle is not None:
                await meddle()
            return answer

        return called
