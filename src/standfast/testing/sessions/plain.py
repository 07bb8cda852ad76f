"""Clauses of the session contract for every session with the four methods of the protocol."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from standfast.base.items import Item
from standfast.history.session import Session, SessionSettings
from standfast.testing.faults import FaultInjector, Reopen
from standfast.testing.sessions.fixtures import (
    INVALID_BATCHES,
    UNUSUAL_ITEMS,
    PlainSessionFixtures,
    raises_error,
    texts,
    user_messages,
)


class SessionProtocolClauses(PlainSessionFixtures):
    """Reading and writing without failures, and invalid input."""

    async def test_it_implements_the_session_protocol(self, session: Any) -> None:
        assert isinstance(session, Session)
        assert session.session_id == "s"

    async def test_a_new_session_is_empty(self, session: Any) -> None:
        assert await session.get_items() == []
        assert await session.get_items(limit=3) == []
        assert await session.pop_item() is None
        await session.clear_session()
        assert await session.get_items() == []

    async def test_batches_are_read_in_the_order_they_were_added(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        await session.add_items(user_messages(4))
        await session.add_items(user_messages(5, 6))
        assert texts(await session.get_items()) == list("123456")

    async def test_a_long_batch_keeps_its_order(self, session: Any) -> None:
        await session.add_items(user_messages(*range(300)))
        assert await session.get_items() == user_messages(*range(300))
        assert await session.get_items(limit=250) == user_messages(*range(50, 300))

    async def test_an_empty_batch_changes_nothing(self, session: Any) -> None:
        await session.add_items(user_messages(1))
        await session.add_items([])
        assert texts(await session.get_items()) == ["1"]

    async def test_a_limit_gives_the_latest_items_oldest_first(self, session: Any) -> None:
        for number in range(6):
            await session.add_items(user_messages(number))
        for limit in range(1, 9):
            assert texts(await session.get_items(limit=limit)) == list("012345")[-limit:]

    async def test_a_limit_of_0_gives_nothing(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        assert await session.get_items(limit=0) == []

    async def test_a_negative_limit_is_an_error(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        for limit in (-1, -100):
            with pytest.raises(ValueError):
                await session.get_items(limit=limit)

    async def test_the_limit_of_the_settings_is_the_default(self, storage: Any) -> None:
        session = self.open_session(storage, "s", settings=SessionSettings(limit=2))
        await session.add_items(user_messages(1, 2, 3, 4))
        assert texts(await session.get_items()) == ["3", "4"]
        assert texts(await session.get_items(None)) == ["3", "4"]

    async def test_an_explicit_limit_overrides_the_settings(self, storage: Any) -> None:
        session = self.open_session(storage, "s", settings=SessionSettings(limit=2))
        await session.add_items(user_messages(1, 2, 3, 4))
        for limit in (0, 1, 3, 9):
            assert texts(await session.get_items(limit=limit)) == list("1234")[max(4 - limit, 0) :]

    async def test_the_limit_of_the_settings_affects_only_reading(self, storage: Any) -> None:
        session = self.open_session(storage, "s", settings=SessionSettings(limit=0))
        await session.add_items(user_messages(1, 2, 3))
        assert await session.get_items() == []
        assert await session.pop_item() == user_messages(3)[0]
        assert texts(await session.get_items(limit=5)) == ["1", "2"]

    async def test_items_are_returned_unchanged(self, session: Any) -> None:
        await session.add_items(UNUSUAL_ITEMS)
        assert await session.get_items() == UNUSUAL_ITEMS
        for item in reversed(UNUSUAL_ITEMS):
            assert await session.pop_item() == item

    async def test_equal_items_are_all_kept(self, session: Any) -> None:
        await session.add_items(user_messages("same", "same"))
        await session.add_items(user_messages("same"))
        assert texts(await session.get_items()) == ["same"] * 3
        await session.pop_item()
        assert texts(await session.get_items()) == ["same"] * 2

    async def test_mutating_passed_or_returned_items_does_not_change_the_history(self, session: Any) -> None:
        items: list[Item] = [{"role": "user", "content": ["a"]}]
        await session.add_items(items)
        items[0]["content"].append("later")
        items.append({"role": "user", "content": "more"})
        read = await session.get_items()
        assert read == [{"role": "user", "content": ["a"]}]
        read[0]["content"].append("later")
        assert await session.get_items() == [{"role": "user", "content": ["a"]}]

    async def test_pop_removes_and_returns_the_latest_item(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        await session.add_items(user_messages(3))
        assert await session.pop_item() == user_messages(3)[0]
        assert texts(await session.get_items()) == ["1", "2"]
        await session.add_items(user_messages(4))
        assert [await session.pop_item() for _ in range(4)] == [*user_messages(4, 2, 1), None]
        assert await session.get_items() == []

    async def test_pop_and_add_may_alternate(self, session: Any) -> None:
        await session.add_items(user_messages("base"))
        for number in range(20):
            await session.add_items(user_messages(number, "last"))
            assert await session.pop_item() == user_messages("last")[0]
        assert texts(await session.get_items()) == ["base", *map(str, range(20))]
        assert texts(await session.get_items(limit=2)) == ["18", "19"]

    async def test_a_cleared_session_can_be_used_again(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items(user_messages(3))
        assert texts(await session.get_items()) == ["3"]

    async def test_sessions_with_similar_ids_are_independent(self, storage: Any) -> None:
        names = ["s", "S", "s2", "s_", "s%", "s:1", "日本"]
        sessions = {name: self.open_session(storage, name) for name in names}
        for name, session in sessions.items():
            await session.add_items(user_messages(name, "last"))
        assert await sessions["s"].pop_item() == user_messages("last")[0]
        await sessions["s_"].clear_session()
        for name, session in sessions.items():
            expected = {"s": ["s"], "s_": []}.get(name, [name, "last"])
            assert texts(await session.get_items()) == expected

    async def test_two_objects_with_one_id_are_one_session(self, storage: Any) -> None:
        one, two = self.open_session(storage, "s"), self.open_session(storage, "s")
        await one.add_items(user_messages(1))
        await two.add_items(user_messages(2))
        assert texts(await one.get_items()) == ["1", "2"]
        assert await one.pop_item() == user_messages(2)[0]
        assert texts(await two.get_items()) == ["1"]
        await two.clear_session()
        assert await one.get_items() == []

    async def test_a_batch_with_an_invalid_item_changes_nothing(self, session: Any) -> None:
        await session.add_items(user_messages(1))
        for batch in INVALID_BATCHES:
            with pytest.raises((TypeError, ValueError)):
                await session.add_items([*user_messages(2), *batch, *user_messages(3)])
            assert texts(await session.get_items()) == ["1"], batch


class ResilienceClauses(PlainSessionFixtures):
    """Concurrent callers, cancelled callers, failing storage, and reopening."""

    async def test_first_writers_do_not_race(self, storage: Any) -> None:
        objects = 1 if self.one_writer else 10
        sessions = [self.open_session(storage, "s") for _ in range(objects)] * (10 // objects)
        await asyncio.gather(*(session.add_items(user_messages(n, n)) for n, session in enumerate(sessions)))
        stored = texts(await self.open_session(storage, "s").get_items())
        assert stored[::2] == stored[1::2]
        assert sorted(stored[::2]) == sorted(map(str, range(10)))

    async def test_batches_of_concurrent_writers_are_contiguous(self, session: Any) -> None:
        async def writer(task: int) -> None:
            for batch in range(5):
                await session.add_items(user_messages(*[f"{task}.{batch}"] * 3))

        await asyncio.gather(*map(writer, range(5)))
        stored = texts(await session.get_items())
        assert len(stored) == 75
        assert stored[::3] == stored[1::3] == stored[2::3]
        for task in range(5):
            assert [text for text in stored[::3] if text.startswith(f"{task}.")] == [f"{task}.{n}" for n in range(5)]

    async def test_each_item_is_popped_once(self, session: Any) -> None:
        await session.add_items(user_messages(*range(12)))
        popped = await asyncio.gather(*(session.pop_item() for _ in range(15)))
        assert popped.count(None) == 3
        assert sorted(item["content"] for item in popped if item) == sorted(map(str, range(12)))
        assert await session.get_items() == []

    async def test_sessions_that_are_used_concurrently_are_independent(self, storage: Any) -> None:
        async def converse(name: str) -> None:
            session = self.open_session(storage, name)
            for turn in range(4):
                await session.add_items(user_messages(f"{name} {turn}", "draft"))
                assert await session.pop_item() == user_messages("draft")[0]
            assert texts(await session.get_items()) == [f"{name} {turn}" for turn in range(4)]

        await asyncio.gather(*(converse(f"session-{n}") for n in range(8)))

    async def test_cancelled_calls_leave_no_partial_batch_and_no_lock(self, session: Any) -> None:
        await session.add_items(user_messages("first"))
        for waits in range(8):
            callers = [
                asyncio.create_task(session.add_items(user_messages(waits, waits))),
                asyncio.create_task(session.get_items()),
                asyncio.create_task(session.clear_session() if waits == 3 else session.get_items()),
            ]
            for _ in range(waits):
                await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        async with asyncio.timeout(60):
            stored = [text for text in texts(await session.get_items()) if text != "first"]
            assert stored[::2] == stored[1::2]
            await session.add_items(user_messages("after"))
            assert await session.pop_item() == user_messages("after")[0]

    async def test_a_failed_batch_leaves_the_history_as_it_was(
        self, storage: Any, failing_after: FaultInjector
    ) -> None:
        await self.fail_each_statement(
            storage, failing_after, lambda session: session.add_items(user_messages(1, 2, 3)), expected=[*"abc123"]
        )

    async def test_a_failed_pop_keeps_the_item(self, storage: Any, failing_after: FaultInjector) -> None:
        await self.fail_each_statement(storage, failing_after, lambda session: session.pop_item(), expected=[*"ab"])

    async def test_a_failed_clear_keeps_all_items(self, storage: Any, failing_after: FaultInjector) -> None:
        await self.fail_each_statement(storage, failing_after, lambda session: session.clear_session(), expected=[])

    async def fail_each_statement(
        self, storage: Any, failing_after: FaultInjector, change: Callable[[Any], Any], *, expected: list[str]
    ) -> None:
        """Make each statement of a change fail in turn: the change raises and has no effect, or it succeeds anyway."""
        for statements in itertools.count():
            session = self.open_session(storage, f"session-{statements}")
            await session.add_items(user_messages(*"abc"))
            with failing_after(statements) as fault:
                failed = await raises_error(change(session))
            assert texts(await session.get_items()) == ([*"abc"] if failed else expected)
            if not fault.triggered:
                assert not failed
                break
        assert statements > 0

    async def test_a_history_survives_reopening(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as storage:
            session = self.open_session(storage, "s")
            await session.add_items(UNUSUAL_ITEMS)
            await session.add_items(user_messages(1, 2, 3))
            await session.pop_item()
            before = await session.get_items()
        async with reopen_durable() as storage:
            session = self.open_session(storage, "s")
            assert await session.get_items() == before
            assert await session.pop_item() == user_messages(2)[0]
            await session.add_items(user_messages(4))
            assert texts(await session.get_items(limit=2)) == ["1", "4"]
