"""The session contract on a branch: main and another one."""

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


class AdvancedSqliteFixtures:
    """Sessions in one file, which are closed with the storage."""

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


class TestMain(AdvancedSqliteFixtures, SessionContract):
    """The initial branch."""

    examples = 3


class BranchSession:
    """A session that creates or switches to the branch ``other`` before every call."""

    def __init__(self, session: AdvancedSQLiteSession) -> None:
        self.session, self.session_id = session, session.session_id
        self.switch_lock = asyncio.Lock()  # while one task writes to main, no other may switch

    @property
    def session_settings(self) -> SessionSettings | None:
        return self.session.session_settings

    async def switch(self) -> AdvancedSQLiteSession:
        async with self.switch_lock:
            try:
                await self.session.head()
            except NotFound:  # another object has cleared the session
                await self.session.switch_to_branch("main")
            while self.session.inner.name == "main":
                try:
                    await self.session.switch_to_branch("other")
                except InvalidInput:
                    await self.session.add_items([user_message("in main")])
                    try:
                        await self.session.create_branch_from_turn(1, "other")
                    except InvalidInput:
                        continue  # another object has created it
        return self.session

    async def get_items(self, limit: int | None = None) -> list[Any]:
        items: list[Any] = await self.call(lambda session: session.get_items(limit))
        return items

    async def add_items(self, items: list[Any]) -> None:
        await self.call(lambda session: session.add_items(items))

    async def pop_item(self) -> Any:
        return await self.call(lambda session: session.pop_item())

    async def call(self, method: Callable[[AdvancedSQLiteSession], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await method(await self.switch())
            except NotFound:
                continue  # cleared since the check, perhaps by a cancelled call

    async def clear_session(self) -> None:
        await self.session.clear_session()


class TestAnotherBranch(AdvancedSqliteFixtures, PlainSessionContract):
    """Another branch behaves as any session, also with concurrent writers."""

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        return BranchSession(super().open_session(storage, session_id, settings=settings))
