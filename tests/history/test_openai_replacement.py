"""Replacement of a history by its compacted form, and the history after a failure."""

import asyncio
from typing import Any

import pytest

from factories.history import (
    UNDERLYING,
    ThirdPartySession,
    make_compaction_session,
    make_encrypted_stored,
    make_stored_session,
    make_turns,
    read_compaction,
)
from factories.items import assistant_message, user_message
from openai_server import Fault, OpenAIServer
from standfast.base.errors import HistoryMoved, NotFound, StoreUnavailable
from standfast.base.items import Item
from standfast.history.openai.client import OpenAIRequestFailed, RequestOutcome
from standfast.history.openai.compaction import OpenAIResponsesCompactionSession
from standfast.history.openai.replacement import RestoreFailed
from standfast.history.stored_session import StoredSession
from standfast.store.memory import MemoryBackend
from standfast.testing.virtual_time import run_in_virtual_time


@pytest.mark.parametrize("make", [make_stored_session, make_encrypted_stored])
async def test_the_replaced_items_stay_readable_and_can_be_restored(server: OpenAIServer, make: Any) -> None:
    underlying = make()
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(10))
    before = await underlying.head()
    await session.run_compaction()
    assert (await underlying.head()).version == before.version + 1
    (generation,) = await underlying.generations()
    assert await underlying.get_items(generation=generation.number) == make_turns(10)
    await session.add_items(make_turns(1))
    await underlying.restore(generation.number)
    assert await session.get_items() == make_turns(11)[:20] + make_turns(1)


@pytest.mark.parametrize("make", UNDERLYING)
async def test_items_added_during_a_compaction_are_kept(server: OpenAIServer, make: Any) -> None:
    hold = asyncio.Event()
    underlying = make()
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(10))
    server.fail_next(Fault(hold=hold, plain=True))
    running = asyncio.create_task(session.run_compaction())
    await server.asked(1)
    await session.add_items([user_message("late")])
    await underlying.add_items([assistant_message("later")])
    hold.set()
    await running
    items = await session.get_items()
    assert items[-2:] == [user_message("late"), assistant_message("later")]
    assert [item.get("role") for item in items] == ["user"] * 10 + [None, "user", "assistant"]


@pytest.mark.parametrize("make", UNDERLYING)
async def test_a_history_that_changed_otherwise_is_not_replaced(server: OpenAIServer, make: Any) -> None:
    for change in ("pop_item", "clear_session"):
        hold = asyncio.Event()
        underlying = make()
        session = make_compaction_session(server, underlying)
        await session.add_items(make_turns(10))
        server.fail_next(Fault(hold=hold, plain=True))
        running = asyncio.create_task(session.run_compaction())
        await server.asked(len(server.requests) + 1)
        await getattr(session, change)()
        remaining = await session.get_items()
        hold.set()
        with pytest.raises(HistoryMoved):
            await running
        assert await session.get_items() == remaining
        assert len(session.take_compactions()) == 1


async def test_concurrent_compactions_send_one_request(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    await asyncio.gather(session.run_compaction(), session.run_compaction())
    assert len(server.requests) == 1


async def test_an_unreadable_record_does_not_prevent_compaction_and_stays_stored(server: OpenAIServer) -> None:
    hold = asyncio.Event()
    backend = MemoryBackend()
    underlying = StoredSession("chat", backend)
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(6))
    broken = sorted(backend.tables.tapes)[3]
    backend.tables.tapes[broken] = b"{broken"
    readable = await session.get_items()
    assert len(readable) == 11
    server.fail_next(Fault(hold=hold, plain=True))
    running = asyncio.create_task(session.run_compaction({"response_id": "resp_1", "force": True}))
    await server.asked(1)
    await session.add_items([user_message("late")])
    hold.set()
    await running
    assert server.requests[0].body["input"] == readable
    items = await session.get_items()
    assert read_compaction(items) == "all of 11"
    assert items[-1] == user_message("late")
    assert await underlying.get_items(generation=0) == [*readable, user_message("late")]
    assert backend.tables.tapes[broken] == b"{broken"


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", UNDERLYING)
@pytest.mark.parametrize(
    "fault", [Fault(), Fault(status=500), Fault(status=429), Fault(status=400), Fault(body="<html>"), Fault(body="{}")]
)
async def test_a_failed_request_leaves_the_history_as_it_was(server: OpenAIServer, make: Any, fault: Fault) -> None:
    session = make_compaction_session(server, make())
    await session.add_items(make_turns(10))
    server.fail_next(fault)
    with pytest.raises(StoreUnavailable) as caught:
        await session.run_compaction()
    assert isinstance(caught.value, OpenAIRequestFailed)
    assert caught.value.outcome is RequestOutcome.NO_EFFECT
    assert await session.get_items() == make_turns(10)
    await session.run_compaction()
    assert read_compaction(await session.get_items()) == "all of 20"


async def test_an_empty_compaction_does_not_erase_the_history(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    server.compact = lambda body: []
    with pytest.raises(OpenAIRequestFailed):
        await session.run_compaction()
    assert await session.get_items() == make_turns(10)
    assert len(session.take_compactions()) == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "detail": "auto"},
        {"type": "input_image", "image_url": None, "file_id": None, "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_id": ""},
    ],
)
@pytest.mark.parametrize("place", ["message", "output"])
async def test_a_compaction_with_an_image_or_file_that_points_nowhere_is_refused(
    server: OpenAIServer, part: Item, place: str
) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    message: Item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, part]}
    output: Item = {"type": "function_call_output", "call_id": "c1", "output": [part]}
    server.compact = lambda body: [message if place == "message" else output]
    with pytest.raises(OpenAIRequestFailed, match=f"{part['type']} without"):
        await session.run_compaction()
    assert await session.get_items() == make_turns(10)


async def test_a_compaction_with_images_and_files_is_stored(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_image", "file_id": "file_1", "detail": "auto"},
        {"type": "input_file", "file_data": "AA==", "filename": "a.pdf"},
    ]
    server.compact = lambda body: [{"type": "message", "role": "user", "content": parts}]
    await session.run_compaction()
    assert (await session.get_items())[0]["content"] == parts


async def test_an_unknown_response_is_not_found(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    with pytest.raises(NotFound, match="resp_gone"):
        await session.run_compaction({"response_id": "resp_gone"})
    assert await session.get_items() == make_turns(10)


@pytest.mark.parametrize("make", UNDERLYING)
async def test_cancelling_the_request_leaves_the_history_as_it_was(server: OpenAIServer, make: Any) -> None:
    session = make_compaction_session(server, make())
    await session.add_items(make_turns(10))
    server.fail_next(Fault(hold=asyncio.Event()))
    running = asyncio.create_task(session.run_compaction())
    await server.asked(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await session.get_items() == make_turns(10)
    await session.run_compaction()
    assert read_compaction(await session.get_items()) == "all of 20"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["clear", "add"])
@pytest.mark.parametrize("restore_fails", [False, True])
async def test_a_third_party_session_is_restored_when_the_replacement_fails(
    server: OpenAIServer, step: str, when: str, restore_fails: bool
) -> None:
    underlying = ThirdPartySession()
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(10))
    underlying.steps.clear()

    async def fail(name: str, count: int) -> None:
        if name == step and (count == 1 or (restore_fails and count == 2)):
            raise OSError("the disk is full")

    setattr(underlying, when, fail)
    with pytest.raises(OSError, match="disk"):
        await session.run_compaction()
    assert underlying.items == make_turns(10)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["clear", "add"])
async def test_a_session_is_cleared_at_most_once(server: OpenAIServer, step: str, when: str) -> None:
    underlying = ThirdPartySession()
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(10))
    underlying.steps.clear()

    async def fail(name: str, count: int) -> None:
        if name == "clear" == step or (name == step and count == 1):  # clearing fails whenever it is tried
            raise OSError("the connection is lost")

    setattr(underlying, when, fail)
    with pytest.raises(OSError, match="lost"):
        await session.run_compaction()
    assert underlying.items == make_turns(10)
    assert underlying.steps.count("clear") == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["clear", "add"])
async def test_a_third_party_session_is_restored_when_the_replacement_is_cancelled(
    server: OpenAIServer, step: str, when: str
) -> None:
    underlying = ThirdPartySession()
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(10))
    underlying.steps.clear()
    reached = asyncio.Event()

    async def hang(name: str, count: int) -> None:
        if name == step and count == 1:
            reached.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    setattr(underlying, when, hang)
    running = asyncio.create_task(session.run_compaction())
    await reached.wait()
    for _ in range(5):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert underlying.items == make_turns(10)
    await session.add_items([user_message("on")])
    assert await session.get_items() == [*make_turns(10), user_message("on")]


async def test_a_cancellation_does_not_stop_the_restoring_of_items(server: OpenAIServer) -> None:
    underlying = ThirdPartySession()
    session = make_compaction_session(server, underlying)
    await session.add_items(make_turns(10))
    underlying.steps.clear()
    restoring, go = asyncio.Event(), asyncio.Event()

    async def fail_then_wait(name: str, count: int) -> None:
        if name == "add" and count == 1:
            raise OSError("the disk is full")
        if name == "add":
            restoring.set()
            await go.wait()

    underlying.before = fail_then_wait
    running = asyncio.create_task(session.run_compaction())
    await restoring.wait()
    for _ in range(5):
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert underlying.items == make_turns(10)


@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
def test_items_that_cannot_be_restored_are_in_the_error(cancelled: bool) -> None:
    failed = asyncio.Event()
    underlying = ThirdPartySession()

    async def fail(name: str, count: int) -> None:
        if name == "add":
            failed.set()
            raise OSError("the disk is full")

    async def compact() -> BaseException | None:
        session = OpenAIResponsesCompactionSession("chat", underlying, client=OpenAIServer().near_client())
        await session.add_items(make_turns(10))
        underlying.before = fail
        running = asyncio.create_task(session.run_compaction())
        await failed.wait()
        if cancelled:
            running.cancel()
        await asyncio.wait({running})
        if not cancelled:
            return running.exception()
        with pytest.raises(asyncio.CancelledError) as caught:
            await running
        return caught.value.__cause__

    error = run_in_virtual_time(compact())
    assert isinstance(error, RestoreFailed)
    assert error.items == make_turns(10)
    if not cancelled:
        assert isinstance(error.__cause__, OSError)
