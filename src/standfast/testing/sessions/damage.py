"""Clauses of the session contract about damaged records, paired items and invalid input."""

import itertools
from typing import Any

import pytest

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.session import SessionSettings
from standfast.testing.provider_rules import assert_replayable
from standfast.testing.sessions.fixtures import (
    INVALID_BATCHES,
    CorruptSessionRecord,
    StoredSessionFixtures,
    assert_invalid,
    texts,
    user_messages,
)

DAMAGED_RECORDS: dict[str, bytes | None] = {
    "not JSON": b"{oops",
    "not UTF-8": b'{"role": "user", "content": "\xff\xfe"}',
    "not an object": b'["a", "list"]',
    "a number": b"7",
    "empty": b"",
    "zeros": b"\x00\x00\x00",
    "deep": b'{"a":' + b"[" * 50_000,
    "missing": None,
}


class DamageClauses(StoredSessionFixtures):
    """A record that cannot be read does not affect other records."""

    async def test_a_damaged_record_is_skipped(self, storage: Any, corrupt: CorruptSessionRecord) -> None:
        for kind, damage in DAMAGED_RECORDS.items():
            session = self.open_session(storage, kind)
            await session.add_items(user_messages(*range(5)))
            await corrupt(storage, kind, 2, damage)
            assert texts(await session.get_items()) == ["0", "1", "3", "4"], kind
            assert texts(await session.get_items(limit=3)) == ["1", "3", "4"], kind

    async def test_damaged_records_do_not_count_towards_the_limit(
        self, storage: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        kinds = itertools.cycle(DAMAGED_RECORDS.values())
        await session.add_items(user_messages(*range(30)))
        for position in range(4, 30):
            if position != 20:
                await corrupt(storage, "s", position, next(kinds))
        for limit in range(1, 7):
            assert texts(await session.get_items(limit=limit)) == ["0", "1", "2", "3", "20"][-limit:]

    async def test_pop_skips_damaged_records_and_quarantines_them(
        self, storage: Any, corrupt: CorruptSessionRecord
    ) -> None:
        for kind, damage in DAMAGED_RECORDS.items():
            session = self.open_session(storage, kind)
            await session.add_items(user_messages(*range(5)))
            for position in (1, 3, 4):
                await corrupt(storage, kind, position, damage)
            assert await session.pop_item() == user_messages(2)[0], kind
            assert texts(await session.get_items()) == ["0"], kind
            report = await session.check()
            assert len(report.quarantined) == 2, kind
            assert [entry.position for entry in report.corrupt] == [1], kind
            assert await session.pop_item() == user_messages(0)[0], kind
            assert len((await session.check()).quarantined) == 3, kind
            assert await session.pop_item() is None, kind

    async def test_pop_finds_an_item_before_many_damaged_records(
        self, storage: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        await session.add_items(user_messages(*range(60)))
        for position in range(1, 60):
            await corrupt(storage, "s", position, b"x")
        assert await session.pop_item() == user_messages(0)[0]
        assert len((await session.check()).quarantined) == 59
        assert await session.head() == (await session.check()).head
        assert await session.get_items() == []

    async def test_a_history_of_damaged_records_is_empty_and_can_be_written(
        self, storage: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        await session.add_items(user_messages(1, 2))
        for position in (0, 1):
            await corrupt(storage, "s", position, b"x")
        assert await session.get_items() == []
        assert await session.get_items(limit=1) == []
        assert await session.pop_item() is None
        await session.add_items(user_messages(3))
        assert texts(await session.get_items()) == ["3"]

    async def test_quarantined_records_stay_stored(
        self, storage: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        await session.add_items(user_messages(1, 2, 3))
        await corrupt(storage, "s", 2, b"precious")
        child = await session.fork(3, "child")
        assert await session.pop_item() == user_messages(2)[0]
        page = await self.get_backend(storage).read("child", start=2)
        assert page is not None
        assert page.rows[0].data == b"precious"
        assert texts(await child.get_items()) == ["1", "2"]

    async def test_check_reports_damage_and_changes_nothing(self, storage: Any, corrupt: CorruptSessionRecord) -> None:
        for kind, damage in DAMAGED_RECORDS.items():
            session = self.open_session(storage, kind)
            await session.add_items(user_messages(*range(4)))
            assert (await session.check()).ok
            await corrupt(storage, kind, 1, damage)
            head = await session.head()
            for _ in range(2):
                report = await session.check()
                assert not report.ok
                assert (report.session_id, report.head, report.readable) == (kind, head, 3)
                assert [entry.position for entry in report.corrupt] == [1], kind
                assert report.corrupt[0].reason, kind
                assert report.quarantined == [], kind
            assert await session.head() == head, kind

    async def test_check_of_an_empty_session_finds_nothing(self, session: Any) -> None:
        report = await session.check()
        assert report.ok
        assert report.readable == 0

    async def test_a_damaged_history_can_be_changed(
        self, storage: Any, session: Any, corrupt: CorruptSessionRecord
    ) -> None:
        await session.add_items(user_messages(0, 1, 2))
        await corrupt(storage, "s", 1, b"x")
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
    """``get_paired_items`` returns valid input for a model, after any truncation and any damage."""

    async def test_a_history_without_unpaired_items_is_returned_completely(self, session: Any) -> None:
        await session.add_items(TURNS)
        assert await session.get_paired_items() == TURNS
        assert (await session.check()).ok

    async def test_paired_items_are_valid_input_at_every_limit(self, session: Any) -> None:
        await session.add_items(TURNS)
        for limit in range(len(TURNS) + 2):
            assert_replayable(await session.get_paired_items(limit))

    async def test_paired_items_are_valid_input_after_every_pop_and_fork(self, session: Any) -> None:
        await session.add_items(TURNS)
        for end in range(len(TURNS) - 1, -1, -1):
            await session.pop_item()
            assert_replayable(await session.get_paired_items())
            child = await session.fork(end // 2)
            assert_replayable(await child.get_paired_items())

    async def test_paired_items_are_valid_input_after_the_loss_of_any_record(
        self, storage: Any, corrupt: CorruptSessionRecord
    ) -> None:
        for position in range(len(TURNS)):
            session = self.open_session(storage, f"s{position}")
            await session.add_items(TURNS)
            await corrupt(storage, session.session_id, position, b"x")
            assert_replayable(await session.get_paired_items())

    async def test_unpaired_items_stay_stored_and_are_reported(self, session: Any) -> None:
        unpaired = [REASONING, make_function_call("a"), make_function_call_output("b"), *user_messages("hello")]
        await session.add_items(unpaired)
        assert await session.get_paired_items() == user_messages("hello")
        assert await session.get_items() == unpaired
        report = await session.check()
        assert [entry.index for entry in report.unpaired] == [0, 1, 2]
        assert not report.ok

    async def test_malformed_items_do_not_break_pairing_and_check(self, session: Any) -> None:
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
    """Invalid input raises a typed error and changes nothing."""

    async def test_an_invalid_limit_is_refused(self, session: Any) -> None:
        await session.add_items(user_messages("word"))
        invalid: list[Any] = [-1, 1.5, "3", True, [2]]
        for limit in invalid:
            await assert_invalid(session.get_items(limit=limit), limit)
            await assert_invalid(session.get_paired_items(limit), limit)
            await assert_invalid(session.search("word", limit=limit), limit)
            with pytest.raises(InvalidInput):
                SessionSettings(limit=limit)

    async def test_an_invalid_batch_is_refused_by_every_method(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        head = await session.head()
        for batch in [*INVALID_BATCHES, "text", {"role": "user"}, None, 7, [{"a": "\ud800"}]]:
            await assert_invalid(session.add_items(batch), batch)
            await assert_invalid(session.add_items(batch, key="k"), batch)
            await assert_invalid(session.replace_items(batch), batch)
            await assert_invalid(session.splice_items(0, 1, batch), batch)
            assert await session.head() == head, batch
        await session.add_items(user_messages(3), key="k")

    async def test_a_position_out_of_range_is_refused(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        head = await session.head()
        for position in [-1, 3, 1.5, 2.0, "1", None, True]:
            await assert_invalid(session.rewind(position), position)
            await assert_invalid(session.splice_items(position, 2, []), position)
            if position is not None:
                await assert_invalid(session.splice_items(0, position, []), position)
                await assert_invalid(session.fork(position, "child"), position)
        await assert_invalid(session.splice_items(2, 1, []), (2, 1))
        assert await session.head() == head
        assert texts(await session.get_items()) == ["1", "2"]

    async def test_an_invalid_id_or_key_is_refused(self, storage: Any, session: Any) -> None:
        await session.add_items(user_messages(1))
        invalid: list[Any] = ["", 7, None, b"s", "x" * 256, "a\nb", "a\x00b", "\ud800"]
        for name in invalid:
            with pytest.raises(InvalidInput):
                self.open_session(storage, name)
            if name is not None:
                await assert_invalid(session.fork(1, name), name)
                await assert_invalid(session.add_items(user_messages(2), key=name), name)
        assert texts(await session.get_items()) == ["1"]

    async def test_an_expected_head_of_another_type_is_refused(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        for expected in [0, 1, "1", (1, 2), {"version": 1}]:
            await assert_invalid(session.add_items(user_messages(3), expected=expected), expected)
            await assert_invalid(session.add_items([], expected=expected), expected)
            await assert_invalid(session.replace_items([], expected=expected), expected)
            await assert_invalid(session.rewind(1, expected=expected), expected)
            await assert_invalid(session.restore(0, expected=expected), expected)
        assert texts(await session.get_items()) == ["1", "2"]

    async def test_a_query_that_is_not_a_string_is_refused(self, session: Any) -> None:
        for query in [None, 7, b"word", ["word"]]:
            await assert_invalid(session.search(query), query)

    async def test_unknown_settings_are_refused(self, storage: Any) -> None:
        with pytest.raises(InvalidInput):
            self.open_session(storage, "s", settings={"limits": 3})  # type: ignore[arg-type]
