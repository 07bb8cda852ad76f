"""Clauses of the session contract about forks."""

import asyncio
from typing import Any

import pytest

from standfast.base.errors import AlreadyExists, NotFound
from standfast.history.session import SessionSettings
from standfast.store.operations import Erase
from standfast.testing.sessions.fixtures import CountRows, StoredSessionFixtures, texts, user_messages


class SessionForkClauses(StoredSessionFixtures):
    """Sessions that start with the items of another one."""

    async def test_a_fork_starts_with_the_first_items_and_changes_independently(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(2, "child")
        assert child.session_id == "child"
        assert texts(await child.get_items()) == ["1", "2"]
        await child.add_items(user_messages("own"))
        await session.add_items(user_messages(4))
        assert texts(await session.get_items()) == ["1", "2", "3", "4"]
        assert texts(await child.get_items()) == ["1", "2", "own"]
        assert texts(await child.get_items(limit=2)) == ["2", "own"]

    async def test_a_fork_without_a_position_has_all_items(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        child = await session.fork()
        assert child.session_id != session.session_id
        assert texts(await child.get_items()) == ["1", "2"]

    async def test_changes_of_a_fork_do_not_affect_its_parent(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(3, "child")
        assert await child.pop_item() == user_messages(3)[0]
        await child.rewind(1)
        await child.add_items(user_messages("x"))
        assert texts(await child.get_items()) == ["1", "x"]
        await child.restore(0)
        assert texts(await child.get_items()) == ["1", "2", "x"]
        await child.clear_session()
        assert texts(await session.get_items()) == ["1", "2", "3"]

    async def test_a_fork_keeps_its_items_when_its_parent_is_erased(self, storage: Any) -> None:
        session = self.open_session(storage, "s")
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(2, "child")
        grandchild = await child.fork(1, "grandchild")
        await session.clear_session()
        assert texts(await child.get_items()) == ["1", "2"]
        await self.get_backend(storage).commit(Erase(session_id="child", forget=True))
        assert texts(await grandchild.get_items()) == ["1"]
        assert (await grandchild.check()).ok

    async def test_a_fork_at_0_is_empty(self, session: Any) -> None:
        await session.add_items(user_messages(1))
        child = await session.fork(0, "child")
        assert await child.get_items() == []
        await child.add_items(user_messages(2))
        assert texts(await child.get_items()) == ["2"]

    async def test_the_id_of_an_existing_session_is_refused(self, storage: Any) -> None:
        session = self.open_session(storage, "s")
        await session.add_items(user_messages(1))
        await self.open_session(storage, "taken").add_items(user_messages("theirs"))
        for name in ("taken", "s"):
            with pytest.raises(AlreadyExists):
                await session.fork(1, name)
        assert texts(await self.open_session(storage, "taken").get_items()) == ["theirs"]

    async def test_a_session_that_does_not_exist_cannot_be_forked(self, session: Any) -> None:
        with pytest.raises(NotFound):
            await session.fork(0, "child")

    async def test_a_fork_keeps_the_settings(self, storage: Any) -> None:
        session = self.open_session(storage, "s", settings=SessionSettings(limit=2))
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(3, "child")
        assert texts(await child.get_items()) == ["2", "3"]
        assert child.session_settings == SessionSettings(limit=2)

    async def test_the_limit_of_the_settings_does_not_affect_forks_rewinds_and_replacements(self, storage: Any) -> None:
        session = self.open_session(storage, "s", settings=SessionSettings(limit=1))
        await session.add_items(user_messages(1, 2, 3, 4))
        child = await session.fork(3, "child")
        assert texts(await child.get_items(limit=9)) == ["1", "2", "3"]
        await session.rewind(2)
        assert texts(await session.get_items(limit=9)) == ["1", "2"]
        await session.replace_items(user_messages(5, 6, 7))
        assert texts(await session.get_items(limit=9)) == ["5", "6", "7"]
        assert texts(await session.get_items(limit=9, generation=0)) == ["1", "2", "3", "4"]
        assert [hit.position for hit in await session.search("6")] == [1]
        assert (await session.check()).readable == 3

    async def test_fork_rewind_and_pop_copy_no_items(self, storage: Any, session: Any, count_rows: CountRows) -> None:
        await session.add_items(user_messages(*range(100)))
        rows = await count_rows(storage)
        child = await session.fork(80, "child")
        await (await child.fork(40, "grandchild")).pop_item()
        await session.rewind(50)
        await session.restore(0)
        await session.pop_item()
        assert await count_rows(storage) == rows
        await session.splice_items(10, 90, user_messages("summary"))
        assert await count_rows(storage) == rows + 1

    async def test_an_item_is_deleted_when_no_session_shows_it(
        self, storage: Any, session: Any, count_rows: CountRows
    ) -> None:
        await session.add_items(user_messages(*range(10)))
        child = await session.fork(4, "child")
        await session.rewind(2)
        await session.clear_session()
        assert await count_rows(storage) == 4
        await child.clear_session()
        assert await count_rows(storage) == 0

    async def test_a_fork_during_writes_is_a_consistent_snapshot(self, session: Any) -> None:
        await session.add_items(user_messages(0, 0))
        forks = asyncio.gather(*(session.fork(session_id=f"child-{n}") for n in range(6)))
        for number in range(1, 6):
            await session.add_items(user_messages(number, number))
        for child in await forks:
            forked = texts(await child.get_items())
            assert forked == [str(n // 2) for n in range(len(forked))]
            assert len(forked) % 2 == 0
