"""The clauses of the session contract about forks."""

import asyncio
from typing import Any

import pytest

from standfast.base.errors import AlreadyExists, NotFound
from standfast.history.session import SessionSettings
from standfast.store.contract import Erase
from standfast.testing.sessions.fixtures import CountRows, StoredSessionFixtures
from standfast.testing.sessions.plain import texts, user_messages


class SessionForkClauses(StoredSessionFixtures):
    """Sessions that begin with another's items."""

    async def test_a_fork_begins_with_the_first_items_and_goes_its_own_way(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(2, "child")
        assert child.session_id == "child"
        assert texts(await child.get_items()) == ["1", "2"]
        await child.add_items(user_messages("own"))
        await session.add_items(user_messages(4))
        assert texts(await session.get_items()) == ["1", "2", "3", "4"]
        assert texts(await child.get_items()) == ["1", "2", "own"]
        assert texts(await child.get_items(limit=2)) == ["2", "own"]

    async def test_a_fork_without_a_position_takes_everything(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        child = await session.fork()
        assert child.session_id != session.session_id
        assert texts(await child.get_items()) == ["1", "2"]

    async def test_a_fork_may_be_popped_rewound_and_cleared_without_its_parent_noticing(self, session: Any) -> None:
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

    async def test_a_fork_outlives_its_parent(self, place: Any) -> None:
        session = self.open_session(place, "s")
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(2, "child")
        grandchild = await child.fork(1, "grandchild")
        await session.clear_session()
        assert texts(await child.get_items()) == ["1", "2"]
        await self.get_backend(place).commit(Erase(session_id="child", forget=True))
        assert texts(await grandchild.get_items()) == ["1"]
        assert (await grandchild.check()).ok

    async def test_forking_at_nothing_gives_an_empty_session(self, session: Any) -> None:
        await session.add_items(user_messages(1))
        child = await session.fork(0, "child")
        assert await child.get_items() == []
        await child.add_items(user_messages(2))
        assert texts(await child.get_items()) == ["2"]

    async def test_a_name_that_is_taken_is_refused(self, place: Any) -> None:
        session = self.open_session(place, "s")
        await session.add_items(user_messages(1))
        await self.open_session(place, "taken").add_items(user_messages("theirs"))
        for name in ("taken", "s"):
            with pytest.raises(AlreadyExists):
                await session.fork(1, name)
        assert texts(await self.open_session(place, "taken").get_items()) == ["theirs"]

    async def test_there_is_nothing_to_fork_from_a_session_that_does_not_exist(self, session: Any) -> None:
        with pytest.raises(NotFound):
            await session.fork(0, "child")

    async def test_a_fork_keeps_the_settings(self, place: Any) -> None:
        session = self.open_session(place, "s", settings=SessionSettings(limit=2))
        await session.add_items(user_messages(1, 2, 3))
        child = await session.fork(3, "child")
        assert texts(await child.get_items()) == ["2", "3"]
        assert child.session_settings == SessionSettings(limit=2)

    async def test_a_settings_limit_does_not_limit_forks_rewinds_and_replacements(self, place: Any) -> None:
        session = self.open_session(place, "s", settings=SessionSettings(limit=1))
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

    async def test_forking_rewinding_and_popping_copy_no_items(
        self, place: Any, session: Any, count_rows: CountRows
    ) -> None:
        await session.add_items(user_messages(*range(100)))
        rows = await count_rows(place)
        child = await session.fork(80, "child")
        await (await child.fork(40, "grandchild")).pop_item()
        await session.rewind(50)
        await session.restore(0)
        await session.pop_item()
        assert await count_rows(place) == rows
        await session.splice_items(10, 90, user_messages("summary"))
        assert await count_rows(place) == rows + 1

    async def test_clearing_the_last_who_shows_an_item_destroys_it(
        self, place: Any, session: Any, count_rows: CountRows
    ) -> None:
        await session.add_items(user_messages(*range(10)))
        child = await session.fork(4, "child")
        await session.rewind(2)
        await session.clear_session()
        assert await count_rows(place) == 4
        await child.clear_session()
        assert await count_rows(place) == 0

    async def test_a_fork_of_a_moving_session_shows_one_moment_of_it(self, session: Any) -> None:
        await session.add_items(user_messages(0, 0))
        forks = asyncio.gather(*(session.fork(session_id=f"child-{n}") for n in range(6)))
        for number in range(1, 6):
            await session.add_items(user_messages(number, number))
        for child in await forks:
            there = texts(await child.get_items())
            assert there == [str(n // 2) for n in range(len(there))]
            assert len(there) % 2 == 0
