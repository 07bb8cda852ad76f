"""Clauses of the session contract about keys, heads, replacement and rewinding."""

import asyncio
import itertools
from typing import Any

import pytest

from standfast.base.errors import HistoryMoved, KeyReused, NotFound
from standfast.store.records import EMPTY_HEAD, Head
from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.sessions.fixtures import (
    InterferingBackend,
    StoredSessionFixtures,
    raises_error,
    texts,
    user_messages,
)


class ChangeClauses(StoredSessionFixtures):
    """Keyed batches, expected heads, replacement, rewinding and restoring."""

    async def test_a_head_counts_changes_and_items(self, session: Any) -> None:
        assert await session.head() == EMPTY_HEAD
        await session.add_items(user_messages(1, 2, 3))
        assert await session.head() == Head(1, 3)
        await session.pop_item()
        assert await session.head() == Head(2, 2)
        await session.clear_session()
        assert await session.head() == Head(3, 0)

    async def test_a_keyed_batch_is_written_once(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2), key="turn-1")
        await session.add_items(user_messages(3))
        head = await session.head()
        await session.add_items(user_messages(1, 2), key="turn-1")
        assert await session.head() == head
        assert texts(await session.get_items()) == ["1", "2", "3"]

    async def test_a_key_with_another_batch_is_refused(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2), key="turn-1")
        for other in (user_messages(1), user_messages(2, 1), user_messages(1, 2, 3), user_messages("12")):
            with pytest.raises(KeyReused):
                await session.add_items(other, key="turn-1")
        assert texts(await session.get_items()) == ["1", "2"]

    async def test_the_same_batch_under_two_keys_is_two_batches(self, session: Any) -> None:
        await session.add_items(user_messages(1), key="turn-1")
        await session.add_items(user_messages(1), key="turn-2")
        assert texts(await session.get_items()) == ["1", "1"]

    async def test_concurrent_retries_of_a_keyed_batch_write_it_once(self, session: Any) -> None:
        await asyncio.gather(*(session.add_items(user_messages(1, 2), key="turn-1") for _ in range(8)))
        assert texts(await session.get_items()) == ["1", "2"]

    async def test_a_keyed_batch_may_be_retried_after_a_lost_response(
        self, session: Any, failing_after: FaultInjector
    ) -> None:
        expected: list[str] = []
        for statements in itertools.count():
            with failing_after(statements, late=True) as fault:
                lost = await raises_error(
                    session.add_items(user_messages(statements, statements), key=f"turn-{statements}")
                )
            if lost:
                await session.add_items(user_messages(statements, statements), key=f"turn-{statements}")
            expected += [str(statements)] * 2
            assert texts(await session.get_items()) == expected
            if not fault.triggered:
                break

    async def test_a_batch_is_written_only_at_the_expected_head(self, session: Any) -> None:
        await session.add_items(user_messages(1), expected=EMPTY_HEAD)
        head = await session.head()
        await session.add_items(user_messages(2), expected=head)
        with pytest.raises(HistoryMoved) as moved:
            await session.add_items(user_messages(3), expected=head)
        assert (moved.value.session_id, moved.value.expected) == ("s", head)
        assert moved.value.found == await session.head()
        assert texts(await session.get_items()) == ["1", "2"]

    async def test_an_empty_batch_also_checks_the_expected_head(self, session: Any) -> None:
        await session.add_items(user_messages(1))
        await session.add_items([], expected=await session.head())
        with pytest.raises(HistoryMoved):
            await session.add_items([], expected=EMPTY_HEAD)

    async def test_a_retry_of_a_written_keyed_batch_ignores_the_expected_head(self, session: Any) -> None:
        head = await session.head()
        await session.add_items(user_messages(1), key="turn-1", expected=head)
        await session.add_items(user_messages(2))
        await session.add_items(user_messages(1), key="turn-1", expected=head)
        assert texts(await session.get_items()) == ["1", "2"]

    async def test_of_concurrent_writers_with_the_same_expected_head_one_succeeds(self, session: Any) -> None:
        await session.add_items(user_messages("first"))
        head = await session.head()
        results = await asyncio.gather(
            *(session.add_items(user_messages(n), expected=head) for n in range(6)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["HistoryMoved"] * 5 + ["NoneType"]
        assert len(await session.get_items()) == 2

    async def test_replaced_items_stay_readable_as_a_generation(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        head = await session.replace_items(user_messages("summary"))
        assert head == await session.head() == Head(2, 1)
        await session.add_items(user_messages(4))
        assert texts(await session.get_items()) == ["summary", "4"]
        (generation,) = await session.generations()
        assert (generation.number, generation.length) == (0, 3)
        assert texts(await session.get_items(generation=0)) == ["1", "2", "3"]
        assert texts(await session.get_items(limit=2, generation=0)) == ["2", "3"]

    async def test_an_empty_history_can_be_replaced_and_a_replacement_may_be_empty(self, session: Any) -> None:
        await session.replace_items(user_messages(1))
        assert texts(await session.get_items()) == ["1"]
        assert await session.generations() == []
        await session.replace_items([])
        assert await session.get_items() == []
        await session.add_items(user_messages(2))
        assert texts(await session.get_items()) == ["2"]

    async def test_splice_is_slice_assignment(self, storage: Any) -> None:
        slices = [(start, stop) for start in range(5) for stop in [*range(start, 5), None]]
        for (start, stop), added in itertools.product(slices, ([], ["x"], ["x", "y", "z"])):
            session = self.open_session(storage, f"{start}:{stop}={len(added)}")
            await session.add_items(user_messages(*"abcd"))
            expected = list("abcd")
            expected[start:stop] = added
            await session.splice_items(start, stop, user_messages(*added))
            assert texts(await session.get_items()) == expected, session.session_id
            await session.add_items(user_messages("end"))
            assert texts(await session.get_items()) == [*expected, "end"], session.session_id
            assert texts(await session.get_items(generation=0)) == list("abcd"), session.session_id

    async def test_a_replacement_at_another_head_changes_nothing(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        head = await session.head()
        await session.add_items(user_messages(4))
        for change in (
            session.replace_items(user_messages("x"), expected=head),
            session.rewind(1, expected=head),
            session.splice_items(0, 1, [], expected=head),
        ):
            with pytest.raises(HistoryMoved):
                await change
        assert texts(await session.get_items()) == ["1", "2", "3", "4"]
        assert await session.generations() == []

    async def test_the_expected_head_is_checked_before_the_positions(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        head = await session.head()
        await session.rewind(1)
        with pytest.raises(HistoryMoved):
            await session.rewind(3, expected=head)
        with pytest.raises(HistoryMoved):
            await session.splice_items(2, 3, user_messages("x"), expected=head)

    async def test_a_failed_replacement_leaves_the_history_as_it_was(
        self, storage: Any, failing_after: FaultInjector
    ) -> None:
        for statements in itertools.count():
            session = self.open_session(storage, f"session-{statements}")
            await session.add_items(user_messages(1, 2, 3))
            with failing_after(statements) as fault:
                failed = await raises_error(session.replace_items(user_messages("summary", "more")))
            assert texts(await session.get_items()) == (["1", "2", "3"] if failed else ["summary", "more"])
            assert len(await session.generations()) == (0 if failed else 1)
            if not fault.triggered:
                break

    async def test_a_batch_added_during_a_replacement_is_not_lost(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        await asyncio.gather(
            session.replace_items(user_messages("summary")),
            *(session.add_items(user_messages(f"new {n}")) for n in range(5)),
        )
        current = texts(await session.get_items())
        before = texts(await session.get_items(generation=0))
        assert "summary" in current
        assert sorted({*current, *before}) == sorted(["1", "2", "3", "summary", *(f"new {n}" for n in range(5))])

    async def test_rewind_keeps_the_first_items(self, session: Any) -> None:
        await session.add_items(user_messages(*range(5)))
        assert await session.rewind(3) == Head(2, 3)
        assert texts(await session.get_items()) == ["0", "1", "2"]
        await session.add_items(user_messages("x"))
        assert await session.rewind(0) == Head(4, 0)
        assert await session.get_items() == []
        assert texts(await session.get_items(generation=0)) == list("01234")
        assert texts(await session.get_items(generation=1)) == ["0", "1", "2", "x"]

    async def test_restore_undoes_a_rewind_and_keeps_later_items(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        await session.rewind(1)
        await session.add_items(user_messages(4))
        await session.restore(0)
        assert texts(await session.get_items()) == ["1", "2", "3", "4"]
        assert texts(await session.get_items(generation=1)) == ["1", "4"]

    async def test_restore_undoes_a_replacement_and_keeps_later_items(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2, 3))
        await session.replace_items(user_messages("summary"))
        await session.add_items(user_messages(4))
        head = await session.restore(0)
        assert head == await session.head()
        assert texts(await session.get_items()) == ["1", "2", "3", "4"]
        await session.add_items(user_messages(5))
        assert texts(await session.get_items()) == ["1", "2", "3", "4", "5"]

    async def test_restoring_an_unknown_generation_is_not_found(self, session: Any) -> None:
        with pytest.raises(NotFound):
            await session.restore(0)
        await session.add_items(user_messages(1))
        with pytest.raises(NotFound):
            await session.restore(0)
        with pytest.raises(NotFound):
            await session.get_items(generation=0)
        assert texts(await session.get_items()) == ["1"]

    async def test_restoring_at_another_head_changes_nothing(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        await session.rewind(1)
        head = await session.head()
        await session.add_items(user_messages(3))
        with pytest.raises(HistoryMoved):
            await session.restore(0, expected=head)
        assert texts(await session.get_items()) == ["1", "3"]

    @pytest.mark.parametrize("method", ["list_generations", "get_session"])
    async def test_restore_never_shows_items_that_were_erased_meanwhile(self, storage: Any, method: str) -> None:
        session = self.open_session(storage, "s")
        await session.add_items(user_messages(1, 2))
        await session.rewind(1)
        backend = self.get_backend(storage)
        if storage is not backend:
            pytest.skip("this storage is not a backend")
        raced = self.open_session(
            InterferingBackend(backend, after_method=method, interfere=session.clear_session), "s"
        )
        with pytest.raises(NotFound):
            await raced.restore(0)
        assert await session.get_items() == []
        assert (await session.check()).corrupt == []

    async def test_clear_erases_the_generations_too(self, session: Any) -> None:
        await session.add_items(user_messages(1, 2))
        await session.rewind(1)
        await session.clear_session()
        assert await session.generations() == []
        with pytest.raises(NotFound):
            await session.get_items(generation=0)

    async def test_creation_time_is_kept_and_update_time_advances(self, storage: Any, clock: FakeClock) -> None:
        session, created = self.open_session(storage, "s"), clock.now
        await session.add_items(user_messages(1, 2, 3))
        for change, *arguments in (
            (session.add_items, user_messages(4)),
            (session.pop_item,),
            (session.rewind, 1),
            (session.clear_session,),
        ):
            clock.advance(60)
            await change(*arguments)
            record = await self.get_backend(storage).get_session("s")
            assert record is not None
            assert (record.created_at, record.updated_at) == (created, clock.now)

    async def test_reading_does_not_change_the_update_time(self, storage: Any, clock: FakeClock) -> None:
        session, created = self.open_session(storage, "s"), clock.now
        await session.add_items(user_messages(1))
        clock.advance(60)
        for read in (session.get_items(), session.head(), session.check(), session.search("x"), session.generations()):
            await read
        record = await self.get_backend(storage).get_session("s")
        assert record is not None
        assert record.updated_at == created

    async def test_the_order_does_not_depend_on_the_clock(self, session: Any, clock: FakeClock) -> None:
        await session.add_items(user_messages(1))
        for number in (2, 3):
            clock.advance(-5)
            await session.add_items(user_messages(number))
        assert texts(await session.get_items()) == ["1", "2", "3"]
        assert texts(await session.get_items(limit=1)) == ["3"]
        assert await session.pop_item() == user_messages(3)[0]

    async def test_keys_generations_and_forks_survive_reopening(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as storage:
            session = self.open_session(storage, "s")
            await session.add_items(user_messages(1, 2, 3), key="turn-1")
            await session.replace_items(user_messages("summary"))
            child = await session.fork(1, "child")
            await child.add_items(user_messages("own"))
            head = await session.head()
        async with reopen_durable() as storage:
            session, child = self.open_session(storage, "s"), self.open_session(storage, "child")
            await session.add_items(user_messages(1, 2, 3), key="turn-1")
            assert await session.head() == head
            assert texts(await session.get_items(generation=0)) == ["1", "2", "3"]
            assert texts(await child.get_items()) == ["summary", "own"]
            await session.restore(0)
            assert texts(await session.get_items()) == ["1", "2", "3"]
