"""The session contract on a branch, be it main or another."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factories.history import OPENAI_AGENTS_TABLES
from factories.items import user_message
from standfast import AdvancedSQLiteSession, InvalidInput, NotFound
from standfast.history.session import SessionSettings
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import FakeClock, PlainSessionContract, SessionContract, closing_backend


class InAFile:
    """Sessions in one file, which are closed with their storage."""

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        @asynccontextmanager
        async def reopen():
            async with closing_backend(
                SqliteBackend(tmp_path / "store.db", names=OPENAI_AGENTS_TABLES, clock=clock)
            ) as backend:
                storage = SimpleNamespace(backend=backend, sessions=[], clock=clock)
                yield storage
                for session in storage.sessions:
                    session.close()

        return reopen

    def get_backend(self, storage: Any) -> SqliteBackend:
        return storage.backend

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        session = AdvancedSQLiteSession(session_id=session_id, db_path=storage.backend.path, session_settings=settings)
        session.inner.backend.clock = storage.clock
        storage.sessions.append(session)
        return session


class TestMain(InAFile, SessionContract):
    """The branch that every session begins with."""

    examples = 3


class OnABranch:
    """A session that goes to a branch of its own before anything is done with it."""

    def __init__(self, session: AdvancedSQLiteSession) -> None:
        self.session, self.session_id = session, session.session_id
        self.going = asyncio.Lock()  # what one task writes to main must not find the other branch current

    @property
    def session_settings(self) -> SessionSettings | None:
        return self.session.session_settings

    async def there(self) -> AdvancedSQLiteSession:
        async with self.going:
            try:
                await self.session.head()
            except NotFound:  # somebody else cleared the session
                await self.session.switch_to_branch("main")
            while self.session.inner.name == "main":
                try:
                    await self.session.switch_to_branch("other")
                except InvalidInput:
                    await self.session.add_items([user_message("in main")])
                    try:
                        await self.session.create_branch_from_turn(1, "other")
                    except InvalidInput:
                        continue  # another object was faster
        return self.session

    async def get_items(self, limit: int | None = None) -> list[Any]:
        found: list[Any] = await self.do(lambda session: session.get_items(limit))
        return found

    async def add_items(self, items: list[Any]) -> None:
        await self.do(lambda session: session.add_items(items))

    async def pop_item(self) -> Any:
        return await self.do(lambda session: session.pop_item())

    async def do(self, what: Callable[[AdvancedSQLiteSession], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await what(await self.there())
            except NotFound:
                continue  # cleared since the look, perhaps by a caller that was cancelled

    async def clear_session(self) -> None:
        await self.session.clear_session()


class TestAnotherBranch(InAFile, PlainSessionContract):
    """What is current behaves as any session does, also when several write at once."""

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return OnABranch(super().open_session(storage, session_id, settings=settings))
