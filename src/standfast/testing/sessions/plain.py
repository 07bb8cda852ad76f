"""The clauses of the session contract that anything with the four methods must keep."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from standfast.base.items import Item
from standfast.history.session import Session, SessionSettings
from standfast.testing.faults import FaultInjector, Reopen, StorageFixtures


def user_messages(*texts: object) -> list[Item]:
    """One message of a user for each text."""
    return [{"role": "user", "content": str(text)} for text in texts]


def texts(items: Sequence[Item]) -> list[str]:
    return [item["content"] for item in items]


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
    """What a session under contract supplies; :mod:`standfast.testing.sessions.contract` explains it."""

    one_writer = False

    def open_session(self, place: Any, session_id: str, *, settings: SessionSettings | None = None) -> Any:
        """The session ``session_id`` in an opened place."""
        raise NotImplementedError("a session under contract says how it is made")

    @pytest.fixture
    async def place(self, reopen: Reopen) -> AsyncIterator[Any]:
        async with reopen() as place:
            yield place

    @pytest.fixture
    def session(self, place: Any) -> Any:
        return self.open_session(place, "s")


class SessionProtocolClauses(PlainSessionFixtures):
    """What is promised when nothing goes wrong, and what bad input gets."""

    async def test_it_is_a_session(self, session: Any) -> None:
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

    @pytest.mark.parametrize("limit", [-1, -100])
    async def test_a_negative_limit_is_an_error(self, session: Any, limit: int) -> None:
        await session.add_items(user_messages(1, 2))
        with pytest.raises(ValueError):
            await session.get_items(limit=limit)

    async def test_the_settings_limit_reads_without_an_explicit_one(self, place: Any) -> None:
        session = self.open_session(place, "s", settings=SessionSettings(limit=2))
        await session.add_items(user_messages(1, 2, 3, 4))
        assert texts(await session.get_items()) == ["3", "4"]
        assert texts(await session.get_items(None)) == ["3", "4"]

    @pytest.mark.parametrize("limit", [0, 1, 3, 9])
    async def test_an_explicit_limit_beats_the_settings(self, place: Any, limit: int) -> None:
        session = self.open_session(place, "s", settings=SessionSettings(limit=2))
        await session.add_items(user_messages(1, 2, 3, 4))
        assert texts(await session.get_items(limit=limit)) == list("1234")[max(4 - limit, 0) :]

    async def test_a_settings_limit_limits_nothing_but_reading(self, place: Any) -> None:
        session = self.open_session(place, "s", settings=SessionSettings(limit=0))
        await session.add_items(user_messages(1, 2, 3))
        assert await session.get_items() == []
        assert await session.pop_item() == user_messages(3)[0]
        assert texts(await session.get_items(limit=5)) == ["1", "2"]

    async def test_items_come_back_as_they_went_in_and_nothing_is_added_to_them(self, session: Any) -> None:
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

    async def test_changing_what_was_given_or_read_changes_nothing_stored(self, session: Any) -> None:
        given: list[Item] = [{"role": "user", "content": ["a"]}]
        await session.add_items(given)
        given[0]["content"].append("later")
        given.append({"role": "user", "content": "more"})
        read = await session.get_items()
        assert read == [{"role": "user", "content": ["a"]}]
        read[0]["content"].append("later")
        assert await session.get_items() == [{"role": "user", "content": ["a"]}]

    async def test_popping_takes_the_latest_item_off(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        await session.add_items(user_messages(3))
        assert await session.pop_item() == user_messages(3)[0]
        assert texts(await session.get_items()) == ["1", "2"]
        await session.add_items(user_messages(4))
        assert [await session.pop_item() for _ in range(4)] == [*user_messages(4, 2, 1), None]
        assert await session.get_items() == []

    async def test_popping_and_adding_may_alternate(self, session: Any) -> None:
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

    async def test_sessions_do_not_touch_each_other(self, place: Any) -> None:
        names = ["s", "S", "s2", "s_", "s%", "s:1", "日本"]
        sessions = {name: self.open_session(place, name) for name in names}
        for name, session in sessions.items():
            await session.add_items(user_messages(name, "last"))
        assert await sessions["s"].pop_item() == user_messages("last")[0]
        await sessions["s_"].clear_session()
        for name, session in sessions.items():
            expected = {"s": ["s"], "s_": []}.get(name, [name, "last"])
            assert texts(await session.get_items()) == expected

    async def test_two_objects_with_one_id_are_one_session(self, place: Any) -> None:
        one, two = self.open_session(place, "s"), self.open_session(place, "s")
        await one.add_items(user_messages(1))
        await two.add_items(user_messages(2))
        assert texts(await one.get_items()) == ["1", "2"]
        assert await one.pop_item() == user_messages(2)[0]
        assert texts(await two.get_items()) == ["1"]
        await two.clear_session()
        assert await one.get_items() == []

    @pytest.mark.parametrize("batch", INVALID_BATCHES, ids=repr)
    async def test_a_batch_with_a_bad_item_changes_nothing(self, session: Any, batch: list[Any]) -> None:
        await session.add_items(user_messages(1))
        with pytest.raises((TypeError, ValueError)):
            await session.add_items([*user_messages(2), *batch, *user_messages(3)])
        assert texts(await session.get_items()) == ["1"]


class ResilienceClauses(PlainSessionFixtures):
    """Many at once, callers who go away, storage that fails, and opening again."""

    async def test_first_writers_do_not_race(self, place: Any) -> None:
        objects = 1 if self.one_writer else 10
        sessions = [self.open_session(place, "s") for _ in range(objects)] * (10 // objects)
        await asyncio.gather(*(session.add_items(user_messages(n, n)) for n, session in enumerate(sessions)))
        there = texts(await self.open_session(place, "s").get_items())
        assert there[::2] == there[1::2]
        assert sorted(there[::2]) == sorted(map(str, range(10)))

    async def test_batches_of_many_writers_stay_together(self, session: Any) -> None:
        async def writer(task: int) -> None:
            for batch in range(5):
                await session.add_items(user_messages(*[f"{task}.{batch}"] * 3))

        await asyncio.gather(*map(writer, range(5)))
        there = texts(await session.get_items())
        assert len(there) == 75
        assert there[::3] == there[1::3] == there[2::3]
        for task in range(5):
            assert [text for text in there[::3] if text.startswith(f"{task}.")] == [f"{task}.{n}" for n in range(5)]

    async def test_each_item_is_popped_once(self, session: Any) -> None:
        await session.add_items(user_messages(*range(12)))
        popped = await asyncio.gather(*(session.pop_item() for _ in range(15)))
        assert popped.count(None) == 3
        assert sorted(item["content"] for item in popped if item) == sorted(map(str, range(12)))
        assert await session.get_items() == []

    async def test_sessions_used_at_once_do_not_mix(self, place: Any) -> None:
        async def converse(name: str) -> None:
            session = self.open_session(place, name)
            for turn in range(4):
                await session.add_items(user_messages(f"{name} {turn}", "draft"))
                assert await session.pop_item() == user_messages("draft")[0]
            assert texts(await session.get_items()) == [f"{name} {turn}" for turn in range(4)]

        await asyncio.gather(*(converse(f"session-{n}") for n in range(8)))

    async def test_a_cancelled_caller_strands_nothing(self, session: Any) -> None:
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
        async with asyncio.timeout(10):
            there = [text for text in texts(await session.get_items()) if text != "first"]
            assert there[::2] == there[1::2]
            await session.add_items(user_messages("after"))
            assert await session.pop_item() == user_messages("after")[0]

    async def test_a_failed_batch_leaves_the_history_as_it_was(self, place: Any, failing_after: FaultInjector) -> None:
        await self.fail_each_statement(
            place, failing_after, lambda session: session.add_items(user_messages(1, 2, 3)), expected=[*"abc123"]
        )

    async def test_a_failed_pop_keeps_the_item(self, place: Any, failing_after: FaultInjector) -> None:
        await self.fail_each_statement(place, failing_after, lambda session: session.pop_item(), expected=[*"ab"])

    async def test_a_failed_clear_keeps_everything(self, place: Any, failing_after: FaultInjector) -> None:
        await self.fail_each_statement(place, failing_after, lambda session: session.clear_session(), expected=[])

    async def fail_each_statement(
        self, place: Any, failing_after: FaultInjector, change: Callable[[Any], Any], *, expected: list[str]
    ) -> None:
        """Let each statement of a change fail in turn: it says so and changed nothing, or it got over it."""
        for statements in itertools.count():
            session = self.open_session(place, f"session-{statements}")
            await session.add_items(user_messages(*"abc"))
            with failing_after(statements) as fault:
                gave_up = await raises_error(change(session))
            assert texts(await session.get_items()) == ([*"abc"] if gave_up else expected)
            if not fault.triggered:
                assert not gave_up
                break
        assert statements > 0

    async def test_a_history_is_there_after_opening_again(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as place:
            session = self.open_session(place, "s")
            await session.add_items(UNUSUAL_ITEMS)
            await session.add_items(user_messages(1, 2, 3))
            await session.pop_item()
            before = await session.get_items()
        async with reopen_durable() as place:
            session = self.open_session(place, "s")
            assert await session.get_items() == before
            assert await session.pop_item() == user_messages(2)[0]
            await session.add_items(user_messages(4))
            assert texts(await session.get_items(limit=2)) == ["1", "4"]


async def raises_error(awaitable: Any) -> bool:
    """Whether a call ended in an error, of whatever kind the storage has."""
    try:
        await awaitable
    except Exception:  # noqa: BLE001
        return True
    return False
