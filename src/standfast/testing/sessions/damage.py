"""The clauses of the session contract about damaged records, what a model is shown, and bad input."""

from typing import Any

import pytest

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.session import SessionSettings
from standfast.testing.provider_rules import assert_replayable
from standfast.testing.sessions.fixtures import CorruptSessionRecord, StoredSessionFixtures
from standfast.testing.sessions.plain import INVALID_BATCHES, texts, user_messages

DAMAGED_RECORDS: dict[str, bytes | None] = {
    "not JSON": b"{oops",
    "not UTF-8": b'{"role": "user", "content": "\xff\xfe"}',
    "not an object": b'["a", "list"]',
    "a number": b"7",
    "empty": b"",
    "zeros": b"\x00\x00\x00",
    "deep": b'{"a":' + b"[" * 50_000,
    "gone": None,
}
parametrize_damage = pytest.mark.parametrize("damage", DAMAGED_RECORDS.values(), ids=list(DAMAGED_RECORDS))


class DamageClauses(StoredSessionFixtures):
    """A record that cannot be read hides and harms nothing else."""

    @parametrize_damage
    async def test_a_damaged_record_hides_no_other(
        self, place: Any, session: Any, corrupt: CorruptSessionRecord, damage: bytes | None
    ) -> None:
        await session.add_items(user_messages(*range(5)))
        await corrupt(place, "s", 2, damage)
        assert texts(await session.get_items()) == ["0", "1", "3", "4"]
        assert texts(await session.get_items(limit=3)) == ["1", "3", "4"]

    @parametrize_damage
    async def test_damaged_records_do_not_use_up_the_limit(
        self, place: Any, session: Any, corrupt: CorruptSessionRecord, damage: bytes | None
    ) -> None:
        await session.add_items(user_messages(*range(30)))
        for position in range(4, 30):
            if position != 20:
                await corrupt(place, "s", position, damage)
        for limit in range(1, 7):
            assert texts(await session.get_items(limit=limit)) == ["0", "1", "2", "3", "20"][-limit:]

    @parametrize_damage
    async def test_popping_passes_over_damaged_records_and_sets_them_aside(
        self, place: Any, session: Any, corrupt: CorruptSessionRecord, damage: bytes | None
    ) -> None:
        await session.add_items(user_messages(*range(5)))
        for position in (1, 3, 4):
            await corrupt(place, "s", position, damage)
        assert await session.pop_item() == user_messages(2)[0]
        assert texts(await session.get_items()) == ["0"]
        report = await session.check()
        assert len(report.quarantined) == 2
        assert [entry.position for entry in report.corrupt] == [1]
        assert await session.pop_item() == user_messages(0)[0]
        assert len((await session.check()).quarantined) == 3
        assert await session.pop_item() is None

    async def test_popping_finds_an_item_behind_many_damaged_records(
        self, place: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        await session.add_items(user_messages(*range(60)))
        for position in range(1, 60):
            await corrupt(place, "s", position, b"x")
        assert await session.pop_item() == user_messages(0)[0]
        assert len((await session.check()).quarantined) == 59
        assert await session.head() == (await session.check()).head
        assert await session.get_items() == []

    async def test_a_history_of_nothing_but_damage_is_empty_and_goes_on(
        self, place: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        await session.add_items(user_messages(1, 2))
        for position in (0, 1):
            await corrupt(place, "s", position, b"x")
        assert await session.get_items() == []
        assert await session.get_items(limit=1) == []
        assert await session.pop_item() is None
        await session.add_items(user_messages(3))
        assert texts(await session.get_items()) == ["3"]

    async def test_quarantine_destroys_nothing(self, place: Any, session: Any, corrupt: CorruptSessionRecord) -> None:
        await session.add_items(user_messages(1, 2, 3))
        await corrupt(place, "s", 2, b"precious")
        child = await session.fork(3, "child")
        assert await session.pop_item() == user_messages(2)[0]
        page = await self.get_backend(place).read("child", start=2)
        assert page is not None
        assert page.rows[0].data == b"precious"
        assert texts(await child.get_items()) == ["1", "2"]

    @parametrize_damage
    async def test_a_check_names_damage_and_changes_nothing(
        self, place: Any, session: Any, corrupt: CorruptSessionRecord, damage: bytes | None
    ) -> None:
        await session.add_items(user_messages(*range(4)))
        assert (await session.check()).ok
        await corrupt(place, "s", 1, damage)
        head = await session.head()
        for _ in range(2):
            report = await session.check()
            assert not report.ok
            assert (report.session_id, report.head, report.readable) == ("s", head, 3)
            assert [entry.position for entry in report.corrupt] == [1]
            assert report.corrupt[0].reason
            assert report.quarantined == []
        assert await session.head() == head

    async def test_a_check_of_nothing_finds_nothing(self, session: Any) -> None:
        report = await session.check()
        assert report.ok
        assert report.readable == 0

    async def test_writing_goes_on_around_damage(self, place: Any, session: Any, corrupt: CorruptSessionRecord) -> None:
        await session.add_items(user_messages(0, 1, 2))
        await corrupt(place, "s", 1, b"x")
        await session.add_items(user_messages(3))
        assert texts(await session.get_items()) == ["0", "2", "3"]
        child = await session.fork(4, "child")
        assert texts(await child.get_items()) == ["0", "2", "3"]
        assert [hit.position for hit in await session.search("3")] == [3]
        await session.rewind(3)
        assert texts(await session.get_items()) == ["0", "2"]
        assert texts(await session.get_items(generation=0)) == ["0", "2", "3"]
        await session.clear_session()
        assert (await session.check()).corrupt == []
        assert texts(await child.get_items()) == ["0", "2", "3"]


def make_function_call(call_id: str) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": "tool", "arguments": "{}"}


def make_function_call_output(call_id: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


REASONING: Item = {"type": "reasoning", "id": "rs_1", "summary": []}
TURNS: list[Item] = [
    *user_messages("question"),
    REASONING,
    make_function_call("a"),
    make_function_call("b"),
    make_function_call_output("b"),
    make_function_call_output("a"),
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "answer"}]},
    *user_messages("more"),
    REASONING,
    make_function_call("c"),
    make_function_call_output("c"),
]


class PairingClauses(StoredSessionFixtures):
    """What a model may be shown, after any cut and any damage."""

    async def test_a_whole_history_is_shown_whole(self, session: Any) -> None:
        await session.add_items(TURNS)
        assert await session.get_paired_items() == TURNS
        assert (await session.check()).ok

    async def test_every_limit_gives_a_view_that_can_be_replayed(self, session: Any) -> None:
        await session.add_items(TURNS)
        for limit in range(len(TURNS) + 2):
            assert_replayable(await session.get_paired_items(limit))

    async def test_every_rewind_and_every_pop_gives_a_view_that_can_be_replayed(self, session: Any) -> None:
        await session.add_items(TURNS)
        for end in range(len(TURNS) - 1, -1, -1):
            await session.pop_item()
            assert_replayable(await session.get_paired_items())
            child = await session.fork(end // 2)
            assert_replayable(await child.get_paired_items())

    async def test_any_lost_record_leaves_a_view_that_can_be_replayed(
        self, place: Any, corrupt: CorruptSessionRecord
    ) -> None:
        for position in range(len(TURNS)):
            session = self.open_session(place, f"s{position}")
            await session.add_items(TURNS)
            await corrupt(place, session.session_id, position, b"x")
            assert_replayable(await session.get_paired_items())

    async def test_the_view_changes_nothing_stored(self, session: Any) -> None:
        broken = [REASONING, make_function_call("a"), make_function_call_output("b"), *user_messages("hello")]
        await session.add_items(broken)
        assert await session.get_paired_items() == user_messages("hello")
        assert await session.get_items() == broken
        report = await session.check()
        assert [entry.index for entry in report.unpaired] == [0, 1, 2]
        assert not report.ok

    async def test_odd_items_break_neither_view_nor_check(self, session: Any) -> None:
        odd: list[Item] = [
            {"type": None, "role": "user"},
            {"type": 7},
            {"type": ["function_call"]},
            {"type": "function_call", "call_id": {"a": 1}},
            {"type": "reasoning"},
            {"type": {"x": 1}, "call_id": []},
            {},
        ]
        await session.add_items(odd)
        assert await session.get_items() == odd
        assert (await session.check()).readable == len(odd)
        await session.get_paired_items()


class InputClauses(StoredSessionFixtures):
    """Bad input gets a typed error and changes nothing."""

    @pytest.mark.parametrize("limit", [-1, 1.5, "3", True, [2]])
    async def test_a_bad_limit_is_refused(self, place: Any, session: Any, limit: Any) -> None:
        await session.add_items(user_messages("word"))
        with pytest.raises(InvalidInput):
            await session.get_items(limit=limit)
        with pytest.raises(InvalidInput):
            await session.get_paired_items(limit)
        with pytest.raises(InvalidInput):
            await session.search("word", limit=limit)
        with pytest.raises(InvalidInput):
            SessionSettings(limit=limit)

    @pytest.mark.parametrize(
        "batch", [*INVALID_BATCHES, "text", {"role": "user"}, None, 7, [{"a": "\ud800"}]], ids=repr
    )
    async def test_a_bad_batch_is_refused_everywhere(self, session: Any, batch: Any) -> None:
        await session.add_items(user_messages(1, 2))
        head = await session.head()
        with pytest.raises(InvalidInput):
            await session.add_items(batch)
        with pytest.raises(InvalidInput):
            await session.add_items(batch, key="k")
        with pytest.raises(InvalidInput):
            await session.replace_items(batch)
        with pytest.raises(InvalidInput):
            await session.splice_items(0, 1, batch)
        assert await session.head() == head
        await session.add_items(user_messages(3), key="k")

    @pytest.mark.parametrize("position", [-1, 3, 1.5, 2.0, "1", None, True])
    async def test_a_position_that_is_not_there_is_refused(self, session: Any, position: Any) -> None:
        await session.add_items(user_messages(1, 2))
        head = await session.head()
        with pytest.raises(InvalidInput):
            await session.rewind(position)
        with pytest.raises(InvalidInput):
            await session.splice_items(position, 2, [])
        if position is not None:
            with pytest.raises(InvalidInput):
                await session.splice_items(0, position, [])
            with pytest.raises(InvalidInput):
                await session.fork(position, "child")
        with pytest.raises(InvalidInput):
            await session.splice_items(2, 1, [])
        assert await session.head() == head
        assert texts(await session.get_items()) == ["1", "2"]

    @pytest.mark.parametrize("name", ["", 7, None, b"s", "x" * 256, "a\nb", "a\x00b", "\ud800"], ids=repr)
    async def test_a_bad_name_is_refused(self, place: Any, session: Any, name: Any) -> None:
        await session.add_items(user_messages(1))
        with pytest.raises(InvalidInput):
            self.open_session(place, name)
        if name is not None:
            with pytest.raises(InvalidInput):
                await session.fork(1, name)
            with pytest.raises(InvalidInput):
                await session.add_items(user_messages(2), key=name)
        assert texts(await session.get_items()) == ["1"]

    @pytest.mark.parametrize("expected", [0, 1, "1", (1, 2), {"version": 1}], ids=repr)
    async def test_an_expected_head_that_is_no_head_is_refused(self, session: Any, expected: Any) -> None:
        await session.add_items(user_messages(1, 2))
        with pytest.raises(InvalidInput):
            await session.add_items(user_messages(3), expected=expected)
        with pytest.raises(InvalidInput):
            await session.add_items([], expected=expected)
        with pytest.raises(InvalidInput):
            await session.replace_items([], expected=expected)
        with pytest.raises(InvalidInput):
            await session.rewind(1, expected=expected)
        with pytest.raises(InvalidInput):
            await session.restore(0, expected=expected)
        assert texts(await session.get_items()) == ["1", "2"]

    @pytest.mark.parametrize("query", [None, 7, b"word", ["word"]], ids=repr)
    async def test_a_search_for_anything_but_text_is_refused(self, session: Any, query: Any) -> None:
        with pytest.raises(InvalidInput):
            await session.search(query)

    async def test_unknown_settings_are_refused(self, place: Any) -> None:
        with pytest.raises(InvalidInput):
            self.open_session(place, "s", settings={"limits": 3})  # type: ignore[arg-type]
