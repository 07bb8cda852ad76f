"""CompactingSession: trigger, replaced items, undo, and failures."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.history import KEY, ThirdPartySession, call, message, numbered_messages, output
from factories.items import Item
from standfast.base.errors import InvalidInput, NotFound, StoreUnavailable, Unsupported
from standfast.base.item_pairs import find_unpaired
from standfast.base.items import encode_items
from standfast.history.compaction import CompactingSession, Trigger, estimate_tokens
from standfast.history.encryption.session import EncryptedSession
from standfast.history.session import Session, SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.history.wrapper import SessionWrapper
from standfast.store.memory import MemoryBackend
from standfast.store.sqlite.backend import SqliteBackend

History = StoredSession | SessionWrapper


def reasoning(name: str) -> Item:
    return {"type": "reasoning", "id": name, "summary": []}


def make_summary(count: int) -> Item:
    return message(f"{count} before", "developer")


class Summariser:
    """Records the items it gets, and fails ``failures`` times."""

    def __init__(self, *, failures: int = 0, meanwhile: Callable[[], Any] | None = None) -> None:
        self.failures = failures
        self.meanwhile = meanwhile
        self.seen: list[list[Item]] = []

    async def __call__(self, items: list[Item]) -> Item:
        self.seen.append(items)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the model is down")
        return make_summary(len(items))


@pytest.fixture(params=["memory", "sqlite", "encrypted memory", "encrypted sqlite"])
async def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[..., History]]:
    backend: Any = SqliteBackend(tmp_path / "h.db") if "sqlite" in request.param else MemoryBackend()

    def open_session(session_id: str = "s", limit: int | None = None) -> History:
        plain = StoredSession(session_id, backend, settings=SessionSettings(limit=limit))
        return EncryptedSession(session_id, plain, KEY) if "encrypted" in request.param else plain

    yield open_session
    await backend.close()


def make_compacting_session(underlying: History, summarise: Any = None, **options: Any) -> CompactingSession:
    options = {"trigger": Trigger(items=6), "keep_last": 2, **options}
    return CompactingSession(underlying, summarise=summarise or Summariser(), **options)


# --- trigger and replacement -------------------------------------------------------------------------------


async def test_an_append_that_passes_the_trigger_replaces_the_oldest_part(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session())
    assert isinstance(session, Session)
    await session.add_items(numbered_messages(6), wrapper=None)
    assert await session.get_items() == numbered_messages(6)
    version = (await session.head()).version
    await session.add_items(numbered_messages(1, 6))
    assert await session.get_items() == [make_summary(5), *numbered_messages(2, 5)]
    assert (await session.head()).version == version + 2  # the append and one commit more
    assert (await session.check()).ok


async def test_a_second_compaction_summarises_the_first_summary_too(open_session: Callable[..., History]) -> None:
    summariser = Summariser()
    session = make_compacting_session(open_session(), summariser)
    for number in range(14):
        await session.add_items(numbered_messages(1, number))
    assert summariser.seen[1][0] == make_summary(5)
    assert await session.get_items() == [make_summary(5), *numbered_messages(5, 9)]


async def test_the_summariser_gets_the_whole_history_despite_a_limit(
    open_session: Callable[..., History],
) -> None:
    summariser = Summariser()
    session = make_compacting_session(open_session(limit=3), summariser)
    await session.add_items(numbered_messages(10))
    assert summariser.seen == [numbered_messages(8)]
    assert await session.get_items(limit=50) == [make_summary(8), *numbered_messages(2, 8)]


async def test_tokens_trigger_too_and_are_counted_once(open_session: Callable[..., History]) -> None:
    counted: list[Item] = []

    def count(item: Item) -> int:
        counted.append(item)
        return 10

    session = make_compacting_session(open_session(), trigger=Trigger(tokens=100), count_tokens=count)
    await session.add_items(numbered_messages(4))
    await session.add_items(numbered_messages(6, 4))
    assert counted == numbered_messages(10)
    assert len(await session.get_items()) == 10
    await session.add_items(numbered_messages(1, 10))
    assert await session.get_items() == [make_summary(9), *numbered_messages(2, 9)]


def test_estimated_tokens_depend_on_the_text_and_ignore_images() -> None:
    assert estimate_tokens(message("x" * 400)) == 104
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 10_000}
    assert estimate_tokens({"role": "user", "content": [picture]}) < 10


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_the_trigger_may_be_a_function(open_session: Callable[..., History], kind: str) -> None:
    async def later(items: list[Item]) -> bool:
        return items[-1]["content"] == "stop"

    def now(items: list[Item]) -> bool:
        return items[-1]["content"] == "stop"

    session = make_compacting_session(open_session(), trigger=later if kind == "async" else now, keep_last=1)
    await session.add_items(numbered_messages(30))
    assert len(await session.get_items()) == 30
    await session.add_items([message("stop")])
    assert await session.get_items() == [make_summary(30), message("stop")]


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("a text", [{"role": "user", "content": "[Summary of the earlier conversation]\na text"}]),
        (message("an item", "system"), [message("an item", "system")]),
        (
            [call("x"), output("x"), message("and more")],
            [call("x"), output("x"), message("and more")],
        ),
    ],
)
async def test_a_summary_may_be_a_text_an_item_or_several_items(
    open_session: Callable[..., History], summary: Any, expected: Any
) -> None:
    session = make_compacting_session(open_session(), lambda items: summary)
    await session.add_items(numbered_messages(7))
    assert await session.get_items() == [*expected, *numbered_messages(2, 5)]


@pytest.mark.parametrize("bad", ["", "  ", [], None, 7, [7], [call("x")], {"a": float("nan")}])
async def test_an_invalid_summary_changes_nothing(open_session: Callable[..., History], bad: Any) -> None:
    session = make_compacting_session(open_session(), lambda items: bad)
    await session.add_items(numbered_messages(7))
    assert await session.get_items() == numbered_messages(7)
    with pytest.raises(InvalidInput):
        await session.compact(force=True)


async def test_compact_waits_for_the_trigger_unless_forced(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session())
    assert await session.compact(force=True) is None
    await session.add_items(numbered_messages(5))
    assert await session.compact() is None
    assert await session.get_items() == numbered_messages(5)
    assert await session.compact(force=True) == await session.head()
    assert await session.get_items() == [make_summary(3), *numbered_messages(2, 3)]


@pytest.mark.parametrize(
    "options",
    [
        {"keep_last": -1},
        {"keep_last": True},
        {"keep_last": 6},
        {"trigger": None},
    ],
)
async def test_invalid_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        make_compacting_session(StoredSession("s", MemoryBackend()), **options)


@pytest.mark.parametrize("limits", [{}, {"items": 0}, {"tokens": -1}, {"items": True}, {"tokens": 1.5}])
def test_a_trigger_needs_a_number(limits: Any) -> None:
    with pytest.raises(InvalidInput):
        Trigger(**limits)


# --- pairs ----------------------------------------------------------------------------------------


async def test_a_call_is_never_separated_from_its_output_nor_reasoning_from_its_call(
    open_session: Callable[..., History],
) -> None:
    items = [
        *numbered_messages(4),
        reasoning("r"),
        call("a"),
        call("b"),
        output("a"),
        output("b"),
        message("done", "assistant"),
    ]
    session = make_compacting_session(open_session(), trigger=Trigger(items=9))
    await session.add_items(items)
    # keep_last is 2, but the items before these belong to the same unit as the first of them.
    assert await session.get_items() == [make_summary(4), *items[4:]]


async def test_a_call_without_its_output_yet_is_not_compacted(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session(), keep_last=0)
    await session.add_items([*numbered_messages(6), reasoning("r"), call("a")])
    assert await session.get_items() == [make_summary(6), reasoning("r"), call("a")]
    await session.add_items([output("a"), message("done", "assistant")])
    assert find_unpaired(await session.get_items()) == []


async def test_an_unanswered_call_of_an_earlier_turn_is_compacted(
    open_session: Callable[..., History],
) -> None:
    session = make_compacting_session(open_session())
    await session.add_items([message("go"), call("lost"), *numbered_messages(6)])
    assert await session.get_items() == [make_summary(6), *numbered_messages(2, 4)]


async def test_items_are_paired_after_every_compaction() -> None:
    turns = st.lists(
        st.sampled_from(["say", "call", "two calls", "think and call", "think and say"]), min_size=1, max_size=12
    )

    @settings(max_examples=30, deadline=None)
    @given(turns, st.integers(0, 5), st.integers(6, 9))
    def check(kinds: list[str], keep: int, max_items: int) -> None:
        asyncio.run(run_turns(kinds, keep, max_items))

    await asyncio.to_thread(check)


async def run_turns(kinds: list[str], keep: int, max_items: int) -> None:
    plain = StoredSession("s", MemoryBackend())
    session = make_compacting_session(plain, trigger=Trigger(items=max_items), keep_last=keep)
    for number, kind in enumerate(kinds):
        a, b = f"a{number}", f"b{number}"
        batches = {
            "say": [[message("go")], [message("done", "assistant")]],
            "call": [[message("go")], [call(a)], [output(a), message("done", "assistant")]],
            "two calls": [
                [message("go")],
                [call(a), call(b)],
                [output(b)],
                [output(a)],
                [message("done", "assistant")],
            ],
            "think and call": [
                [message("go"), reasoning(a), call(a)],
                [output(a)],
                [message("done", "assistant")],
            ],
            "think and say": [[message("go")], [reasoning(a), message("done", "assistant")]],
        }[kind]
        for batch in batches:
            await session.add_items(batch)
        assert find_unpaired(await session.get_items()) == []


# --- undo --------------------------------------------------------------------------------------


async def test_undo_restores_the_items_exactly_and_keeps_later_ones(
    open_session: Callable[..., History],
) -> None:
    session = make_compacting_session(open_session())
    await session.add_items(numbered_messages(7))
    await session.add_items(numbered_messages(2, 7))
    assert len(await session.get_items()) == 5
    await session.undo_compaction()
    assert encode_items(await session.get_items()) == encode_items(numbered_messages(9))
    assert (await session.check()).ok
    with pytest.raises(NotFound):
        await session.undo_compaction()


async def test_several_compactions_are_undone_one_after_the_other(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session())
    for number in range(18):
        await session.add_items(numbered_messages(1, number))
    undone = 0
    while True:
        try:
            await session.undo_compaction()
        except NotFound:
            break
        undone += 1
    assert undone == 3
    assert await session.get_items() == numbered_messages(18)


async def test_undo_works_after_a_rewind(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session())
    await session.add_items(numbered_messages(4))
    await session.rewind(3)
    with pytest.raises(NotFound):
        await session.undo_compaction()
    await session.add_items(numbered_messages(4, 3))
    assert await session.get_items() == [make_summary(5), *numbered_messages(2, 5)]
    await session.rewind(2)
    await session.undo_compaction()
    assert await session.get_items() == numbered_messages(7)


async def test_there_is_nothing_to_undo_in_an_empty_or_cleared_history(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session())
    with pytest.raises(NotFound):
        await session.undo_compaction()
    await session.add_items(numbered_messages(7))
    await session.clear_session()
    with pytest.raises(NotFound):
        await session.undo_compaction()


async def test_the_replaced_items_stay_readable_as_a_generation(open_session: Callable[..., History]) -> None:
    session = make_compacting_session(open_session())
    await session.add_items(numbered_messages(7))
    assert await session.get_items(generation=0) == numbered_messages(7)


async def test_a_fork_is_compacted_independently(open_session: Callable[..., History]) -> None:
    summariser = Summariser()
    parent = make_compacting_session(open_session(), summariser)
    await parent.add_items(numbered_messages(6))
    child = await parent.fork(session_id="child")
    await child.add_items(numbered_messages(1, 6))
    assert await child.get_items() == [make_summary(5), *numbered_messages(2, 5)]
    assert await parent.get_items() == numbered_messages(6)
    await child.undo_compaction()
    assert await child.get_items() == numbered_messages(7)


# --- faults ---------------------------------------------------------------------------------------


async def test_an_append_succeeds_when_the_summariser_fails_and_the_next_one_compacts(
    open_session: Callable[..., History], caplog: pytest.LogCaptureFixture
) -> None:
    session = make_compacting_session(open_session(), Summariser(failures=2))
    with caplog.at_level(logging.ERROR, logger="standfast"):
        await session.add_items(numbered_messages(7))
    assert "could not be compacted" in caplog.text
    assert await session.get_items() == numbered_messages(7)
    with pytest.raises(RuntimeError, match="the model is down"):
        await session.compact(force=True)
    assert await session.get_items() == numbered_messages(7)
    await session.add_items(numbered_messages(1, 7))
    assert await session.get_items() == [make_summary(6), *numbered_messages(2, 6)]


async def test_a_cancelled_summariser_leaves_the_history_and_the_lock_free(
    open_session: Callable[..., History],
) -> None:
    started = asyncio.Event()

    async def endless(items: list[Item]) -> Item:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    session = make_compacting_session(open_session(), endless)
    task = asyncio.create_task(session.add_items(numbered_messages(7)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await session.get_items() == numbered_messages(7)
    session.policy = replace(session.policy, summarise=Summariser())
    await session.add_items(numbered_messages(1, 7))
    assert await session.get_items() == [make_summary(6), *numbered_messages(2, 6)]


async def test_an_append_during_a_compaction_is_kept_and_needs_no_second_summary(
    open_session: Callable[..., History],
) -> None:
    other = open_session()
    summariser = Summariser(meanwhile=lambda: other.add_items(numbered_messages(2, 7)))
    session = make_compacting_session(open_session(), summariser)
    await session.add_items(numbered_messages(7))
    assert await session.get_items() == [make_summary(5), *numbered_messages(4, 5)]
    assert len(summariser.seen) == 1


async def test_a_rewind_during_a_compaction_is_kept(open_session: Callable[..., History]) -> None:
    other = open_session()
    session = make_compacting_session(open_session(), Summariser(meanwhile=lambda: other.rewind(3)))
    await session.add_items(numbered_messages(7))
    assert await session.get_items() == numbered_messages(3)


async def test_a_history_replaced_during_a_compaction_is_summarised_again(open_session: Callable[..., History]) -> None:
    other = open_session()
    summariser = Summariser(meanwhile=lambda: other.replace_items(numbered_messages(8, 100)))
    session = make_compacting_session(open_session(), summariser)
    await session.add_items(numbered_messages(7))
    assert summariser.seen == [numbered_messages(5), numbered_messages(6, 100)]
    assert await session.get_items() == [make_summary(6), *numbered_messages(2, 106)]


async def test_of_two_concurrent_compactions_one_succeeds(open_session: Callable[..., History]) -> None:
    plain = open_session()
    await plain.add_items(numbered_messages(8))
    both_started = asyncio.Barrier(2)

    async def slow(items: list[Item]) -> Item:
        if len(items) == 6:
            await both_started.wait()
        return make_summary(len(items))

    first, second = make_compacting_session(open_session(), slow), make_compacting_session(open_session(), slow)
    outcomes = await asyncio.gather(first.compact(), second.compact())
    assert sorted(outcome is None for outcome in outcomes) == [False, True]
    assert await plain.get_items() == [make_summary(6), *numbered_messages(2, 6)]
    assert len(await plain.generations()) == 1


async def test_appends_of_other_tasks_do_not_wait_for_the_summariser(open_session: Callable[..., History]) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(items: list[Item]) -> Item:
        started.set()
        await go_on.wait()
        return make_summary(len(items))

    session = make_compacting_session(open_session(), slow)
    task = asyncio.create_task(session.add_items(numbered_messages(7)))
    await started.wait()
    await session.add_items(numbered_messages(1, 7))
    assert await session.get_items() == numbered_messages(8)
    go_on.set()
    await task
    assert await session.get_items() == [make_summary(5), *numbered_messages(3, 5)]


class Failing(sqlite3.Connection):
    """A connection whose writes of a chosen kind fail, as on a full disk."""

    failing = ""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.failing and self.failing in sql:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *args)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("statement", ["INSERT INTO standfast_generations", "UPDATE standfast_sessions SET generation"])
async def test_a_failed_commit_leaves_the_history_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool, statement: str
) -> None:
    def connect(path: str, **options: Any) -> sqlite3.Connection:
        return sqlite3.connect(path, factory=Failing, **options)

    backend = SqliteBackend(tmp_path / "h.db", connect=connect)
    plain = StoredSession("s", backend)
    session = make_compacting_session(EncryptedSession("s", plain, KEY) if encrypted else plain)
    monkeypatch.setattr(Failing, "failing", statement)
    await session.add_items(numbered_messages(7))
    assert await session.get_items() == numbered_messages(7)
    with pytest.raises(StoreUnavailable):
        await session.compact(force=True)
    assert (await session.check()).ok
    monkeypatch.setattr(Failing, "failing", "")
    await session.add_items(numbered_messages(1, 7))
    assert await session.get_items() == [make_summary(6), *numbered_messages(2, 6)]
    await session.undo_compaction()
    assert await session.get_items() == numbered_messages(8)
    await backend.close()


# --- sessions that can be wrapped --------------------------------------------------------------------------


async def test_a_third_party_session_cannot_be_compacted() -> None:
    for third_party in (ThirdPartySession(), EncryptedSession("s", ThirdPartySession(), KEY)):
        with pytest.raises(Unsupported, match="standfast store"):
            make_compacting_session(third_party)  # type: ignore[arg-type]


async def test_an_unreadable_record_among_the_summarised_stays_in_the_generation() -> None:
    backend = MemoryBackend()
    session = make_compacting_session(StoredSession("s", backend), trigger=Trigger(items=5))
    await session.target_session.add_items(numbered_messages(6))
    location = next(location for location in backend.tables.tapes if location[1] == 1)
    backend.tables.tapes[location] = b"not an item"
    await session.add_items(numbered_messages(1, 6))
    assert await session.get_items() == [make_summary(4), *numbered_messages(2, 5)]
    assert len(await session.get_items(generation=0)) == 6
    assert backend.tables.tapes[location] == b"not an item"
